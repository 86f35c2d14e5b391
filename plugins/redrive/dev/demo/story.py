"""What the demo tells at its end, read from the ledger with the SQL that everybody else would use.

Texts that came with messages are hostile until proven otherwise: they are shown as plain text without
control characters, never as markup.
"""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy.engine import Connection, RowMapping

from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.dev.demo.workspace import ROUTE, Workspace
from redrive.dev.demo.world import DEAD, DELAY, ORDERS, Counts
from redrive.ledger.engine import sql
from redrive.lifecycle import State

#: In the order of a message's life; only states that hold messages become columns.
COLUMNS = (
    State.CONFIRMED,
    State.PRESUMED,
    State.SUPPRESSED,
    State.SENT,
    State.SENDING,
    State.UNKNOWN,
    State.RETURNED,
    State.CLASSIFIED,
    State.WAITING,
    State.HELD,
    State.TO_REVIEW,
    State.ESCALATED,
    State.RESTORING,
    State.RESTORE_UNKNOWN,
    State.EXPIRED,
    State.DISCARDED,
)
STYLES = {
    State.CONFIRMED: "green",
    State.PRESUMED: "green",
    State.SUPPRESSED: "cyan",
    State.WAITING: "yellow",
    State.HELD: "yellow",
    State.ESCALATED: "magenta",
    State.UNKNOWN: "red",
}
MEANINGS = {
    State.CONFIRMED: "proof of processing was found in the shop's own database",
    State.PRESUMED: "did not come back within a window that could have seen it",
    State.SUPPRESSED: "had been processed before it was dead-lettered, so it was not sent again",
    State.SENT: "the queue has it; whether it comes back is still being watched",
    State.UNKNOWN: "a delivery died between send and confirmation",
    State.WAITING: "backoff; the next run sends what is due",
    State.HELD: "canary or breaker: not before the first few of its group stayed away",
    State.ESCALATED: "a person decides, in SQL (below)",
    State.TO_REVIEW: "a person is to decide, and is asked by the next run",
    State.RESTORE_UNKNOWN: "may be back in its dead-letter queue: a restore died before it knew",
    State.EXPIRED: "older than the route's give_up_after",
}
DELAYED = "(try later)"
#: The modules before the name of an exception, which a narrow table has no room for.
_MODULES = re.compile(r"^(?:[a-z_0-9]+\.)+(?=[A-Z])")
OPEN_GROUPS = (
    "select group_id, open_messages, cause, replace(substr(template, -70), char(10), ' ') as failure"
    " from review_groups order by open_messages desc"
)
DECISION = "update escalated_messages set decision = 'redeliver', decided_by = 'you', note = 'fixed' where group_id = "


class Accounts(NamedTuple):
    """What must hold at the end, whatever happened."""

    broken: tuple[str, ...]  # promises that do not hold, in words
    unaccounted: int  # messages sent that are neither processed nor known to the ledger


def shop_table(sent: int, tally: Mapping[str, int], depth: Mapping[str, Counts]) -> Table:
    """What the broken shop made of its day."""
    table = _table("What the shop left behind", ("", "left"), ("messages", "right"))
    table.add_row("sent by the producer", f"{sent:,}")
    table.add_row("deliveries handled to the end", f"{tally.get('processed', 0):,}")
    table.add_row("dead-lettered by the consumer, with a traceback", f"{tally.get('dead_lettered', 0):,}")
    table.add_row(
        "dead-lettered by the queue, without a word",
        f"{max(0, depth[DEAD].total - tally.get('dead_lettered', 0)):,}",
    )
    table.add_row("asked to be tried later", f"{depth[DELAY].total:,}")
    return table


def causes_table(connection: Connection) -> Table:
    """One row per cause: how many messages, and where they are now."""
    counts: dict[str, Counter[State]] = {}
    for row in _rows(
        connection,
        "select coalesce(cause, case when kind = 'delay' then :delayed else 'unknown' end) as cause, state,"
        " count(*) as messages from messages where route = :route group by 1, 2",
        delayed=DELAYED,
    ):
        counts.setdefault(row["cause"], Counter())[State(row["state"])] += row["messages"]
    states = [state for state in COLUMNS if any(count[state] for count in counts.values())]
    table = _table(
        "Why they died, and where they are now",
        ("cause", "left"),
        ("messages", "right"),
        *((state.value, "right") for state in states),
    )
    for cause, count in sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])):
        table.add_row(
            Text(cause), f"{count.total():,}", *(_number(count[state], STYLES.get(state)) for state in states)
        )
    whole = sum(counts.values(), Counter[State]())
    table.add_section()
    table.add_row("all", f"{whole.total():,}", *(_number(whole[state]) for state in states), style="bold")
    return table


