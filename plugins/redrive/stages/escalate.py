"""Escalate: what the machine must not decide goes to people, with everything they need to decide.

What a standing decision of theirs covers is decided at once in its name; ``redrive_review`` applies it as any other.
"""

import base64
from collections.abc import Sequence
from itertools import chain

from redrive.classification import failure_text
from redrive.classification.causes import Cause
from redrive.errors import CheckFailed, KeysRefused, StagingError
from redrive.ledger import table_statistics
from redrive.ledger.delivery import outcomes
from redrive.ledger.drain import batches, suspects
from redrive.ledger.review import escalations, restoring, standing
from redrive.ledger.review.escalations import Candidate, Review
from redrive.lifecycle import State
from redrive.message import DeadLetter, Header, batch_and_row, clean_headers, message_id_of
from redrive.stages.checking import Check, open_check
from redrive.stages.context import FILE_DAMAGED, Context, not_sent_on

PAGE = 500
PAGE_BYTES = 32 * 1024 * 1024


def escalate(context: Context) -> dict[str, int]:
    """Ask people about everything that is to be reviewed; what was processed already is suppressed, or confirmed where
    its last send was unknown."""
    checker = open_check(context)
    totals = {"escalated": 0, "suppressed": 0, "unanswered": 0}
    after = -1
    try:
        while page := _page(context, after):
            after = page[-1].message_id
            if checker is not None:
                try:
                    page = _without_processed(context, checker, page, totals)
                except KeysRefused:
                    pass  # no wait brings another answer
                except CheckFailed as error:
                    totals["unanswered"] += len(page)
                    context.progress(f"held: {error}", 0, None)
                    continue
            reviews = _reviews(context, page)
            totals["escalated"] += escalations.escalate(context.ledger, context.lease, reviews, context.now())
            context.progress("escalating", totals["escalated"], None)
    finally:
        if checker is not None:
            checker.close()
    _ask_about_suspected(context)
    ask_again(context)
    table_statistics.look_again(
        context.ledger, context.lease, ("messages", "escalated_messages"), totals["escalated"], context.now()
    )
    decided = standing.apply(context.ledger, context.lease, approvals=context.route.approvals, now=context.now())
    return totals | ({"decided_by_standing": decided} if decided else {})


def _page(context: Context, after: int) -> Sequence[Candidate]:
    """What is to be asked about next, behind the message ``after``."""
    with context.ledger.read() as connection:
        return escalations.candidates(connection, context.name, after=after, limit=PAGE, max_bytes=PAGE_BYTES)


def ask_again(context: Context) -> int:
    """A review row for messages about which nobody is asked although only a person can decide: those that a restore
    lost sight of, and those whose row was removed by hand. How many."""
    after, total = -1, 0
    while True:
        with context.ledger.read() as connection:
            page = escalations.unasked(connection, context.name, after=after, limit=PAGE, max_bytes=PAGE_BYTES)
        if not page:
            return total
        after = page[-1].message_id
        total += escalations.ask_again(context.ledger, context.lease, _reviews(context, page), context.now())


def _ask_about_suspected(context: Context) -> None:
    """A review row for every suspected copy; they are counted where they were loaded."""
    after = -1
    while True:
        with context.ledger.read() as connection:
            page = suspects.candidates(connection, context.name, after=after, limit=PAGE, max_bytes=PAGE_BYTES)
        if not page:
            return
        after = page[-1].message_id
        suspects.write_reviews(context.ledger, context.lease, _reviews(context, page), context.now())


def _without_processed(
    context: Context, checker: Check, page: Sequence[Candidate], totals: dict[str, int]
) -> list[Candidate]:
    """Ask about those that are to be looked at for the first time. Of an unknown send it proves that it was one."""
    to_review = [one for one in page if one.state == State.TO_REVIEW and not one.is_asked]
    processed = checker.processed([(one.message_id, one.message_key) for one in to_review])
    sent = [one.message_id for one in to_review if one.perhaps_sent and one.message_id in processed]
    confirmed = outcomes.confirm(context.ledger, context.lease, sent, context.now())
    if confirmed:
        totals["confirmed"] = totals.get("confirmed", 0) + confirmed
    not_sent = sorted(processed - set(sent))
    totals["suppressed"] += escalations.suppress(context.ledger, context.lease, not_sent, context.now())
    return [one for one in page if one.message_id not in processed]


