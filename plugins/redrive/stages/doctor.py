"""Doctor: is everything in place? Configuration, ledger, staging, Java, connections, queues, permissions, windows.

Of permissions it sees those to look at queues. Those to receive, settle and send can't be tried without receiving,
settling or sending something, so it names them instead.
"""

import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from redrive import body_schemas
from redrive.brokers import open_broker
from redrive.brokers.base import Broker, TellsOfConsumers
from redrive.connections import storage
from redrive.connections.processed_check import Checker
from redrive.errors import (
    ClassificationFailed,
    KeysRefused,
    LedgerError,
    PermissionRefused,
    QueueMissing,
    RedriveError,
)
from redrive.ledger import schema
from redrive.ledger.account import balance, inspecting
from redrive.ledger.delivery import outcomes
from redrive.ledger.engine import Ledger
from redrive.ledger.review import escalations
from redrive.notify import channels
from redrive.policy.worked_past import CLOCKS
from redrive.settings import Notify, Route, Settings, Source, SparkSettings
from redrive.spark import session_conf, submit
from redrive.stages import aiming, checking, completeness, resolve, same_broker, source_expansion
from redrive.stages.context import utc_now

_CONNECT_PORT = 15_002  # Spark Connect's own default
_REACH_SECONDS = 3.0
#: Nobody expects ``observe: auto`` to take longer, unless it is said.
LONG_WINDOW = timedelta(hours=6)


class Finding(NamedTuple):
    """One thing looked at."""

    level: str  # ok | untried | warning | error
    subject: str
    text: str


def examine(settings: Settings, routes: Sequence[str]) -> list[Finding]:
    """Look at everything that the routes need; one finding each, nothing raised, nothing changed but a probe file.

    What nobody expected is a finding too, by its kind alone: its text may hold an address with a password.
    """
    found = [
        _look("ledger", lambda: _ledger(settings)),
        _look("staging", lambda: _staging(settings)),
        _look("spark", lambda: _spark(settings.spark)),
    ]
    found += _server(settings)
    if {*settings.routes, *settings.broken} <= set(routes):
        found += _not_configured(settings)
        found += [Finding("warning", f"route {one.route}", str(one)) for one in same_broker.named_twice(settings)]
    for name in routes:
        try:
            for one in _route(settings, name):
                found.append(one)  # what was found before an error stays
        except Exception as error:
            found.append(_unexpected(f"route {name}", error))
    return found


def _server(settings: Settings) -> Iterator[Finding]:
    """What of the ledger's server could make Redrive send again, or judge too soon."""
    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            lossy, clock = ledger.dialect.may_lose(connection), ledger.dialect.clock(connection)
            now = utc_now()
    except RedriveError:
        return  # told of the ledger already
    finally:
        ledger.close()
    if lossy:
        yield Finding(
            "warning",
            "ledger: commits",
            f"{lossy}: after a crash or a failover the last of them may be gone, and what was sent then is sent again."
            " Let each commit wait for a disk, and for one standby if there is a failover; else see docs/operations.md",
        )
    if clock is not None and abs(now - clock) > CLOCKS:
        yield Finding(
            "warning",
            "ledger: clock",
            f"this host's clock and that of its server differ by {abs(now - clock).total_seconds():.0f} s: Redrive"
            f" reckons with {CLOCKS.total_seconds():.0f} s between its hosts. Let them all ask a time server",
        )


def _not_configured(settings: Settings) -> Iterator[Finding]:
    """Routes that were renamed or taken out while something of theirs was unfinished."""
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            left = inspecting.not_configured(connection, {*settings.routes, *settings.broken})
    except RedriveError:
        return  # told of the ledger already
    finally:
        ledger.close()
    for name, count in left.items():
        yield Finding("error", f"route {name}", balance.why_not_configured(name, count))


def _unexpected(subject: str, error: Exception) -> Finding:
    return Finding("error", subject, f"could not be looked at: {type(error).__name__}, which Redrive does not know")