def groups_table(connection: Connection, *, limit: int = 60) -> Table:
    """One row per group of messages that died of the same failure, the largest first."""
    groups: dict[int, tuple[RowMapping, Counter[State]]] = {}
    for row in _rows(
        connection,
        "select g.group_id, g.cause, g.template, m.state, count(*) as messages"
        " from messages m join failure_groups g on g.group_id = m.group_id"
        " where m.route = :route group by g.group_id, g.cause, g.template, m.state",
    ):
        groups.setdefault(row["group_id"], (row, Counter()))[1][State(row["state"])] += row["messages"]
    table = _table(
        f"{len(groups)} distinct failures",
        ("group", "right"),
        ("died", "right"),
        ("cause", "left"),
        ("now", "left"),
        ("failure", "left"),
    )
    table.box = box.SIMPLE_HEAD  # leaves the failure more room on a narrow terminal
    for column in table.columns[:3]:
        column.no_wrap = True
    ordered = sorted(groups.values(), key=lambda group: (-group[1].total(), group[0]["group_id"]))
    for row, count in ordered[:limit]:
        now = Text(", ").join(
            Text(f"{count[state]} {state.value}", style=STYLES.get(state, "")) for state in COLUMNS if count[state]
        )
        table.add_row(
            str(row["group_id"]),
            f"{count.total():,}",
            row["cause"],
            now,
            _one_line(printable(_MODULES.sub("", headline(row["template"])))),
        )
    if len(ordered) > limit:
        table.caption = f"and {len(ordered) - limit} smaller ones"
    return table


def outcome_table(connection: Connection) -> Table:
    """What redelivery came to, in the honest words of the ledger."""
    table = _table("What became of them", ("", "left"), ("messages", "right"), ("which means", "left"))
    (attempts,) = _rows(
        connection,
        "select count(sent_at) as sent, count(distinct case when sent_at is not null then message_id end)"
        " as messages, coalesce(sum(case when outcome = 'returned' and coalesce(return_kind, '') <> 'delay'"
        " then 1 else 0 end), 0) as returned,"
        " coalesce(sum(case when outcome = 'returned' and return_kind = 'delay' then 1 else 0 end), 0)"
        " as delayed from redelivery_attempts where route = :route",
    )
    table.add_row(
        "redelivered",
        f"{attempts['messages']:,}",
        f"sent back to {ORDERS}, {attempts['sent']:,} times in all",
    )
    table.add_row("returned", f"{attempts['returned']:,}", "died again and were recognised by their id")
    if attempts["delayed"]:
        table.add_row("delayed again", f"{attempts['delayed']:,}", "the consumer asked for later once more")
    table.add_section()
    states = {
        State(row["state"]): row["messages"]
        for row in _rows(connection, "select state, count(*) as messages from messages where route = :route group by 1")
    }
    for state in COLUMNS:
        if states.get(state):
            table.add_row(Text(state.value, style=STYLES.get(state, "")), f"{states[state]:,}", MEANINGS.get(state, ""))
    return table


def balance_table(connection: Connection) -> Table:
    """The sums that must come out, from the view ``message_balance``."""
    table = _table("It adds up", ("", "left"), ("", "right"))
    table.show_header = False
    for row in _balance(connection):
        for name, parts in (
            ("recorded", ("new", "returned", "duplicate", "surplus", "suspected", "staged")),
            ("messages", tuple(state.value for state in COLUMNS if state is not State.RETURNED)),
        ):
            shown = " + ".join(f"{row[part]:,} {part}" for part in parts if row[part]) or "0"
            difference = row["copies_difference" if name == "recorded" else "messages_difference"]
            what = "copies staged" if name == "recorded" else "messages"
            table.add_row(f"{row[name]:,} {what} = {shown}", _difference(difference))
        table.add_row(
            f"{row['settled']:,} copies settled at the broker, none before it was staged",
            _difference(row["settled_difference"]),
        )
    return table


def queues_table(depth: Mapping[str, Counts]) -> Table:
    """What lies in the queues now."""
    table = _table("The queues now", ("queue", "left"), *((field, "right") for field in Counts._fields))
    for name in (ORDERS, DEAD, DELAY):
        table.add_row(name, *(f"{number:,}" for number in depth[name]))
    return table


def advice(connection: Connection, *, count: int = 3) -> RenderableType:
    """How to make the most frequent causes not happen again."""
    rows = _rows(
        connection,
        "select cause, count(*) as messages from messages where route = :route and cause is not null"
        " group by cause order by messages desc, cause",
    )
    text = Text("So that it does not happen again", style="bold")
    for row in rows[:count]:
        text.append(f"\n{row['cause']}: ", style="not bold cyan")
        text.append(registry.advice(Cause(row["cause"]), "amazon_sqs"), style="not bold")
    return text


