"""What a site's own ledger teaches about causes: which groups passed by themselves, which did not, what people did.

It never names one cause, because nobody wrote one down; it tells what kind of cause a failure has.
"""

from typing import NamedTuple

from sqlalchemy.engine import Connection

from redrive.ledger.engine import sql
from redrive.lifecycle import Question

#: The newest groups that are looked at: what has not happened for long has been mended.
MAX_GROUPS = 50_000


class Lesson(NamedTuple):
    """What is known of one group of failures, over all routes."""

    template: str
    stayed_away: int  # sends by the machine that did not come back
    returned: int  # sends by the machine that came back as dead letters
    edited: int  # messages whose body a person corrected
    discarded: int  # messages that a person discarded


def lessons(connection: Connection) -> list[Lesson]:
    """One lesson for each group of which something is known, newest first."""
    rows = connection.execute(
        sql(
            "with sends as ("
            "  select group_id,"
            "   sum(case when outcome in ('confirmed', 'presumed') then 1 else 0 end) as stayed_away,"
            "   sum(case when outcome = 'returned' and return_kind = 'dead_letter' then 1 else 0 end) as returned"
            # What a person sent was mended first, as a rule: its outcome tells nothing about the cause.
            "  from redelivery_attempts where mode <> 'release' and group_id is not null group by group_id),"
            " decided as ("
            "  select group_id, sum(case when decision = 'edit' then 1 else 0 end) as edited,"
            "   sum(case when decision = 'discard' then 1 else 0 end) as discarded"
            f"  from escalated_messages where status = 'applied' and question = '{Question.FAILURE}'"
            "  and group_id is not null group by group_id)"
            " select template, coalesce(stayed_away, 0), coalesce(returned, 0), coalesce(edited, 0),"
            " coalesce(discarded, 0) from failure_groups"
            " left join sends on sends.group_id = failure_groups.group_id"
            " left join decided on decided.group_id = failure_groups.group_id"
            " where sends.group_id is not null or decided.group_id is not null"
            " order by failure_groups.last_seen_at desc, failure_groups.group_id desc limit :limit"
        ),
        {"limit": MAX_GROUPS},
    )
    return [Lesson(str(template), *(int(count) for count in counts)) for template, *counts in rows]
