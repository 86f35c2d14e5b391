"""What must hold, checked by one who sees only producers, consumers, queues, and what Redrive shows by SQL and files.

Nothing of the product is imported here. The book (``world/book.py``) says what really happened; the ledger's public
tables and views say what Redrive believes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.simulation.decisions import Decisions
from tests.simulation.leases import Leases
from tests.simulation.rule import Broken, Rules, body_hash, micros, own_headers
from tests.simulation.rulings import Rulings
from tests.simulation.sql import Sql
from tests.simulation.terms import Terms
from tests.simulation.world import Copy, System, World
from tests.simulation.world.book import Mark, Place
from tests.simulation.world.systems import SECOND, shown

#: States in which Redrive has let go of a message: it has to be elsewhere.
LET_GO = ("sent", "presumed", "confirmed")
#: SQL: what Redrive still has. What was restored is discarded, and lies in its queue.
KEPT = f"state not in {LET_GO} and not (state = 'discarded' and coalesce(reason, '') like 'It was restored to %')"
#: So many numbers of copies each batch has.
ROWS = 1 << 20
#: Runs after which a gate has moved on: those of its window, and two.
PATIENCE = 4
#: States in which nothing more happens by itself, and people have what they need.
AT_REST = ("presumed", "confirmed", "suppressed", "discarded", "escalated")


class Checker:
    """Looks at one world. ``routes`` is the configuration as it was written."""

    def __init__(self, world: World, routes: dict[str, Any], staging: Path | None = None) -> None:
        self.world = world
        self.book = world.book
        self.routes = routes
        self.current = routes  # as they are configured now
        self.staging = staging
        self.presumed: set[tuple[int, int]] = set()
        self.broken: list[Broken] = []  # found where nothing may be raised: inside of the product's calls
        self.suspected: dict[int, bytes] = {}  # copies that were ever told to be, and their bodies
        self.exact_bounds = True  # nothing else worked while a delivery did
        self.group_sends: dict[tuple[str, int], list[tuple[int, Mark]]] = defaultdict(list)
        self.changed_canaries: set[str] = set()  # routes whose canary people changed on the way
        self.last_event = 0  # of the audit, that was looked at
        self.highest_fence: dict[str, int] = {}
        self.sends_before = 0  # arrivals when the delivery that works now began
        self.all_readers_may = False  # people have said so, of all routes
        self.records: Any = None  # what a consumer wrote down as processed, where there is such a table
        self.known_before: set[str] = set()  # what stood there before the delivery that works now
        self.sql: Sql | None = None
        self.standing_still: dict[tuple[str, int], tuple[tuple[str, int], int]] = {}  # gate -> (stage, allowed), runs
        self.siege_began = 0  # arrivals when its last run ended
        self.siege_runs = 0  # in which something with a key waited, and nothing went
        self.let_go: Counter[bytes] = Counter()  # what retention removed that had not been sent
        self.terms = Terms(self)
        self._told: Mapping[str, int] | None = None  # by a dry run, of the plan that comes
        self._asked = 0  # messages about which people were asked before that
        self.clocks_differed = False  # of two processes that worked on one ledger
        self.leases = Leases(self)
        self.decisions = Decisions(self)
        self.rulings = Rulings(self)
        self.more: list[Rules] = [self.decisions, self.terms, self.leases, self.rulings]
        world.watchers.append(self.sent)
        world.settle_watchers.append(self.settled)

    # --- at every send --------------------------------------------------------------------------------------

    def sent(self, system: System, queue: str, copy: Copy) -> None:
        """A send of Redrive's is about to lie in ``queue``."""
        try:
            self._goes_where_it_may(system, queue)
            self._goes_where_it_goes_now(system, queue, copy)
            self._depth_is_kept(system, queue)
            self._one_reader_or_allowed(system, queue)
            self._not_processed_yet(system, queue, copy)
            self._keeps_its_headers(system, queue, copy)
            self._says_what_it_is(system, queue, copy)
            if self.sql is not None and copy.mark is not None:
                self._canary_is_kept(self.sql, system, queue, copy)
                self._breaker_is_kept(self.sql, queue, copy)
                self._order_is_kept(self.sql, system, queue, copy)
                for rules in self.more if system.queues[queue].dead_letters else ():
                    rules.sent(self.sql, system, queue, copy)
        except Broken as broken:
            self.broken.append(broken)

    def settled(self, system: System, queue: str, copies: list[Copy]) -> None:
        """Redrive is about to settle these in ``queue``."""
        try:
            for rules in self.more if self.sql is not None else ():
                rules.settled(self.sql, system, queue, copies)  # type: ignore[arg-type]
        except Broken as broken:
            self.broken.append(broken)

    def _routes_of(self, system: System) -> list[dict[str, Any]]:
        return [route for route in self.routes.values() if route["connection"] == self.home_of(system.name)]

    def home_of(self, system: str) -> str:
        return self.book.one_for_all.get(system, system)

    def _goes_where_it_may(self, system: System, queue: str) -> None:
        """A destination is configured, or dead-letters into a source; a source gets back what is restored."""
        allowed: set[str] = set()
        for route in self._routes_of(system):
            if "destination" in route:
                allowed.add(route["destination"]["queue"])
            for source in route["sources"]:
                allowed.add(source["queue"])
                if "destination" in source:
                    allowed.add(source["destination"])
                allowed.update(one.name for one in system.queues.values() if one.dead_letters == source["queue"])
        if queue not in allowed and self.book.home((system.name, queue)) == (system.name, queue):
            raise Broken("nothing is sent where nobody said so", f"{system.name}/{queue}")

    def _goes_where_it_goes_now(self, system: System, queue: str, copy: Copy) -> None:
        """Whatever was configured when it came in; an attempt of which nobody knows is sent again where it went."""
        now = [route for route in self.current.values() if route["connection"] == system.name]
        if not system.queues[queue].dead_letters or any("destination" not in route for route in now):
            return
        allowed = {route["destination"]["queue"] for route in now}
        allowed |= {one["destination"] for route in now for one in route["sources"] if "destination" in one}
        before = [one for one in self.book.arrivals if one.copy is not copy and one.body == copy.body]
        if queue not in allowed and all(one.mark != copy.mark for one in before):
            raise Broken("a message goes where the configuration says when it is sent", f"{system.name}/{queue}")

    def _keeps_its_headers(self, system: System, queue: str, copy: Copy) -> None:
        """A message goes out with the headers of its own that one of its copies had."""
        known = [own_headers(one) for _, one in self.book.entries if one.body == copy.body and one.by != "redrive"]
        if known and own_headers(copy) not in known:
            raise Broken("a message keeps its own headers", f"{shown(copy.body)} to {system.name}/{queue}")

    def _says_what_it_is(self, system: System, queue: str, copy: Copy) -> None:
        most = system.traits.max_headers
        if copy.mark is None and system.queues[queue].dead_letters and (most is None or most >= 10):
            raise Broken("a redelivery says its id", f"{shown(copy.body)} to {system.name}/{queue}")

    def _breaker_is_kept(self, sql: Sql, queue: str, copy: Copy) -> None:
        assert copy.mark is not None
        stopped = sql.rows(
            "select 1 from messages m inner join destination_state d on d.route = m.route"
            f" where m.redrive_id = {sql.quoted(copy.mark[0])} and d.destination = {sql.quoted(queue)}"
            " and d.stage = 'tripped'"
        )
        if stopped:
            raise Broken("nothing goes to a destination that is stopped", f"{shown(copy.body)} to {queue}")

    def _depth_is_kept(self, system: System, queue: str) -> None:
        most = [route["rate"]["max_in_flight"] for route in self._routes_of(system) if "rate" in route]
        others = [route for route in self._routes_of(system) if "rate" not in route]
        found = system.queues[queue]
        if most and not others and self.exact_bounds and found.dead_letters and system.traits.depth == "exact":
            depth = len(found.copies()) + 1
            if depth > max(most):
                raise Broken(
                    "a destination is not filled beyond max_in_flight", f"{queue} holds {depth}, {max(most)} allowed"
                )

    def _one_reader_or_allowed(self, system: System, queue: str) -> None:
        if self.all_readers_may or system.traits.subscribers == 1 or not system.queues[queue].dead_letters:
            return
        if not any(route.get("fan_out") == "allow" for route in self._routes_of(system)):
            raise Broken(
                "nobody else gets it unless that is allowed", f"{queue} has {system.traits.subscribers} readers"
            )

    def _not_processed_yet(self, system: System, queue: str, copy: Copy) -> None:
        """What its consumer wrote down before the delivery began is not sent to it again."""
        if self.records is None or not self.exact_bounds or not system.queues[queue].dead_letters:
            return
        if self.records.number(copy.body) in self.known_before:
            raise Broken("what is known to be processed is not sent", shown(copy.body))

    def _canary_is_kept(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        mark = copy.mark
        assert mark is not None
        if not system.queues[queue].dead_letters:
            return  # restored
        rows = sql.rows(
            "select m.route, m.group_id, g.stage, g.allowed, g.stage_at, m.kind from messages m"
            " left join group_state g on g.route = m.route and g.group_id = m.group_id where m.redrive_id = "
            + sql.quoted(mark[0])
        )
        if not rows:
            return
        route, group, stage, allowed, stage_at, kind = rows[0]
        if kind == "delay" or group is None:
            return
        if stage is None:
            raise Broken("what is sent passed a gate", f"group {group} of {route} has none")
        sends = self.group_sends[route, group]
        if mark not in [one for _, one in sends]:
            sends.append((self.world.clock.now, mark))
        if not self.exact_bounds:
            return
        # Who asks for more time has not failed, and makes room; so does a send of which nobody knows.
        more = self.book.numbers["asks"] + self._unknown_sends(sql, route, group)
        self._proves_itself_first(sql, route, group, more)
        if stage in ("canary", "ramp"):
            since = micros(stage_at)
            count = sum(1 for at, _ in sends if at >= since)
            if count > allowed + more:
                raise Broken(
                    "a canary sends no more than its stage allows", f"group {group} of {route}: {count} of {allowed}"
                )

    def _proves_itself_first(self, sql: Sql, route: str, group: int, more: int) -> None:
        """Whatever the ledger says of a group's stage: of a route with a canary no more is under way than ``grow``
        times what has had an outcome."""
        canary = self.routes[route].get("canary", "off")
        if canary == "off" or route in self.changed_canaries:
            return
        ended = {
            (row[0], row[1])
            for row in sql.rows(
                "select m.redrive_id, a.attempt from redelivery_attempts a inner join messages m"
                " on m.message_id = a.message_id where a.outcome is not null"
                f" and a.group_id = {group} and a.route = {sql.quoted(route)}"
            )
        }
        under_way = len({mark for _, mark in self.group_sends[route, group]} - ended)
        most = max(canary["first"], len(ended) + 1, int(len(ended) * canary["grow"])) + more
        if under_way > most:
            raise Broken(
                "a group proves itself before more of it goes",
                f"group {group} of {route}: {under_way} under way, {len(ended)} have an outcome",
            )

    def _unknown_sends(self, sql: Sql, route: str, group: int) -> int:
        return int(
            sql.value(
                "select count(*) from redelivery_attempts where unknown_at is not null and group_id ="
                f" {group} and route = {sql.quoted(route)}"
            )
        ) + sum(self.book.numbers[f"fault publish {how}"] for how in ("lost", "error", "retry", "refused"))

    def _order_is_kept(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        route = next((one for one in self._routes_of(system) if "order_by" in one), None)
        mark = copy.mark
        if route is None or mark is None or not system.queues[queue].dead_letters:
            return
        earlier = sql.rows(
            "select e.message_id, e.state from messages m inner join messages e on e.order_key = m.order_key"
            " and e.route = m.route and ((e.first_enqueued_at, e.message_id) < (m.first_enqueued_at, m.message_id)"
            # One whose time nobody tells may be older than all others.
            " or (e.first_enqueued_at is null and (m.first_enqueued_at is not null or e.message_id < m.message_id)))"
            " and e.state in ('classified', 'waiting', 'held', 'sending', 'unknown', 'returned', 'to_review',"
            " 'escalated', 'expired')"
            f" where m.redrive_id = {sql.quoted(mark[0])}"
        )
        if earlier:
            raise Broken("messages of a key go in order", f"{shown(copy.body)} was sent before {earlier}")

    # --- after every step -------------------------------------------------------------------------------------

    def after_step(self, sql: Sql) -> None:
        """What holds at any moment."""
        if self.broken:
            raise self.broken[0]
        self.it_adds_up(sql)
        self.no_attempt_arrives_twice(sql)
        self.nothing_is_over_its_cap(sql)
        self.nothing_is_done_twice_in_silence(sql)
        self.who_was_replaced_is_still(sql)
        self.no_forged_id_is_taken(sql)
        self.standing_is_for_its_group(sql)
        self.suppressed_was_processed(sql)
        if self.book.numbers["questions that somebody could delete"]:
            raise Broken("a question that waits for a person can't be deleted", "the statement was not refused")
        for rules in self.more:
            rules.after_step(sql)

    def suppressed_was_processed(self, sql: Sql) -> None:
        if self.records is None:
            return
        known = {body_hash(body) for _, body in self.book.owed if self.records.number(body) in self.records.known}
        for message, digest in sql.rows("select message_id, body_hash from messages where state = 'suppressed'"):
            if bytes(digest) not in known:
                raise Broken("suppressed means that it was processed", str(message))

    def who_was_replaced_is_still(self, sql: Sql) -> None:
        """In the order in which the ledger tells it, no run changes a route after a later run has begun to."""
        for event, run, route, fence in sql.rows(
            "select e.event_id, e.run_id, r.route, r.fence from audit_events e inner join runs r"
            f" on r.run_id = e.run_id where e.event_id > {self.last_event} order by e.event_id"
        ):
            self.last_event = event
            if fence < self.highest_fence.get(route, 0):
                raise Broken("a run that was replaced changes nothing", f"{run} of {route}, event {event}")
            self.highest_fence[route] = fence

    def no_forged_id_is_taken(self, sql: Sql) -> None:
        """An id that somebody made up in this ledger's name is on no message but that which the ledger gives it to."""
        for name, body in self.book.forged:
            number = int(name.rpartition("-")[2], 16)
            for message, digest in sql.rows(
                f"select message_id, body_hash from messages where redrive_id = {sql.quoted(name)}"
            ):
                if message != number and bytes(digest) == body_hash(body):
                    raise Broken("an id in a header is a claim and no proof", f"{message} is called {name}")

    def it_adds_up(self, sql: Sql) -> None:
        for row in sql.rows(
            "select route, copies_difference, messages_difference, settled_difference from message_balance"
        ):
            if any(row[1:]):
                raise Broken("it adds up", f"message_balance of {row[0]}: {row[1:]}")

    def no_attempt_arrives_twice(self, sql: Sql) -> None:
        """The same attempt reaches a consumer's queue more than once only if the first was known to be unknown."""
        arrived: Counter[Mark] = Counter()
        for one in self.book.arrivals:
            if one.mark is not None and one.copy is not None and self._is_live(one.place):
                arrived[one.mark] += 1
        twice = {mark: count for mark, count in arrived.items() if count > 1}
        if not twice:
            return
        unknown = {
            (row[0], row[1])
            for row in sql.rows(
                "select m.redrive_id, a.attempt from redelivery_attempts a inner join messages m"
                " on m.message_id = a.message_id where a.unknown_at is not null"
            )
        }
        for mark, count in twice.items():
            lost = sum(1 for one in self.book.arrivals if one.mark == mark and not one.known)
            lost_with_the_ledger = sum(1 for one in self.book.forgotten if one.mark == mark)
            # Each try whose process died may have been one more.
            tries = max(lost + self.book.numbers["deaths"], 1) if mark in unknown else 0
            if count > 1 + lost_with_the_ledger + tries:
                raise Broken("an attempt is sent once, unless it was unknown before", f"{mark} arrived {count} times")

    def nothing_is_over_its_cap(self, sql: Sql) -> None:
        caps = {
            name: route.get("requeue_attempts", 2) + route.get("delay_attempts", 5)
            for name, route in self.routes.items()
        }
        for route, message, releases, released, others in sql.rows(
            "select m.route, m.message_id, m.releases, sum(case when a.mode = 'release' then 1 else 0 end),"
            " sum(case when a.mode <> 'release' then 1 else 0 end) from redelivery_attempts a"
            " inner join messages m on m.message_id = a.message_id group by m.route, m.message_id, m.releases"
        ):
            # One whose cause is not known goes once, as a canary, whatever the caps are.
            if released > releases or others > max(caps[route], 1) + 1:
                raise Broken(
                    "no message is sent more often than its caps allow", f"{message} of {route}: {others}, {released}"
                )

    def nothing_is_done_twice_in_silence(self, sql: Sql) -> None:
        """A second processing was announced, or the world is its cause."""
        over = [
            (key, count) for key, count in self.book.done.items()
            if count > self.book.owed[key] + len(self.book.excused[key]) and self.book.owed[key]
        ]  # fmt: skip
        for (place, body), count in over:
            announced = self.announced(sql, body)
            allowed = self.book.owed[place, body] + len(self.book.excused[place, body])
            if count > allowed + announced:
                raise Broken(
                    "every second processing is announced",
                    f"{shown(body)} was processed {count} times at {'/'.join(place)}; {allowed} have a cause,"
                    f" {announced} announced",
                )

    def announced(self, sql: Sql, body: bytes) -> int:
        """How often Redrive has said that this may be done twice."""
        digest = body_hash(body)
        literal = f"x'{digest.hex()}'" if sql.sqlite else f"'\\x{digest.hex()}'::bytea"
        tries = Counter(one.mark for one in self.book.arrivals if one.body == body and one.copy is not None)
        # Each try of an attempt whose fate nobody knows is one; no_attempt_arrives_twice bounds them. Where there was
        # no room for our headers, the body tells which.
        unknown = sum(
            max(1, (tries[row[0], row[1]] or tries[None]) - 1)
            for row in sql.rows(
                "select m.redrive_id, a.attempt from redelivery_attempts a inner join messages m"
                f" on m.message_id = a.message_id where a.unknown_at is not null and m.body_hash = {literal}"
            )
        )
        suspected = sum(1 for found in self.suspected.values() if found == digest)
        # A ledger from a backup knows nothing of what was sent since, and asks people about all that it has.
        forgotten = sum(1 for one in self.book.forgotten if one.body == body)
        if forgotten and not self.book.asked_late:
            forgotten *= sql.value(
                "select count(*) > 0 from escalated_messages e inner join messages m on m.message_id = e.message_id"
                f" where m.body_hash = {literal}"
            )
        return unknown + int(suspected) + forgotten

    def keep(self) -> None:
        """A backup of the ledger is made."""
        for rules in self.more:
            rules.keep()

    def forget(self) -> None:
        """The ledger is an older one: what it said since counts no more."""
        for rules in self.more:
            rules.forget()
        self.presumed.clear()
        self.group_sends.clear()
        self.last_event = 0
        self.highest_fence.clear()

    def after_stage(self, stage: str, sql: Sql, route: str, shards: int = 1) -> None:
        """Within a run: words are honest when they are said."""
        for rules in self.more:
            rules.after_stage(sql, stage, route)
        if stage == "deliver":
            self.little_is_in_doubt(route, shards)
            self.rate_is_kept(route, shards)
        if stage == "drain":
            self.nothing_is_left_to_expire(route)
        if self.records is not None:
            self.known_before = set(self.records.known)
        self.sends_before = len(self.book.arrivals)
        if stage == "resolve":
            self.presumed_has_left(sql)
        if stage == "load":
            self.returned_came_back(sql)
            for copy_id, digest in sql.rows(
                "select r.copy_id, m.body_hash from repeat_copies r inner join messages m"
                " on m.message_id = r.message_id where r.kind = 'suspected'"
            ):
                self.suspected[copy_id] = bytes(digest)

    def after_run(
        self, sql: Sql, routes: dict[str, Any], route: str, status: str, error: object, trouble: dict[str, Any]
    ) -> None:
        """Within the step: how a run ended. ``routes``: as they are configured now."""
        if status == "interrupted" and sql.value(
            f"select count(*) from route_state where run_id is not null and route = {sql.quoted(route)}"
        ):
            raise Broken("who is interrupted lets go of the route", route)
        if status == "failed" and type(error).__name__ == "LedgerUnavailable" and "ledger" not in trouble:
            raise Broken("an outage is called so only where there is one", str(error)[:200])
        for name, one in routes.items():
            queue = one.get("destination", {}).get("queue")
            if queue is None or queue in self.world.systems[one["connection"]].queues:
                continue
            asked = sql.rows(
                f"select message_id from messages where route = {sql.quoted(name)} and state in ('to_review',"
                f" 'escalated') and reason like {sql.quoted(f'%{queue}%')}"
            )
            if asked:
                raise Broken("a destination that is missing is no message's fault", f"{asked} are with people")

    def foretold(self, sql: Sql, route: str, told: Mapping[str, int]) -> None:
        """What a dry run ``told`` before a plan, by verdict: in it is each message once that is still to be sent."""
        states = self._open_states(sql, route)
        if sum(told.values()) != sum(states.values()):
            raise Broken("a dry run tells of each message once", f"{dict(told)} of {states} on {route}")
        # Which of what is new waits for an earlier one of its key no dry run says. Nor does one tell what the plan
        # makes of decisions, which it carries out first: a release changes gates.
        in_order = states["classified"] and self.routes[route].get("order_by")
        self._asked = self._asked_already(sql, route)
        self._told = None if in_order or self._people_decided(sql, route) else told

    def came_true(self, sql: Sql, route: str) -> None:
        """The plan has done what the dry run before it told."""
        if self._told is None:
            return
        states = self._open_states(sql, route)
        again = self._asked_already(sql, route) - self._asked  # released, and their canary failed
        found = {"hold": states["held"], "escalate": states["to_review"] + states["expired"] + again}
        if any(self._told[verdict] != count for verdict, count in found.items()):
            raise Broken("a plan does what a dry run told", f"{dict(self._told)}, then {states} on {route}")

    def _asked_already(self, sql: Sql, route: str) -> int:
        ((count,),) = sql.rows(
            f"select count(*) from messages where route = {sql.quoted(route)} and state = 'escalated'"
        )
        return int(count)

    def _people_decided(self, sql: Sql, route: str) -> bool:
        rows = sql.rows(
            # Of a suspected copy there is no message before the plan.
            "select 1 from escalated_messages reviews left join messages on messages.message_id = reviews.message_id"
            f" where reviews.route = {sql.quoted(route)} and status = 'decided' and coalesce(state, 'escalated') in"
            " ('escalated', 'restore_unknown') union all select 1 from standing_decisions where revoked_at is null"
        )
        return bool(list(rows))

    def _open_states(self, sql: Sql, route: str) -> Counter[str]:
        rows = sql.rows(
            f"select state, count(*) from messages where route = {sql.quoted(route)} and state in"
            " ('classified', 'waiting', 'held', 'to_review', 'expired', 'unknown') group by state"
        )
        return Counter(dict(rows))

    def pages_show_their_own(self, pages: dict[str, str]) -> None:
        """Somebody who may read one route is shown no words that only others' messages say."""
        own: dict[str, set[str]] = defaultdict(set)
        for (system, queue), words in self.book.words.items():
            for name, route in self.routes.items():
                if self._leads(system, queue, route):
                    own[name] |= words
        for name, page in pages.items():
            for word in set().union(*self.book.words.values()) - own[name] if self.book.words else ():
                if word in page:
                    raise Broken("a page shows nothing of a route that its reader may not read", f"{word} on {name}")

    def _leads(self, system: str, queue: str, route: dict[str, Any]) -> bool:
        dead = self.world.systems[system].queues[queue].dead_letters
        return route["connection"] == system and any(source["queue"] == dead for source in route["sources"])

    def begin_siege(self) -> None:
        self.standing_still.clear()
        self.siege_began, self.siege_runs = len(self.book.arrivals), 0

    def gates_move_on(self, sql: Sql, route: str) -> None:
        """However much comes in: a gate whose consumer is well knows its outcome within its window and two runs."""
        for group, stage, allowed in sql.rows(
            "select group_id, stage, allowed from group_state g where stage in ('canary', 'ramp') and sent >= allowed"
            f" and route = {sql.quoted(route)} and exists (select 1 from messages m where m.route = g.route"
            " and m.group_id = g.group_id and m.state in ('waiting', 'held'))"
        ):
            before, runs = self.standing_still.get((route, group), (None, 0))
            runs = runs + 1 if before == (stage, allowed) else 0
            self.standing_still[route, group] = ((stage, allowed), runs)
            if runs > PATIENCE:
                raise Broken("a gate moves on whatever comes in", f"group {group} of {route}: {stage} of {allowed}")
        keyed = "order_by" in self.routes[route] and sql.value(
            f"select count(*) from messages m where route = {sql.quoted(route)} and order_key is not null"
            " and state = 'waiting' and not exists (select 1 from messages e where e.route = m.route"
            " and e.order_key = m.order_key and e.message_id <> m.message_id"
            " and e.state not in ('waiting', 'presumed', 'confirmed', 'suppressed', 'discarded'))"
        )
        sent = any(
            name == "customer"
            for one in self.book.arrivals[self.siege_began :]
            for name, *_ in (one.copy.headers if one.copy else ())
        )
        self.siege_began = len(self.book.arrivals)
        self.siege_runs = self.siege_runs + 1 if keyed and not sent else 0
        if self.siege_runs > PATIENCE:
            raise Broken("a gate moves on whatever comes in", f"nothing of {route} is sent, and {keyed} wait")

    def rate_is_kept(self, route: str, shards: int) -> None:
        """At every instant of a delivery: no more than the rate allows since any earlier one, and a second's worth."""
        if not self.exact_bounds or "rate" not in self.routes[route]:
            return
        rate = self.routes[route]["rate"]["per_second"]
        burst = max(rate, shards)  # each shard has its part, and at least one at a time
        if self.world.systems[self.routes[route]["connection"]].traits.client != "plain":
            burst += self.routes[route]["deliver"]["confirm_window"]  # a real adapter repeats what was throttled
        times = [one.at for one in self.book.arrivals[self.sends_before :]]
        for first, begun in enumerate(times):
            for last in range(first + 1, len(times)):
                if last - first + 1 > burst + rate * (times[last] - begun) / SECOND + 0.001:
                    raise Broken(
                        "no more is sent in a second than the rate allows",
                        f"{last - first + 1} in {(times[last] - begun) / SECOND:g} s on {route}",
                    )

    def nothing_is_left_to_expire(self, route: str) -> None:
        """What a queue keeps for less than a minute more is drained, whatever the limit of a run."""
        system = self.world.systems[self.routes[route]["connection"]]
        if not self.exact_bounds or system.traits.shuffles or system.traits.ordered or system.traits.depth != "exact":
            return
        if system.traits.ids == "none":
            return  # of many nobody knows how old they are
        for source in self.routes[route]["sources"]:
            queue = system.queues[source["queue"]]
            if queue.retention is None:
                continue
            for copy in queue.ready:
                if copy.enqueued_at + (queue.retention - 60) * SECOND < self.world.clock.now:
                    raise Broken(
                        "what would expire is drained beyond the limit", f"{shown(copy.body)} lies there still"
                    )

    def standing_is_for_its_group(self, sql: Sql) -> None:
        """What was decided by a standing decision is of its group and route, came after it, and before its end."""
        for standing, row, wrong, at in sql.rows(
            "select s.standing_id, e.escalation_id, e.group_id <> s.group_id or e.decided_at >= s.until_at"
            " or e.escalated_at < s.created_at or coalesce(s.route, e.route) <> e.route, e.decided_at"
            " from standing_decisions s inner join escalated_messages e"
            " on e.note like 'standing decision ' || s.standing_id || ':%'"
        ):
            if wrong or micros(at) > self.book.revoked.get(standing, micros(at)):
                raise Broken("a standing decision holds for its group and its time", f"{standing} decided row {row}")

    def little_is_in_doubt(self, route: str, shards: int) -> None:
        """Where no answer comes back, a delivery stops after the window that it is in."""
        if not self.exact_bounds:
            return
        # The end of a window whose beginning was confirmed, and then a whole one.
        most = (2 * self.routes[route]["deliver"]["confirm_window"] - 1) * shards
        in_doubt: Counter[Place] = Counter()
        for one in self.book.arrivals[self.sends_before :]:
            in_doubt[one.place] = 0 if one.known else in_doubt[one.place] + 1
            if in_doubt[one.place] > most:
                raise Broken(
                    "a broker that confirms nothing gets one window",
                    f"{in_doubt[one.place]} in a row to {one.place[1]} without an answer",
                )

    def presumed_has_left(self, sql: Sql) -> None:
        """What is presumed good has at least been given to a consumer, and didn't lie dead in a source by then."""
        rows = sql.rows(
            "select a.message_id, a.attempt, m.redrive_id, m.route from redelivery_attempts a inner join messages m"
            " on m.message_id = a.message_id where a.outcome = 'presumed'"
        )
        new = [row for row in rows if (row[0], row[1]) not in self.presumed]
        self.presumed |= {(row[0], row[1]) for row in new}
        if not new:
            return
        marks = {(redrive_id, attempt) for _, attempt, redrive_id, _ in new}
        for place, copy in self.world.copies():
            if copy.by == "redrive" and copy.mark in marks and self._is_live(place):
                if not copy.seen_by_consumer:
                    raise Broken(
                        "presumed means that a consumer had it", f"{shown(copy.body)} still lies in {place[1]}"
                    )
                if self._is_held(place, copy):
                    raise Broken("presumed means that a consumer is done", f"{shown(copy.body)} is held in {place[1]}")
            elif not self._is_live(place) and self._emptiness_alone(place[0]):
                back = {one.mark for one in copy.sends() if one.by == "redrive"} & marks
                if back and copy.failed_at is not None:
                    raise Broken("presumed means that it is not back", f"{shown(copy.body)} lies in {place[1]}")

    def _is_held(self, place: Place, copy: Copy) -> bool:
        """A consumer has it, and nothing says more of it than that its queue was empty: what came later is there."""
        system = self.world.systems[place[0]]
        if system.traits.depth not in ("exact", "late") or system.traits.client.startswith("sqs"):
            return False
        if all(one is not copy for one, _ in system.queues[place[1]].flight.values()):
            return False
        return not any(at == place and one.number > copy.number and one.gone for at, one in self.book.entries)

    def _emptiness_alone(self, system: str) -> bool:
        """Only a look at an empty queue says there that consumers have had what it held."""
        able = self.world.systems[system].traits
        told = able.depth in ("exact", "late") and able.client == "plain" and (able.shuffles or able.ordered)
        return told and not self.book.numbers["runs with another clock"]

    def returned_came_back(self, sql: Sql) -> None:
        """What is called returned has come back from where it was sent."""
        places: dict[Mark, set[Place]] = defaultdict(set)
        for one in self.book.arrivals:
            if one.mark is not None and self._is_live(one.place):
                places[one.mark].add(one.place)
        back: set[Mark] = set()
        for _, failed_at, copy in self.book.deaths:
            for sent in copy.sends():
                if sent.by == "redrive" and sent.mark is not None and failed_at in places[sent.mark]:
                    back.add(sent.mark)
            if copy.mark is not None and failed_at in places[copy.mark] and not copy.fresh:
                back.add(copy.mark)  # the marks, the place: nobody could tell
        for redrive_id, attempt in sql.rows(
            "select m.redrive_id, a.attempt from redelivery_attempts a inner join messages m"
            " on m.message_id = a.message_id where a.outcome = 'returned'"
        ):
            if (redrive_id, attempt) not in back and (redrive_id, attempt) in places:
                raise Broken("returned means that it came back", f"{redrive_id};{attempt} did not")

    # --- at the end -------------------------------------------------------------------------------------------

    def unrest(self, sql: Sql, only: str | None = None, without: Iterable[int] = ()) -> list[str]:
        """What is not at rest yet, of all routes or one; ``without`` what is in these batches."""
        left_out = ", ".join(map(str, (-1, *without)))
        found = [
            f"{count} {state} on {route}"
            for route, state, count in sql.rows(
                f"select route, state, count(*) from messages where copy_id / {ROWS} not in ({left_out})"
                " and not (state in ('waiting', 'held') and exists"
                # What comes after a message that people have, in its order, waits as long as they do.
                " (select 1 from messages theirs where theirs.route = messages.route and theirs.state = 'escalated'"
                " and theirs.order_key = messages.order_key)) group by route, state"
            )
            if state not in AT_REST
            and only in (None, route)
            and not self._never_knows(route, state)
            and not (state == "sent" and self._was_left_alone(sql, route))
        ]
        found += [
            f"{count} copies staged and not loaded"
            for (count,) in sql.rows(
                "select sum(copies) from staging_batches where state in ('recorded', 'settled') and loaded_at is null"
                f" and batch_id not in ({left_out})"
            )
            if count
        ]
        routes = self.routes.values() if only is None else [self.routes[only]]
        drained = {(r["connection"], source["queue"]) for r in routes for source in r["sources"]}
        lying = Counter(
            place for place, _ in self.world.copies() if place in drained or (only is None and self._is_live(place))
        )
        found += [f"{count} in {place[0]}/{place[1]}" for place, count in lying.items()]
        return found

    def _never_knows(self, route: str, state: str) -> bool:
        """Where nobody tells how many messages a queue holds, a send that doesn't come back stays just that: sent, and
        so does what waits for its outcome. So does what was sent to a broker that the route has left."""
        if self.book.one_for_all:
            return state in ("sent", "held")
        if self.world.systems[self.routes[route]["connection"]].traits.depth != "unknown":
            return False
        bounded = {"order_by", "rate"} & self.routes[route].keys()  # max_in_flight counts what has no outcome there
        return state in ("sent", "held") or (state == "waiting" and bool(bounded))

    def _was_left_alone(self, sql: Sql, route: str) -> bool:
        """No good run of the route began for longer than one of its sources keeps messages: what had come back there
        may be lost, so nobody can say that it had not."""
        units = {"s": SECOND, "d": 86_400 * SECOND}
        told = [source["retention"] for source in self.routes[route]["sources"] if "retention" in source]
        starts = [
            micros(at)
            for (at,) in sql.rows(
                f"select started_at from runs where route = {sql.quoted(route)} and status = 'succeeded'"
                " and \"trigger\" not in ('review', 'restore') order by started_at"
            )
        ]
        longest = max((later - earlier for earlier, later in pairwise(starts)), default=0)
        return any(longest > int(one[:-1]) * units[one[-1]] for one in told)

    def at_the_end(self, sql: Sql) -> None:
        """Everything came to rest: nothing is missing, nothing was sent that was not received."""
        self.after_step(sql)
        self.returned_came_back(sql)
        self.nothing_is_missing(sql)
        self.nothing_is_made_up(sql)
        self.escalated_can_be_decided(sql)
        self.confirmed_was_processed(sql)
        self.what_waits_goes_somewhere(sql)
        for rules in self.more:
            rules.at_the_end(sql)

    def what_waits_goes_somewhere(self, sql: Sql) -> None:
        """However a destination was called before: what is still to be sent goes to a queue that is there."""
        for route, destination, count in sql.rows(
            "select route, destination, count(*) from messages where destination is not null and state in"
            " ('classified', 'waiting', 'held', 'to_review', 'escalated', 'expired') group by route, destination"
        ):
            if destination not in self.world.systems[self.routes[route]["connection"]].queues:
                raise Broken("a mended destination holds for all that waits", f"{count} of {route} for {destination}")

    def _places(self, system: str, source: str, body: bytes) -> list[Place]:
        """Where copies of ``body`` in this source had failed."""
        found = [failed_at for _, failed_at, copy in self.book.deaths if copy.body == body
                 and self.home_of(failed_at[0]) == self.home_of(system)]  # fmt: skip
        return list(dict.fromkeys(found))

    def nothing_is_missing(self, sql: Sql) -> None:
        bodies = {body_hash(body): body for _, body in self.book.owed}
        kept: Counter[tuple[Place, bytes]] = Counter()
        for route, source, destination, digest, count in sql.rows(
            "select route, source, destination, body_hash, count(*) from messages"
            f" where {KEPT} group by route, source, destination, body_hash"
        ):
            body = bodies.get(bytes(digest))
            if body is None:
                continue
            system = self.routes[route]["connection"]
            known = destination is not None and (system, destination) in {place for place, _ in self.book.owed}
            for place in [(system, destination)] if known else self._places(system, source, body):
                kept[self.book.home(place), body] += count
        # Suspected copies lie before a person with their payload.
        for route, digest, source in sql.rows(
            "select r.route, m.body_hash, r.source from repeat_copies r inner join messages m"
            " on m.message_id = r.message_id where r.kind = 'suspected'"
        ):
            body = bodies.get(bytes(digest))
            if body is not None:
                for place in self._places(self.routes[route]["connection"], source, body):
                    kept[self.book.home(place), body] += 1
        for place, copy in self.world.copies():
            for one in [place] if self._is_live(place) else self._places(place[0], place[1], copy.body):
                kept[self.book.home(one), copy.body] += 1
        for (place, body), owed in self.book.owed.items():
            done = sum(self.book.done[place, one] for one in (body, *self.book.edited[body]))
            found = done + kept[place, body] + self.book.lost[place, body] + self.let_go[body_hash(body)]
            if found < owed:
                state = sql.rows(
                    "select message_id, state, route, destination, attempts from messages where body_hash = "
                    + (f"x'{body_hash(body).hex()}'" if sql.sqlite else f"'\\x{body_hash(body).hex()}'::bytea")
                )
                raise Broken(
                    "nothing is lost",
                    f"{shown(body)} of {'/'.join(place)}: {owed} made, {done} processed, {kept[place, body]} kept;"
                    f" the ledger says {state}",
                )

    def nothing_is_made_up(self, sql: Sql) -> None:
        """What came into a source is what went out, what is kept, and what was announced as uncertain."""
        sources = {(r["connection"], s["queue"]) for r in self.routes.values() for s in r["sources"]}
        came: Counter[bytes] = Counter(
            copy.body for place, copy in self.book.entries if self.book.home(place) in sources
        )
        went: Counter[bytes] = Counter()
        for one in self.book.arrivals:
            if one.copy is not None:
                went[one.body] += 1
        kept = {
            bytes(digest): count
            for digest, count in sql.rows(
                f"select body_hash, count(*) from messages where {KEPT} and state <> 'discarded' group by body_hash"
            )
        }
        for body, count in went.items():
            if body not in came:
                continue  # edited
            allowed = came[body] + self.announced(sql, body)
            if count + kept.get(body_hash(body), 0) > allowed:
                raise Broken(
                    "each copy that came in goes out once",
                    f"{shown(body)}: {came[body]} came in, {count} went out, {kept.get(body_hash(body), 0)} kept",
                )

    def escalated_can_be_decided(self, sql: Sql) -> None:
        lonely = sql.rows(
            "select message_id from messages m where state = 'escalated' and not exists (select 1 from"
            " escalated_messages e where e.message_id = m.message_id and e.status <> 'applied')"
        )
        if lonely:
            raise Broken("what is escalated lies before a person", f"{lonely} have no row")

    def confirmed_was_processed(self, sql: Sql) -> None:
        done = {one.body for one in self.book.processed}
        # What people corrected goes by the body of before.
        done |= {body for body, mended in self.book.edited.items() if mended & done}
        digests = {body_hash(body) for body in done}
        for message, digest in sql.rows("select message_id, body_hash from messages where state = 'confirmed'"):
            if bytes(digest) not in digests:
                raise Broken("confirmed means that it was processed", str(message))

    def _is_live(self, place: Place) -> bool:
        """A queue that consumers read: it dead-letters."""
        found = self.world.systems[place[0]].queues.get(place[1])
        return found is not None and found.dead_letters is not None