def cured_group(connection: Connection) -> int | None:
    """The group under review whose cause the repair has removed: the expired credential was renewed."""
    rows = _rows(
        connection,
        "select group_id from escalated_messages where route = :route and status = 'open'"
        " and error_text like '%TokenExpired%' order by group_id limit 1",
    )
    return int(rows[0]["group_id"]) if rows else None


def decision(group_id: int) -> str:
    """The SQL by which a reviewer lets a group go again."""
    return f"{DECISION}{group_id:d} and status = 'open'"


def review_help(connection: Connection, workspace: Workspace) -> RenderableType:
    """SQL to copy: what is open, and how to decide about a group; one that a fix can cure, if there is one."""
    ledger = _shortest(workspace.ledger_file)
    rows = _rows(
        connection,
        "select group_id, open_messages, cause from review_groups where route = :route and open_messages > 0"
        " order by case when cause in ('auth_failure', 'application_bug') then 0 else 1 end,"
        " open_messages desc, group_id limit 1",
    )
    lines = [
        Text("What is left is yours to decide, in SQL", style="bold"),
        Text.assemble("sqlite3 -box ", ledger, ' "', OPEN_GROUPS, '"'),
    ]
    if rows:
        group = str(rows[0]["group_id"])
        lines += [
            Text(
                f"# group {group} ({rows[0]['cause']}, open: {rows[0]['open_messages']}) may go again, say",
                style="dim",
            ),
            Text.assemble("sqlite3 ", ledger, ' "', decision(int(group)), '"'),
            Text(
                f"# then `{_redrive()} review apply`; the next run sends (in the demo: with --keep-broker)",
                style="dim",
            ),
        ]
    lines.append(Text(f"# the ledger: {ledger}   payloads: {_shortest(workspace.staging)}", style="dim"))
    return Group(*lines)


def settle_accounts(connection: Connection, sent: set[str], processed: set[str]) -> Accounts:
    """Check the promises: the balance of every route, and that each message sent is somewhere.

    ``sent`` and ``processed`` are message ids as the shop knows them.
    """
    broken = []
    rows = _balance(connection)
    if not rows:
        broken.append("the ledger knows no message at all")
    broken += [
        f"route {row['route']}: {name} is {row[name]}, not 0"
        for row in rows
        for name in ("copies_difference", "messages_difference", "settled_difference")
        if row[name]
    ]
    known = {
        row["message_key"]
        for row in _rows(connection, "select distinct message_key from messages where route = :route")
    }
    unaccounted = len(sent - processed - known)
    if unaccounted:
        broken.append(f"{unaccounted} messages are neither processed nor in the ledger")
    return Accounts(tuple(broken), unaccounted)


def tell(console: Console, *parts: RenderableType) -> None:
    """Print the parts with an empty line before each; long lines of SQL stay whole, so they can be copied."""
    for part in parts:
        console.print()
        console.print(part, soft_wrap=isinstance(part, Group))


def headline(failure: str) -> str:
    """The line of a failure text that says most: the last of a Python traceback, else the first."""
    lines = [line for line in failure.splitlines() if line.strip()] or [""]
    return lines[-1] if lines[0].startswith("Traceback (most recent call last)") else lines[0]


def printable(text: str, length: int = 400) -> Text:
    """``text`` of a message as plain text: no markup, no control characters, no reversed writing."""
    shown = "".join(c if c.isprintable() else " " for c in text[:length])
    return Text(" ".join(shown.split()))


def _one_line(text: Text) -> Text:
    """``text``, cut where its column ends; set on the text because a column that can't wrap can't shrink."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _balance(connection: Connection) -> list[RowMapping]:
    return _rows(connection, "select * from message_balance")


def _rows(connection: Connection, statement: str, **parameters: object) -> list[RowMapping]:
    if ":route" in statement:
        parameters["route"] = ROUTE
    return list(connection.execute(sql(statement), parameters).mappings())


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left")
    return table


def _number(number: int, style: str | None = None) -> Text:
    return Text(f"{number:,}", style=style or "") if number else Text("·", style="dim")


def _difference(number: int) -> Text:
    return Text(f"✗ off by {number}", style="bold red") if number else Text("✓", style="green")


def _redrive() -> str:
    """What to type for ``redrive``: its path beside this Python, as after ``make run``, where a shell finds none."""
    beside = Path(sys.executable).with_name("redrive")
    return "redrive" if shutil.which("redrive") or not beside.exists() else _shortest(beside)


def _shortest(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
