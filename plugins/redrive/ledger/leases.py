"""One run per route: the lease, its fencing token, and pausing.

A lease is held by (route, run id) and carries a fence that grows with every acquisition. Every write of a run
is within :meth:`Ledger.under <redrive.ledger.engine.Ledger.under>`, which renews the lease and fails if another run
took the route, so a stalled process can't write after it was replaced.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.errors import RouteBusy, RoutePaused
from redrive.ledger import configurations
from redrive.ledger.delivery import breakers
from redrive.ledger.drain import horizon
from redrive.ledger.engine import Ledger, parse_instant, sql
from redrive.ledger.moves import record_event
from redrive.ledger.transactions import MACHINE, RouteLease, RunTransaction, Transaction
from redrive.lifecycle import Plan

#: Among the counts of a run that was begun anew: what its stages reported before, each the last time.
_BEFORE: Final = "before"


def acquire(
    ledger: Ledger,
    route: str,
    run_id: str,
    *,
    holder: str,
    trigger: str,
    ttl: timedelta,
    now: datetime,
    selection: Mapping[str, Any] | None = None,
    airflow_run_id: str | None = None,
    even_if_paused: bool = False,
    system: str = "",
    configuration: tuple[str, str] | None = None,
) -> RouteLease:
    """Take the route for ``run_id``, which works with the broker and connection ``system``, and with the
    ``configuration`` of this hash and text.

    Raises :class:`RouteBusy` (naming the holder and until when) while another run's lease lasts, and
    :class:`RoutePaused` when people paused the route. A lease that ran out is taken over: its run is marked
    ``replaced`` and its fence is void.
    """
    with ledger.write() as connection:
        connection.execute(
            sql("insert into route_state (route) values (:route) on conflict (route) do nothing"),
            {"route": route},
        )
        row = connection.execute(
            sql(
                "select run_id, holder, lease_until, paused_at, paused_by, pause_reason, fence, system from route_state"
                " where route = :route" + ledger.dialect.for_update
            ),
            {"route": route},
        ).one()
        if row.paused_at is not None and not even_if_paused:
            raise RoutePaused(f"route {route} is paused by {row.paused_by}: {row.pause_reason}")
        lease_until = parse_instant(row.lease_until)
        if row.run_id is not None and row.run_id != run_id and lease_until is not None and lease_until > now:
            raise RouteBusy(
                f"route {route} is held by run {row.run_id} ({row.holder}) until {lease_until:%Y-%m-%d %H:%M:%S} UTC"
            )
        lease = RouteLease(route, run_id, row.fence + 1, ttl)
        replaces = row.run_id is not None and row.run_id != run_id
        if replaces:
            connection.execute(
                sql(
                    "update runs set status = 'replaced', finished_at = :now where run_id = :old and status = 'running'"
                ),
                {"now": now, "old": row.run_id},
            )
        name = configuration[0] if configuration else None
        known = configurations.before(connection, route)
        if configuration:
            configurations.keep(connection, *configuration, now)
        connection.execute(
            sql(
                "update route_state set run_id = :run_id, holder = :holder, lease_until = :until_at, fence = :fence"
                " where route = :route"
            ),
            {"run_id": run_id, "holder": holder, "until_at": now + ttl, "fence": lease.fence, "route": route},
        )
        told = written_counts(connection, run_id)
        before = told.get(_BEFORE, {}) | {stage: counts for stage, counts in told.items() if stage != _BEFORE}
        connection.execute(
            sql(
                'insert into runs (run_id, route, "trigger", holder, fence, selection, status, started_at,'
                " airflow_run_id, configuration) values (:run_id, :route, :trigger, :holder, :fence, :selection,"
                " 'running', :now, :airflow_run_id, :configuration) on conflict (run_id) do update set"
                " fence = excluded.fence, status = 'running', started_at = excluded.started_at, began_at = null,"
                " finished_at = null, counts = :counts, configuration = excluded.configuration"
            ),
            {
                "counts": json.dumps({_BEFORE: before} if before else {}),
                "run_id": run_id,
                "route": route,
                "trigger": trigger,
                "holder": holder,
                "fence": lease.fence,
                "selection": json.dumps(selection or {}, default=str),
                "now": now,
                "airflow_run_id": airflow_run_id,
                "configuration": name,
            },
        )
        tx = RunTransaction(ledger.dialect, connection, lease, now)
        if replaces:
            why = f"the lease of run {row.run_id} ({row.holder}) ran out at {lease_until}"
            record_event(tx, Action.TAKE_OVER_ROUTE, reason=why)
        if name and known and known != name:
            why = f"{configurations.shown(name)}, before {configurations.shown(known)}"
            record_event(tx, Action.CHANGE_CONFIGURATION, reason=why)
        if system and system != row.system:
            _move(tx, row.system, system)
    return lease


def _move(tx: RunTransaction, before: str, system: str) -> None:
    """From this run on the route's queues are on another ``system``: what is known of queues, consumers and failures
    there is nothing, whatever the queues are called. What was sent before is judged by what is seen where it went. What
    was to be sent again because the broker would drop a second is to be decided anew: this one never saw the first.
    """
    values = {"system": system}
    tx.execute(sql("update route_state set system = :system where route = :route"), values)
    if not before:  # the ledger is older than this column: it was there all the time
        for table in ("delivery_slices", "staging_batches"):
            tx.execute(sql(f"update {table} set system = :system where route = :route and system = ''"), values)
        return
    horizon.forget(tx, system=before)
    tx.execute(sql("delete from consumer_health where route = :route"))
    tx.execute(
        sql("update messages set plan = null where route = :route and state = 'unknown' and plan = :repeat"),
        {"repeat": Plan.REPEAT},
    )
    reason = f"The route moved from {before} to {system}."
    breakers.move_route(tx, reason)
    record_event(tx, Action.MOVE_ROUTE, reason=reason)


def predecessor_died(ledger: Ledger, lease: RouteLease) -> bool:
    """Whether the run of this route before this one did not end well, or this one was begun before."""
    with ledger.read() as connection:
        before = connection.execute(
            sql("select status, fence from runs where route = :route and fence < :fence order by fence desc limit 1"),
            {"route": lease.route, "fence": lease.fence},
        ).first()
    return lease.fence > 1 and (before is None or before.status != "succeeded" or before.fence != lease.fence - 1)


def release(ledger: Ledger, lease: RouteLease, *, status: str, now: datetime) -> bool:
    """End the run and give the route back; False when it was taken over meanwhile (nothing is changed then)."""
    with ledger.write() as connection:
        released = connection.execute(
            sql(
                "update route_state set run_id = null, holder = null, lease_until = null"
                " where route = :route and run_id = :run_id and fence = :fence"
            ),
            {"route": lease.route, "run_id": lease.run_id, "fence": lease.fence},
        ).rowcount
        if released:
            connection.execute(
                sql("update runs set status = :status, finished_at = :now where run_id = :run_id"),
                {"status": status, "now": now, "run_id": lease.run_id},
            )
    return bool(released)


def note_beginning(ledger: Ledger, lease: RouteLease, began: datetime, now: datetime) -> None:
    """The run had begun at ``began`` already, by the clock of a host that took part after the one that began it."""
    with ledger.under(lease, now) as tx:
        tx.execute(sql("update runs set began_at = :began_at where run_id = :run_id"), {"began_at": began})


def note_counts(ledger: Ledger, lease: RouteLease, stage: str, counts: Mapping[str, Any], now: datetime) -> None:
    """Keep what ``stage`` reported with the run; mapped tasks of one stage add up."""
    with ledger.under(lease, now) as tx:
        row = tx.execute(sql("select counts from runs where run_id = :run_id")).one()
        kept: dict[str, dict[str, Any]] = json.loads(row.counts)
        before = kept.get(stage, {})
        kept[stage] = before | {
            key: value + before.get(key, 0) if isinstance(value, int | float) else value
            for key, value in counts.items()
        }
        tx.execute(
            sql("update runs set counts = :counts where run_id = :run_id"),
            {"counts": json.dumps(kept, default=str)},
        )


def counts_of(ledger: Ledger, run_id: str, *, also_before: bool = False) -> dict[str, dict[str, Any]]:
    """What each stage of the run reported since the run was begun; ``also_before`` it was begun anew, of stages that
    were not done since."""
    with ledger.read() as connection:
        counts = written_counts(connection, run_id)
    before = counts.pop(_BEFORE, {})
    return before | counts if also_before else counts


def written_counts(connection: Connection, run_id: str) -> dict[str, dict[str, Any]]:
    """The counts as they stand in the run's row; {} without one."""
    row = connection.execute(sql("select counts from runs where run_id = :run_id"), {"run_id": run_id}).first()
    return json.loads(row.counts) if row else {}


