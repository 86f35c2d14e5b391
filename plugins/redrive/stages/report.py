"""Report: one line of numbers about a run, and the proof that it adds up."""

import logging
from collections import Counter
from typing import Any

from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.errors import BalanceBroken, QueuesFailed, StagingError
from redrive.ledger import configurations, leases
from redrive.ledger.account import balance, inspecting, run_totals
from redrive.ledger.drain import batches
from redrive.ledger.review import applying
from redrive.redaction import redactor, said_by
from redrive.stages import classify, failed_queues
from redrive.stages.context import Context

log = logging.getLogger(__name__)

#: What is still to be done on a route, by us or by people, as columns of its balance.
_LEFT = (
    *("staged", "suspected", "classified", "waiting", "held", "sending", "unknown"),
    *("to_review", "escalated", "expired", "restoring", "restore_unknown"),
)


def report(context: Context) -> dict[str, Any]:
    """The run's numbers as ``run --json`` prints them.

    Raises :class:`BalanceBroken` when the route doesn't add up, :class:`StagingError` when a staging file could not be
    read, and :class:`QueuesFailed` when a queue could not be looked at, drained or sent to: everything else was done.
    """
    stages = leases.counts_of(context.ledger, context.run.run_id)
    # A task that was cleared begins the run anew; what failed in a task before it is not done again.
    told = leases.counts_of(context.ledger, context.run.run_id, also_before=True)
    with context.ledger.read() as connection:
        now = balance.of_route(connection, context.name)
        problems = balance.problems(connection, context.name)
        paused = leases.pause_of(connection, context.name)
        unloaded = batches.unloaded(connection, context.name)
        causes = inspecting.causes(connection, context.name)
        said = inspecting.reasons(connection, context.name, since=context.run.started_at)
        totals = run_totals.of_run(connection, context.run.run_id)
        to_decide = inspecting.to_decide(connection, context.name)
        to_approve = applying.left(connection, context.name).not_approved if context.route.approvals > 1 else 0
    mask = redactor(context.route)
    reasons = Counter[str]()
    for reason, count in said.items():
        reasons[mask.beginning(reason, inspecting.REASON)] += count
    for cause, count in causes.items():  # a DAG run's summary is what this task logs
        log.info(
            "%s (%d of the newest messages): %s", cause, count, registry.advice(Cause(cause), context.route.broker)
        )
    if problems:
        raise BalanceBroken("; ".join(problems))
    loaded, failed = stages.get("load", {}), failed_queues.failed(told)
    damaged = [batch for batch in unloaded if batch.batch_id in told.get("load", {}).get("unreadable_batches", ())]
    if damaged:
        least = "At least " if len(damaged) >= classify.NAMED else ""
        raise StagingError(
            f"{least}{sum(batch.copies for batch in damaged)} staged messages could not be loaded, as their files are"
            f" damaged or missing: {', '.join(batch.uri for batch in damaged[:5])}{' …' if damaged[5:] else ''}. They"
            " wait, and all others were done. Bring the files back, from the store's versions or a backup;"
            f" where that can't be done, `redrive forget-batch {context.name} {damaged[0].batch_id} --reason …` gives"
            " a batch up" + (f". And {failed_queues.sentence(failed)}" if failed else "")
        )
    numbers = {
        "route": context.name,
        "run_id": context.run.run_id,
        **({"configuration": name} if (name := configurations.shown(context.run.configuration)) else {}),
        **totals,
        "waiting": now.get("waiting", 0),
        "held": now.get("held", 0),
        "unknown": now.get("unknown", 0),
        "to_decide": to_decide,
        **({"to_approve": to_approve} if to_approve else {}),
        # Every source was drained to its end, and nothing waits for us or for people.
        "clean": {source.queue for source in context.route.sources} <= set(loaded.get("emptied", ()))
        and not any(now.get(one) for one in _LEFT),
        **({"refused": refused} if (refused := stages.get("deliver", {}).get("refused")) else {}),
        **({"reasons": dict(reasons)} if reasons else {}),
        **({"untouched": untouched} if (untouched := now.get("classified")) else {}),
        **({"paused": said_by(mask, paused)} if paused else {}),
        **({"causes": causes} if causes else {}),
        **({"later": later} if (later := now.get("staged")) else {}),
        **({"overflowed": overflowed} if (overflowed := loaded.get("overflowed")) else {}),
        **({"rescued": rescued} if (rescued := stages.get("drain", {}).get("rescued")) else {}),
        "seconds": {stage: round(counts["seconds"], 3) for stage, counts in stages.items() if "seconds" in counts},
    }
    if failed:
        raise QueuesFailed(failed_queues.sentence(failed), numbers | {"failed": failed})
    return numbers
