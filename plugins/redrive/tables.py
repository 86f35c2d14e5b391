"""What the command line prints for people: Rich tables, nothing else."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STATES = (
    "classified", "waiting", "held", "sending", "sent", "unknown", "presumed", "confirmed", "suppressed",
    "escalated", "discarded", "expired",
)  # fmt: skip
_LEVELS = {"ok": "green", "warning": "yellow", "error": "red"}


def print_report(console: Console, report: dict[str, Any]) -> None:
    """The numbers of one run."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{report['route']}  run {report['run_id']}", title_justify="left")
    for name, value in report.items():
        if isinstance(value, int):
            table.add_column(name, justify="right")
    table.add_row(*(f"{value:,}" for value in report.values() if isinstance(value, int)))
    console.print(table)
    seconds = ", ".join(f"{stage} {taken:g} s" for stage, taken in report["seconds"].items())
    console.print(Text(f"took {seconds}", style="dim"))


def print_status(console: Console, status: dict[str, Any]) -> None:
    """One route: messages by state, queues, gates, holder."""
    console.print(Text(f"\n{status['route']}", style="bold"))
    if status["paused"]:
        console.print(Text(f"  paused: {status['pause_reason']}", style="red"))
    if status["held_by"]:
        held = status["held_by"]
        console.print(Text(f"  run {held['run_id']} ({held['holder']}) holds it until {held['until']} UTC"))
    balance = status["balance"]
    if not balance:
        console.print(Text("  nothing was staged yet", style="dim"))
    else:
        shown = [(state, balance[state]) for state in _STATES if balance.get(state)]
        console.print(Text("  " + "   ".join(f"{state} {count:,}" for state, count in shown)))
        if status["next_due_at"]:
            console.print(Text(f"  next redelivery due {status['next_due_at']} UTC", style="dim"))
    if status["queues"]:
        table = Table("queue", "role", "visible", "in flight", "delayed", "oldest", "seen", box=box.SIMPLE_HEAD)
        for one in status["queues"]:
            age = one["oldest_age_seconds"]
            table.add_row(
                Text(one["queue"]),
                one["role"],
                str(one["visible"]),
                str(one["in_flight"]),
                str(one["delayed"]),
                "unknown" if age is None else f"{age:,.0f} s ({one['oldest_age_method']})",
                str(one["observed_at"])[:19],
            )
        console.print(table)
    if status["gates"]:
        table = Table("group", "cause", "gate", "allowed", "sent", "stayed", "returned", "waiting", "held", "waits for",
                      box=box.SIMPLE_HEAD)  # fmt: skip
        for gate in status["gates"]:
            table.add_row(*(str(gate[key]) for key in (
                "group_id", "cause", "stage", "allowed", "sent", "stayed", "returned", "waiting", "held")),
                Text(_gate_waits_for(gate)))  # fmt: skip
        console.print(table)


def _gate_waits_for(gate: dict[str, Any]) -> str:
    match gate["stage"]:
        case "canary" | "ramp":
            return f"the outcome of {gate['sent'] - gate['stayed'] - gate['returned']} sends"
        case "failed":
            return f"a person: {gate['reason']}"
        case "tripped":
            return f"{gate['cool_down_until']}: {gate['reason']}"
    return ""


def print_preview(console: Console, plan: dict[str, Any]) -> None:
    """The plan of a dry run."""
    table = Table("messages", "verdict", "cause", "group", "when", "why", "template", box=box.SIMPLE_HEAD,
                  title=f"{plan['route']}: what the next run would do", title_justify="left")  # fmt: skip
    for row in plan["plan"]:
        table.add_row(
            f"{row['messages']:,}",
            row["verdict"],
            row["cause"] or "",
            "" if row["group"] is None else str(row["group"]),
            str(row["when"])[:19] if row["when"] else "",
            Text(row["why"]),
            Text((row["template"] or "")[:60]),
        )
    console.print(table)
    for due in plan["due_now"]:
        console.print(f"due now for {due['destination']}: {due['messages']:,}")
    unseen = plan["not_seen"]
    console.print(Text(f"not seen: {unseen['staged_but_not_classified']:,} staged copies are not classified yet;"
                       f" the sources were {unseen['in_the_sources']}", style="dim"))  # fmt: skip


def print_review_groups(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """What waits for a decision."""
    table = Table("route", "group", "cause", "open", "oldest", "redelivered / returned", "suggested", "template",
                  box=box.SIMPLE_HEAD)  # fmt: skip
    for row in rows:
        table.add_row(
            row["route"],
            str(row["group_id"]),
            row["cause"] or "",
            f"{row['open_messages']:,}",
            str(row["oldest"])[:19],
            f"{row['redelivered']} / {row['returned']}",
            row["suggested_decision"],
            Text((row["template"] or "")[:70]),
        )
    console.print(table if rows else Text("nothing waits for a decision", style="dim"))


def print_escalations(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The escalations of one message."""
    for row in rows:
        table = Table(
            box=box.SIMPLE, show_header=False, title=f"escalation {row['escalation_id']}", title_justify="left"
        )
        for name, value in row.items():
            if value is None or name == "escalation_id":
                continue
            table.add_row(name, Text(_printable(_field(name, value)[:4000])))
        console.print(table)


def _field(name: str, value: Any) -> str:
    if name == "payload_bytes":
        return f"{len(value)} bytes: {bytes(value[:64]).hex(' ')}"
    if name == "headers":
        return "\n".join(f"{header} ({kind}): {text}" for header, kind, text in json.loads(value))
    return str(value)


def print_trace(console: Console, life: dict[str, Any]) -> None:
    """One message's life as a timeline."""
    message = life["message"]
    console.print(Text(f"\nmessage {message['message_id']}  {message['redrive_id']}  {message['state']}", style="bold"))
    if life["group"]:
        console.print(Text(f"{message['cause']}: {_printable(life['group']['template'])[:200]}"))
    table = Table("when (UTC)", "what", box=box.SIMPLE_HEAD)
    for event in life["timeline"]:
        table.add_row(str(event["at"])[:26], Text(_printable(event["what"])))
    console.print(table)


def print_findings(console: Console, findings: Sequence[NamedTuple]) -> None:
    """What the doctor found."""
    table = Table(box=box.SIMPLE, show_header=False)
    for level, subject, text in findings:
        table.add_row(Text(level, style=_LEVELS[level]), Text(subject), Text(_printable(text)))
    console.print(table)


def _printable(text: str) -> str:
    """``text`` without control characters: a hostile error can't drive somebody's terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
