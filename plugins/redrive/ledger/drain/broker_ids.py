"""The ids that brokers gave a message: its own, those of its sends, those of the copies that came back."""

from collections.abc import Sequence

from sqlalchemy.engine import Connection

from redrive.ledger.engine import sql

_PART = 500


def of_messages(connection: Connection, message_ids: Sequence[int]) -> dict[int, set[str]]:
    """Every broker id that each of these messages is known to have had; the id of an unknown send isn't known."""
    found: dict[int, set[str]] = {}
    for start in range(0, len(message_ids), _PART):
        part = ",".join(str(int(one)) for one in message_ids[start : start + _PART])
        rows = connection.execute(
            sql(
                f"select message_id, broker_message_id as id from messages where message_id in ({part})"
                " union all select message_id, broker_message_id as id from redelivery_attempts"
                f" where message_id in ({part}) and broker_message_id is not null"
                " union all select message_id, broker_message_id as id from repeat_copies"
                f" where message_id in ({part}) and kind in ('returned', 'surplus')"
            )
        )
        for row in rows:
            if row.id:
                found.setdefault(row.message_id, set()).add(row.id)
    return found