class RunBefore(NamedTuple):
    """An earlier run of a route."""

    began: datetime | None
    counts: dict[str, dict[str, Any]]  # what its stages reported
    configured_alike: bool  # by the configuration of the run that asks


def run_before(connection: Connection, lease: RouteLease, stage: str) -> RunBefore | None:
    """The last run of the route before this one in which ``stage`` was done; None without one."""
    before = sql(
        "select fence, counts, started_at, configuration, (select current.configuration from runs current"
        " where current.route = :route and current.fence = :own) as ours from runs where route = :route"
        " and fence < :fence and counts like :stage order by fence desc limit 1"
    )
    values = {"route": lease.route, "own": lease.fence, "fence": lease.fence, "stage": f'%"{stage}": {{%'}
    while (row := connection.execute(before, values).first()) is not None:
        counts = json.loads(row.counts)
        if stage in counts:
            return RunBefore(parse_instant(row.started_at), counts, row.configuration == row.ours)
        values["fence"] = row.fence  # it only has a queue that is called so
    return None


def pause(ledger: Ledger, route: str, *, by: str, reason: str, now: datetime) -> str | None:
    """Let no run of the route begin, and none send, until :func:`resume`.

    Returns who had paused it already, and why: that stays, and what ``by`` says is in the audit trail only.
    """
    with ledger.by(by, now, route=route) as tx:
        tx.execute(sql("insert into route_state (route) values (:route) on conflict (route) do nothing"))
        before = pause_of(tx.connection, route)
        if not _pause(tx, reason) and by != MACHINE:
            record_event(tx, Action.PAUSE, reason=reason)
        return before


