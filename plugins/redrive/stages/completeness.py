"""Completeness: which sources a run has drained to their end, so that nothing from before the run is hidden there.

How it is known depends on what the broker tells of a source:

- Its depth, as it is now: a shard looked at the source while it held nothing itself. Either nothing was there and
  nobody held any, or the shard received all that was there (``source_end.SourceEnd``). One such shard
  is enough, whatever became of the others: the look would have shown what they held.
- Its depth, late or in parts of different age: no look of the run tells what its own shards hold from what others do.
  Only the first one can, because a shard receives nothing before its look is in the ledger
  (:mod:`redrive.ledger.drain.first_looks`).
  When nothing was in flight then, and the run has settled as many copies as it counted, and a shard has seen that
  nothing more came, the source is complete. Copies that were settled count once, whichever try of a task settled them.
  A shard that began and did not end, or began twice, may have left copies leased, so that run proves nothing by its
  counts. What tells late may not tell what an earlier run that died has leased, so its leases have to be over; and an
  estimate may say by itself that nothing is in flight, so an earlier run's first look has to have said so too.
- No depth: every shard had its quiet receives, and nobody of the route could hold any meanwhile. Every drain that began
  in this run has ended, and the leases of an earlier one that may have died were over before.

A source into which nothing is dead-lettered any more, because it goes to another queue, says nothing of returns: it is
never complete, unless the route drains that queue too.

Which shards there are is told by their beginnings: Airflow may have made tasks for another number of them than the
configuration says, and people may mark one done that failed or never ran.

"From before the run" is by the clock that says the earliest moment: begin, drain and load may run on hosts whose clocks
differ, and of what came in since the drain nothing is proved, whatever the one that is ahead calls it.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase

from sqlalchemy.engine import Connection

from redrive.brokers.base import Broker
from redrive.ledger import leases
from redrive.ledger.drain import batches, first_looks
from redrive.ledger.drain.first_looks import FirstLook
from redrive.policy.worked_past import CLOCKS
from redrive.settings import Source
from redrive.stages.context import Context
from redrive.stages.source_end import BEGAN, COMPLETE, ENDED, NOTHING_MORE, PROVED, counts_out

log = logging.getLogger(__name__)


def drained_to(context: Context) -> dict[str, datetime]:
    """The moment up to which nothing lies in a source any more, for those that this run drained to their end."""
    counts = leases.counts_of(context.ledger, context.run.run_id).get("drain", {})
    began = _began(context, counts)
    found = {}
    with context.ledger.read() as connection:
        looks = first_looks.first(connection, context.lease)
        for source in context.route.sources:
            queue = source.queue
            onward = letters_go_to(context.broker, queue, context.route.sources)
            if onward is not None:
                log.info(
                    "%s: what dies goes to %s, which is no source of this route: this run does not prove that nothing"
                    " came back",
                    queue,
                    onward,
                )
                continue
            lag = context.broker.capabilities_for(queue).depth_lag
            look = looks.get(queue)
            each = look is not None and counts.get(COMPLETE + queue, 0) >= look.beginnings
            if look is None:
                complete = False
            elif look.total is None:
                complete = each and _nobody_may_hold(context, connection, queue, look)
            elif look.held_by_others or look.began_again or counts.get(ENDED + queue, 0) < look.beginnings:
                complete = False
            else:
                quiet = counts_out(context, queue) or counts.get(NOTHING_MORE + queue, 0) > 0
                complete = each or (quiet and batches.settled_by(connection, context.lease, queue) >= look.total)
                if complete and lag:
                    complete = _looks_agree(context, queue, look) and _nobody_may_hold(context, connection, queue, look)
            if complete or counts.get(PROVED + queue, 0) > 0:
                before = began - lag
                found[queue] = min(before, look.as_of) if look is not None and look.as_of is not None else before
    return found


def _began(context: Context, counts: Iterable[str]) -> datetime:
    """When the run had begun by each clock that took part: that of begin, of the drains that ``counts`` tell of, and of
    this process. Where that is before its own beginning, its batches are judged by it too."""
    run, now = context.run.started_at, context.now()
    drains = (datetime.fromisoformat(name.removeprefix(BEGAN)) for name in counts if name.startswith(BEGAN))
    began = min(run, now, *drains)
    if began < run:
        leases.note_beginning(context.ledger, context.lease, began, now)
    if run - began > CLOCKS:
        log.warning(
            "the clocks of this run's hosts differ by %d s or more: it began at %s UTC by one, and something of it was"
            " done at %s UTC by another. What it proves holds up to the latter",
            (run - began).total_seconds(),
            f"{run:%Y-%m-%d %H:%M:%S}",
            f"{began:%Y-%m-%d %H:%M:%S}",
        )
    return began


def letters_go_to(broker: Broker, queue: str, sources: Sequence[Source]) -> str | None:
    """The queue, none of ``sources``, into which goes what would be dead-lettered to ``queue``, as people read it; see
    :attr:`~redrive.brokers.base.Capabilities.letters_go_to`."""
    onward = broker.capabilities_for(queue).letters_go_to
    drained = any(fnmatchcase(one.queue.lower(), name.lower()) for one in sources for name in onward)
    return None if drained or not onward else " or ".join(onward)


def _looks_agree(context: Context, queue: str, look: FirstLook) -> bool:
    """Whether the first looks of runs have said for long enough that nobody holds any; never decided by waiting for
    another look, which the next run takes anyway."""
    apart = context.broker.capabilities_for(queue).zeros_apart
    if look.at is not None and look.free_since is not None and look.at - look.free_since >= apart:
        return True
    log.info(
        "%s: nothing is in flight there by a first estimate: a run in %d s or later can prove that nothing is left",
        queue,
        apart.total_seconds(),
    )
    return False


def _nobody_may_hold(context: Context, connection: Connection, queue: str, look: FirstLook) -> bool:
    """Whether no drain of the route could still hold copies of ``queue`` when this run's began there; else it is said
    why."""
    if look.left_open:
        log.info(
            "%s: a try of this run's drain began there and did not end, and what it received may still be leased: this"
            " run does not prove that nothing is left there",
            queue,
        )
        return False
    held = first_looks.may_hold(
        connection,
        context.lease,
        queue,
        leased_for=context.broker.capabilities_for(queue).hidden_for(context.route.drain.lease),
        at=look.at or context.run.started_at,
    )
    if held is not None:
        log.info(
            "%s: run %s did not end well there, and what it received may be leased until %s UTC: this run does not"
            " prove that nothing is left there",
            queue,
            held.run_id,
            f"{held.until:%Y-%m-%d %H:%M:%S}",
        )
    return held is None