def _spark(chosen: SparkSettings) -> str:
    """What is at hand for the runner; raises :class:`RedriveError` where it could not run."""
    match chosen.runner:
        case "local" | "submit":
            if trouble := submit.java_missing():
                raise ClassificationFailed(trouble)
            submit.spark_submit()
            archive = session_conf.class_archive() if chosen.runner == "local" else None
            slow = archive is not None and not archive.exists()
            return f"runner {chosen.runner}" + (
                "; starts sooner after python -m redrive.dev.class_archive" if slow else ""
            )
        case "connect":
            place = urlsplit(chosen.remote or "")  # the settings have seen to it that it can be read
            address = (place.hostname or "localhost", place.port or _CONNECT_PORT)
            try:
                socket.create_connection(address, _REACH_SECONDS).close()
            except OSError as error:
                raise ClassificationFailed(f"Spark Connect at {address[0]}:{address[1]}: {error}") from error
            return f"runner connect; {address[0]}:{address[1]} answers"
        case _:
            return f"runner {chosen.runner}, started by Airflow"


def _route(settings: Settings, name: str) -> Iterator[Finding]:
    try:
        route = settings.route(name)
        broker = open_broker(route.broker, route.connection or "")
    except RedriveError as error:
        yield Finding("error", f"route {name}", str(error))
        return
    try:
        yield Finding("ok", f"route {name}", f"{route.broker} through connection {route.connection}")
        try:
            route = source_expansion.as_the_broker_says(route, lambda: broker)
        except RedriveError as error:
            yield Finding("error", f"{name}: sources", str(error))
            return
        for source in route.sources:
            subject = f"{name}: source {source.queue}"
            yield _look(subject, partial(_depth, broker, source.queue))
            yield from _retention(broker, subject, source.queue)
            yield from _before_the_first_drain(name, subject, broker, source)
            if route.destination_of(source.queue) is None:
                yield _origins(broker, subject, source, aiming.key_of(name, route, source.queue))
                yield from _without_origin(settings, name, source.queue)
        for queue in sorted({q for q in (route.destination_of(s.queue) for s in route.sources) if q}):
            yield _look(f"{name}: destination {queue}", partial(_depth, broker, queue))
            yield from _fan_out(broker, f"{name}: destination {queue}", queue, allowed=route.fan_out == "allow")
            yield from _returns(broker, f"{name}: destination {queue}", queue, route)
            yield from _losses(broker, f"{name}: destination {queue}", queue)
            yield from _watching(broker, f"{name}: destination {queue}", queue, route)
            yield from _order(broker, name, queue, route)
            yield from _pace(broker, f"{name}: destination {queue}", queue, route)
            if route.backoff.native and (why := _keeps_no_delay(broker, queue, route)):
                yield Finding("warning", f"{name}: backoff.native", f"{queue}: {why}; delays stay in the ledger")
        yield from _corrections(name, route)
        yield from _review(settings, name)
        yield from _window(settings, name, route, broker)
        if rights := broker.capabilities.untried_rights:
            yield Finding(
                "untried", f"{name}: rights", f"needed, and not tried, as that would change something: {rights}"
            )
        for target in route.notify:
            if target.connection is not None:
                yield _look(f"{name}: notify", partial(_target, target))
        if why := checking.objection(route, broker.capabilities):
            yield Finding("error", f"{name}: processed_check.key", why)
        if route.processed_check:
            yield _look(f"{name}: processed_check", lambda: _check(route))
    finally:
        broker.close()


def _before_the_first_drain(name: str, subject: str, broker: Broker, source: Source) -> Iterator[Finding]:
    """What people should know, and say, of a source of dead letters before anything is taken from it."""
    if source.kind != "dead_letter":
        return
    if not broker.capabilities.takes_back:
        yield Finding(
            "warning",
            f"{subject}: restore",
            "what is drained can't be put back here, nobody can send to such a queue: look first with `redrive run"
            f" {name} --dry-run`, which touches nothing; `redrive restore` leaves unfinished messages in the ledger,"
            " from where people redeliver or discard them",
        )
    longest = broker.capabilities.client_lease
    if source.lease is None and longest is not None:
        yield Finding(
            "warning",
            f"{subject}: lease",
            f"consumers are taken to renew what they hold for {longest}, as their library does unless told otherwise:"
            " where yours are told so, say how long with sources[].lease",
        )