def pause_itself(
    ledger: Ledger, lease: RouteLease, why: Callable[[Connection], str | None], now: datetime
) -> str | None:
    """As :func:`pause`, by the run that finds out ``why``, and says so; None where nothing speaks for it.

    That is asked in the transaction that pauses: what a person released until then is no reason any more.
    """
    with ledger.under(lease, now) as tx:
        reason = why(tx.connection)
        if reason is not None:
            _pause(tx, reason)
    return reason


def _pause(tx: Transaction, reason: str) -> bool:
    changed = tx.execute(
        sql(
            "update route_state set paused_at = :now, paused_by = :actor, pause_reason = :reason"
            " where route = :route and paused_at is null"
        ),
        {"reason": reason},
    ).rowcount
    if changed:
        record_event(tx, Action.PAUSE, reason=reason)
    return bool(changed)


def resume(ledger: Ledger, route: str, *, by: str, now: datetime) -> bool:
    """Let runs begin again; False when the route was not paused.

    Where Redrive itself had paused it, what was stopped may try again at once, a few first: whoever resumes says that
    the destination is well, and otherwise the next run would pause the route again.
    """
    with ledger.by(by, now, route=route) as tx:
        ours = tx.execute(
            sql("select 1 from route_state where route = :route and paused_by = :machine"), {"machine": MACHINE}
        ).first()
        changed = tx.execute(
            sql(
                "update route_state set paused_at = null, paused_by = null, pause_reason = null"
                " where route = :route and paused_at is not null"
            )
        ).rowcount
        if changed and ours:
            breakers.end_cool_down(tx)
        if changed:
            record_event(tx, Action.RESUME)
    return bool(changed)


def holder_of(connection: Connection, route: str) -> str | None:
    """Who holds the route, in the words of its run; None where nobody does."""
    found: str | None = connection.execute(
        sql("select holder from route_state where route = :route and run_id is not null"), {"route": route}
    ).scalar()
    return found


def pause_of(connection: Connection, route: str) -> str | None:
    """Why the route is paused and by whom; None while it is not."""
    row = connection.execute(
        sql("select paused_by, pause_reason from route_state where route = :route and paused_at is not null"),
        {"route": route},
    ).first()
    return f"paused by {row.paused_by}: {row.pause_reason}" if row else None
