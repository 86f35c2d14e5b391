"""Which selectors made the keys of messages: a key that another selector made means something else, so it is none.

The load writes them at each batch, for all of its messages; a message id says which batch that is. Where the
configuration names another selector since, the keys of what is not finished are taken anew from staging
(:mod:`redrive.stages.keys`).
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from redrive.audit_actions import Action
from redrive.ledger.drain.batches import Batch
from redrive.ledger.engine import Ledger, sql
from redrive.ledger.moves import record_event
from redrive.ledger.predicates import UNFINISHED
from redrive.ledger.transactions import RouteLease, RunTransaction
from redrive.message import MAX_ROWS, span_of


class Selectors(NamedTuple):
    """What finds ``message_key`` and ``order_key``, as the configuration writes it; None: nothing, such keys are not
    asked for."""

    message_key: str | None = None
    order_key: str | None = None

    @property
    def asked(self) -> dict[str, str]:
        """By the key's column, those that are asked for."""
        return {column: selector for column, selector in self._asdict().items() if selector is not None}


def _made_otherwise(columns: Iterable[str]) -> str:
    """A condition on ``staging_batches``: one of these keys was made by another selector, or by none."""
    return " or ".join(f"coalesce({column}_by, '') <> :{column}" for column in columns)


def made_otherwise(connection: Connection, batch_ids: Collection[int], selectors: Selectors) -> set[int]:
    """Those of the batches, at most some thousands, of whose keys that are asked for one was made by another selector;
    and those that nobody knows."""
    if not selectors.asked or not batch_ids:
        return set()
    ids = ",".join(str(int(batch_id)) for batch_id in batch_ids)
    rows = connection.execute(
        sql(
            f"select batch_id from staging_batches where batch_id in ({ids})"  # ints only
            f" and not ({_made_otherwise(selectors.asked)})"
        ),
        selectors.asked,
    )
    return set(batch_ids) - {row.batch_id for row in rows}


#: A message of the batch that is not finished, by ``ix_messages_route_state``: it looks neither at all that is not
#: finished, nor at all of the batch. A subquery of one value, which no planner turns into a join.
_UNFINISHED_ONE = f"""
(
    select 1 from messages
    where
        messages.route = :route and messages.state in {UNFINISHED}
        and messages.message_id >= staging_batches.batch_id * {MAX_ROWS}
        and messages.message_id < (staging_batches.batch_id + 1) * {MAX_ROWS}
    limit 1
)
"""


def to_renew(connection: Connection, route: str, selectors: Selectors) -> list[Batch]:
    """Loaded batches of the route with messages that are not finished and keys by another selector, oldest first. For
    each batch with such keys, which those that are finished keep, one message is looked for."""
    if not selectors.asked:
        return []
    rows = connection.execute(
        sql(
            "select batch_id, route, source, kind, uri, copies, state from staging_batches"
            f" where route = :route and loaded_at is not null and ({_made_otherwise(selectors.asked)})"
            f" and {_UNFINISHED_ONE} is not null order by batch_id"
        ),
        {**selectors.asked, "route": route},
    )
    return [Batch(*row) for row in rows]


#: People see a message's key beside what they are asked about it.
_ASKED_BY_NEW_KEYS = """
with
    ours as (
        select escalation_id from escalated_messages
        where
            status <> 'applied' and message_id >= :low and message_id < :high
            and coalesce(message_key, '') <> coalesce(
                (select message_key from renewed where renewed.message_id = escalated_messages.message_id), ''
            )
        order by escalation_id {locked}
    )
update escalated_messages
set message_key = (select message_key from renewed where renewed.message_id = escalated_messages.message_id)
where escalation_id in (select escalation_id from ours)
"""


def renew(
    ledger: Ledger,
    lease: RouteLease,
    batch: Batch,
    selectors: Selectors,
    keys: Iterable[Sequence[tuple[Any, ...]]],
    now: datetime,
) -> int | None:
    """Give the messages of the batch the ``keys`` by these selectors, in one transaction; how many have another one
    now. They come in portions, for each copy its id and the keys that are asked for. None, and nothing is changed,
    where there are not as many as the batch has copies. What people are asked says the new key too, but for a row that
    somebody is changing at this moment: whoever takes their time keeps no run waiting.
    """
    columns = list(selectors.asked)
    found = 0
    with ledger.under(lease, now) as tx:
        tx.temporary("renewed", ", ".join(["message_id bigint primary key", *(f"{one} text" for one in columns)]))
        for portion in keys:
            tx.bulk("renewed", ("message_id", *columns), portion)
            found += len(portion)
        if found != batch.copies:
            return None
        tx.dialect.look_at_temporary(tx.connection, "renewed")
        is_news = " or ".join(f"coalesce(messages.{one}, '') <> coalesce(renewed.{one}, '')" for one in columns)
        changed = tx.execute(
            sql(
                f"update messages set {', '.join(f'{one} = renewed.{one}' for one in columns)} from renewed"
                f" where messages.message_id = renewed.message_id and ({is_news})"
            )
        ).rowcount
        if "message_key" in columns:
            tx.execute(sql(_ASKED_BY_NEW_KEYS.format(locked=tx.dialect.locked)), span_of(batch.batch_id))
        tx.execute(
            sql(
                f"update staging_batches set {', '.join(f'{one}_by = :{one}' for one in columns)}"
                " where batch_id = :batch_id"
            ),
            {**selectors.asked, "batch_id": batch.batch_id},
        )
        record_event(
            tx,
            action=Action.RENEW_KEYS,
            count=changed,
            selection={"batch_id": batch.batch_id, **selectors.asked},
            reason="They were loaded when the configuration named another key, or none.",
        )
    return int(changed)


#: The batch of another message whose keys are by the same selectors.
_ALIKE = f"""
select 1 from staging_batches other
where
    other.batch_id = cast(:other as bigint) / {MAX_ROWS}
    and coalesce(other.message_key_by, '') = coalesce(staging_batches.message_key_by, '')
    and coalesce(other.order_key_by, '') = coalesce(staging_batches.order_key_by, '')
"""


def take_over(tx: RunTransaction, batch_id: int, message_id: int | None) -> None:
    """A message of the batch was given the keys of ``message_id``: where other selectors made those, or nobody knows
    any more which, the keys of the batch are by none, and are taken anew."""
    tx.execute(
        sql(
            "update staging_batches set message_key_by = null, order_key_by = null where batch_id = :batch_id"
            f" and not exists ({_ALIKE})"
        ),
        {"batch_id": batch_id, "other": message_id},
    )