def _corrections(name: str, route: Route) -> Iterator[Finding]:
    """Whether the file that corrected bodies are held against is there, and is a schema."""
    if not isinstance(route.body_schema, str):
        return
    problem = body_schemas.problem(Path(route.body_schema))
    level, text = ("error", problem) if problem else ("ok", f"{route.body_schema} is a JSON Schema")
    yield Finding(level, f"{name}: body_schema", text)


def _review(settings: Settings, name: str) -> Iterator[Finding]:
    """Messages that wait for a person of whom nobody is asked."""
    ledger = Ledger(settings.database)
    try:
        with ledger.read() as connection:
            count = escalations.nobody_asked(connection, name)
    except RedriveError:
        return  # told by the ledger already
    finally:
        ledger.close()
    if count:
        yield Finding(
            "error",
            f"{name}: review",
            f"{count} messages wait for a person, and their rows in escalated_messages are gone: the next run, or"
            f" `redrive escalate {name}`, writes them anew from staging",
        )


def _look(subject: str, question: Callable[[], str]) -> Finding:
    try:
        return Finding("ok", subject, question())
    except RedriveError as error:
        return Finding("error", subject, str(error))
    except Exception as error:
        return _unexpected(subject, error)


def _ledger(settings: Settings) -> str:
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            lacks = ledger.dialect.lacks_reviewers(connection)
        no_role = "; no role redrive_reviewer: have it created, then `redrive db upgrade` gives it its rights"
        return f"{ledger!r} at revision {schema.head()}{no_role if lacks else ''}"
    finally:
        ledger.close()


def _staging(settings: Settings) -> str:
    staging = storage.staging(settings)
    probe = f"doctor-{secrets.token_hex(8)}.probe"  # nobody else's file, and nobody else's doctor
    staging.write_bytes(probe, b"can be written")
    staging.remove(probe)
    return f"{settings.staging} can be written"


def _depth(broker: Broker, queue: str) -> str:
    depth = broker.depth(queue)
    if depth.total is None:
        return "exists; the broker does not tell how many messages are in it"
    return f"{depth.visible} visible, {depth.in_flight} in flight, {depth.delayed} delayed"


def _order(broker: Broker, name: str, queue: str, route: Route) -> Iterator[Finding]:
    """Whether anything tells what became of a message for whose outcome the later ones of its key wait."""
    if route.order_by is None or route.processed_check is not None:
        return
    try:
        if broker.depth(queue).total is not None:
            return
    except RedriveError:
        return  # told by the depth already
    yield Finding(
        "warning",
        f"{name}: order_by",
        f"{queue}: one message of each key goes, and the next when its outcome is known, and nobody tells how much this"
        " destination holds: configure a processed_check, let the connection ask for the depth where the broker has a"
        f" way, or say each time that it has worked, with `redrive release {name} --destination {queue}`",
    )


def _pace(broker: Broker, subject: str, queue: str, route: Route) -> Iterator[Finding]:
    """Whether more may be sent than fits before the broker tells that it lies there, where somebody said what fits.
    Where it tells of when its depth is, what was sent since is added to it."""
    rate = route.rate
    if "max_in_flight" not in rate.model_fields_set:
        return
    with suppress(RedriveError):  # told by the depth already
        lag = broker.capabilities_for(queue).depth_lag
        unseen = int(rate.per_second * lag.total_seconds())
        if unseen > rate.max_in_flight and broker.depth(queue).as_of is None:
            yield Finding(
                "warning",
                f"{subject}: rate",
                f"the broker tells the depth up to {lag} late: while consumers are down, about {unseen:,} messages"
                f" (rate.per_second x {lag.total_seconds():g} s) may be sent beyond rate.max_in_flight"
                f" ({rate.max_in_flight:,}). Where so many do harm, lower rate.per_second, to"
                f" {rate.max_in_flight / lag.total_seconds():.3g} or less",
            )