def _reviews(context: Context, page: Sequence[Candidate]) -> list[Review]:
    """The page with payloads (of the first copy) and error texts (of the newest copy); without them, and with a word
    about it in the reason, where the file is damaged."""
    with context.ledger.read() as connection:
        wanted = {batch_and_row(one.message_id)[0] for one in page} | {batch_and_row(one.copy_id)[0] for one in page}
        paths = batches.paths(connection, wanted)
    letters = _letters(context, paths, {one.message_id for one in page} | {one.copy_id for one in page})
    reviews = []
    for one in page:
        letter, newest = letters.get(one.message_id), letters.get(one.copy_id)
        if letter is None or newest is None:
            told = one._replace(reason=_unreadable(one.reason))
            reviews.append(Review(told, None, None, [], None, suggestion(one)))
            continue
        said = failure_text.pick(
            newest.headers,
            newest.body,
            description=newest.description,
            reason=newest.reason,
            evidence=context.route.evidence,
            ordering_key=newest.ordering_key,
        )
        headers = [
            (h.name, h.type, h.value if isinstance(h.value, str) else base64.b64encode(h.value).decode())
            for h in _headers(context, letter, newest)
        ]
        reviews.append(
            Review(one, letter.body, letter.content_type, headers, said.text or said.reason or None, suggestion(one))
        )
    return reviews


def _headers(context: Context, letter: DeadLetter, newest: DeadLetter) -> Sequence[Header]:
    """What would be sent, as the body: the first copy's headers. Why it failed: the newest copy's."""
    if newest is letter:
        return letter.headers
    failure = not_sent_on(context.route, context.broker.capabilities)
    sent = clean_headers(letter.headers, failure)
    return (*sent, *(h for h in newest.headers if h.name in failure))


def bodies(context: Context, copy_ids: Sequence[int]) -> dict[int, bytes]:
    """The bodies of these copies, without those whose file is damaged."""
    if not copy_ids:
        return {}
    with context.ledger.read() as connection:
        paths = batches.paths(connection, {batch_and_row(copy_id)[0] for copy_id in copy_ids})
    return {copy_id: letter.body for copy_id, letter in _letters(context, paths, set(copy_ids)).items()}


def _letters(context: Context, paths: dict[int, str], copy_ids: set[int]) -> dict[int, DeadLetter]:
    """Copies by their ids, without those whose file is damaged."""
    found: dict[int, DeadLetter] = {}
    by_batch: dict[int, list[int]] = {}
    for copy_id in sorted(copy_ids):
        batch_id, row = batch_and_row(copy_id)
        by_batch.setdefault(batch_id, []).append(row)
    for batch_id, rows in by_batch.items():
        try:
            letters = chain.from_iterable(context.staging.letters(paths[batch_id], rows))
            found.update(zip([message_id_of(batch_id, row) for row in rows], letters, strict=True))
        except StagingError:
            context.staging.close()  # not to be read on from where it failed
            if not context.staging.is_damaged(paths[batch_id], rows[-1]):
                raise
    return found


def _unreadable(reason: str | None) -> str:
    """Why a message is here whose payload can't be shown."""
    return FILE_DAMAGED if reason is None or reason == FILE_DAMAGED else f"{reason} {FILE_DAMAGED}"


def suggestion(one: Candidate) -> str:
    """What usually is right for such a message; a person decides."""
    cause = Cause(one.cause) if one.cause else None
    if one.state == suspects.SUSPECTED:
        return "discard"
    if one.state == State.RESTORE_UNKNOWN:
        return restoring.LOOK
    if cause in (Cause.DUPLICATE, Cause.MESSAGE_EXPIRED):
        return "discard"
    if cause in (Cause.MALFORMED_PAYLOAD, Cause.OVERSIZED):
        return "edit"
    return "redeliver"