def _keeps_no_delay(broker: Broker, queue: str, route: Route) -> str | None:
    """Why the broker isn't asked to keep delays, although the route wants it."""
    if route.order_by is not None:
        return "messages go in order (order_by)"
    return "the broker keeps no delays there" if broker.capabilities_for(queue).native_delay is None else None


def _retention(broker: Broker, subject: str, queue: str) -> Iterator[Finding]:
    try:
        info = broker.describe(queue)
    except RedriveError:
        return  # told by the depth already
    if info.dead_letter_queue:
        yield Finding(
            "warning",
            subject,
            f"has a dead-letter queue of its own ({info.dead_letter_queue}): reading it too often moves messages there",
        )
    if info.retention is not None and info.retention < timedelta(days=1):
        yield Finding("warning", subject, f"keeps messages for {info.retention} only; drain it more often than that")
    for warning in info.warnings:
        yield Finding("warning", subject, warning)


def _origins(broker: Broker, subject: str, source: Source, key: str) -> Finding:
    """Where messages of a source without a destination may go back to."""
    subject = f"{subject}: origins"
    try:
        if broker.capabilities_for(source.queue).proves_origin:
            return Finding("ok", subject, "the broker itself says of each message where it failed")
        vouched = broker.origins(source.queue)
    except (QueueMissing, PermissionRefused):
        vouched = None
    except RedriveError as error:
        return Finding("error", subject, str(error))
    told = [f"by the broker's word: {', '.join(sorted(vouched))}"] if vouched else []
    told += [f"by the configuration: {', '.join(source.origins)}"] if source.origins else []
    if not told:
        text = "no destination is configured, and the broker does not say what dead-letters here, so all messages go to"
        return Finding("error", subject, f"{text} people: list their queues under {key}, or configure a destination")
    if "*" in source.origins:
        return Finding("warning", subject, f"{key} lets headers send messages to any queue")
    return Finding("ok", subject, "; ".join(told))


def _without_origin(settings: Settings, name: str, queue: str) -> Iterator[Finding]:
    """Messages of a source that told no origin: who publishes to a dead-letter queue by himself leaves none."""
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            found, lacking = inspecting.without_origin(connection, name, queue)
    except LedgerError:
        return  # it is told already
    finally:
        ledger.close()
    if lacking:
        yield Finding(
            "warning",
            f"{name}: source {queue}: origins",
            f"{lacking:,} of its newest {found:,} messages don't tell where they failed, and go to people: a consumer"
            " that publishes here itself, instead of rejecting, leaves no origin. Configure a destination for this"
            " source, or let it reject",
        )


def _fan_out(broker: Broker, subject: str, queue: str, *, allowed: bool) -> Iterator[Finding]:
    """Who else gets what is redelivered here."""
    try:
        if broker.capabilities_for(queue).single_target:
            return
        readers = broker.describe(queue).subscribers
    except RedriveError:
        return  # told by the depth already
    if readers == 0:
        yield Finding("error", subject, "nobody is subscribed: what is sent there is lost, so it goes to people")
    elif readers != 1:
        several = "it is not known who is" if readers is None else f"{readers} are"
        then = "all of them get what is redelivered" if allowed else "fan_out is refuse, so messages go to people"
        yield Finding("warning", subject, f"{several} subscribed: {then}")


def _returns(broker: Broker, subject: str, queue: str, route: Route) -> Iterator[Finding]:
    """Whether what fails again at a destination comes to a source of the route, as far as the broker tells."""
    for source in route.sources:
        with suppress(RedriveError):
            if queue not in (broker.origins(source.queue) or ()):
                continue
            if completeness.letters_go_to(broker, source.queue, route.sources) is None:
                return
    passed, at = list[str](), queue
    with suppress(RedriveError):  # of the destination it is told by the depth already; what is behind it may be hidden
        while (onward := broker.describe(at).dead_letter_queue) and onward not in passed:
            # A queue in which messages wait leads to the one where they are worked on, and that to the source.
            if any(_is_called(source.queue, onward) for source in route.sources):
                return
            passed.append(at := onward)
    if passed:
        yield Finding(
            "warning",
            f"{subject}: returns",
            f"what fails there again goes to {' and then '.join(passed)}, which this route does not drain: nobody would"
            " see it come back, and it would count as having stayed away. List that queue among the sources",
        )


def _losses(broker: Broker, subject: str, queue: str) -> Iterator[Finding]:
    """By what a destination loses what was sent there."""
    with suppress(RedriveError):  # told by the depth already
        for loss in broker.describe(queue).losses:
            yield Finding("warning", subject, loss)


def _is_called(source: str, name: str) -> bool:
    """Whether a source is the queue that the broker calls ``name``, however its name or address is written."""
    return source.lower() == name.lower() or source.lower().endswith((f"/{name.lower()}", f":{name.lower()}"))


def _watching(broker: Broker, subject: str, queue: str, route: Route) -> Iterator[Finding]:
    """Whether stuck consumers can be found, and closed where the route says so."""
    try:
        can = broker.capabilities_for(queue)
    except RedriveError:
        return  # told by the depth already
    if route.isolation.action == "close_connection" and not can.closes_connections:
        yield Finding(
            "error",
            f"{subject}: isolation.action",
            "close_connection needs the management API, which the connection does not name (extra.management_url)",
        )
    if can.consumer_statistics:
        try:
            for bound in broker.describe(queue).bounds:
                yield Finding("ok", f"{subject}: consumers", bound)
            for one in cast("TellsOfConsumers", broker).consumers(queue):
                if one.blocked:
                    yield Finding(
                        "warning",
                        f"{subject}: consumers",
                        f"{one.consumer} holds {one.unacked:,} messages and is given no more until it acks",
                    )
        except QueueMissing:
            return  # told by the depth already
        except RedriveError as error:
            yield Finding("warning", subject, f"nobody watches its consumers: {error}")


def _window(settings: Settings, name: str, route: Route, broker: Broker) -> Iterator[Finding]:
    """Whether a configured observation window is as long as a failing message may need, and that of ``auto`` no longer
    than people expect."""
    canary = route.canary
    if canary is None:
        return
    subject = f"{name}: canary.observe"
    seen, longest = _time_to_return(settings, name), resolve.redrive_at_origins(broker, route).longest
    returned = f"99 of 100 returns took no longer than {seen}"
    redriven = (
        f"lease x max deliveries = {longest}; if the broker doesn't tell what holds at the origin, say it with"
        " sources[].lease and sources[].max_deliveries"
    )
    if not isinstance(canary.observe, timedelta):
        taken = max(seen or longest, longest)
        if taken > LONG_WINDOW:
            yield Finding(
                "warning",
                subject,
                f"auto watches each send for {taken} ({returned if taken != longest else redriven}), and each stage of"
                " a canary takes at least as long. Where consumers let go of a message sooner than its lease ends, say"
                " after how long with sources[].lease, or set canary.observe once returns have shown what is enough",
            )
    elif canary.observe < (seen or longest):
        text = f"{canary.observe} is shorter than a failing message may need to come back"
        yield Finding("error", subject, f"{text} ({returned if seen else redriven})")
    elif canary.observe < longest:
        text = f"{returned}, but what fails later than any of those passes its canary within {canary.observe}"
        yield Finding("warning", subject, f"{text} ({redriven})")


def _time_to_return(settings: Settings, name: str) -> timedelta | None:
    """What the route's returns have shown so far; None while they are too few, or the ledger can't be read."""
    ledger = Ledger(settings.database)
    try:
        schema.check(ledger)
        with ledger.read() as connection:
            seconds = outcomes.return_times(connection, name)
    except RedriveError:  # told of the ledger already
        return None
    finally:
        ledger.close()
    return None if seconds is None else timedelta(seconds=seconds)


def _target(target: Notify) -> str:
    kind = channels.check(target)
    return f"connection {target.connection} ({kind}); nothing was sent to it"


def _check(route: Route) -> str:
    assert route.processed_check is not None  # noqa: S101 - the caller looked
    checker = Checker(route.processed_check)
    try:
        try:
            checker.processed(["redrive doctor asks"])
        except KeysRefused:  # its keys may be numbers
            checker.processed(["0"])
        return f"connection {route.processed_check.connection} answers"
    finally:
        checker.close()
