"""What the command line prints for people: Rich tables, nothing else."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from redrive.brokers import registry
from redrive.classification.causes import Cause
from redrive.cli.context import printable
from redrive.ledger.engine import parse_instant
from redrive.lifecycle import State

#: Every place where a message can be, as `message_balance` counts them, in the words of a person's glance.
_PLACES = {"staged": "staged, not yet classified", **{state.value: state.value.replace("_", " ") for state in State}}
_LEVELS = {"ok": "green", "untried": "dim", "warning": "yellow", "error": "red"}


def print_report(console: Console, report: dict[str, Any]) -> None:
    """The numbers of one run, those that say something."""
    console.print(Text(f"{report['route']}  run {report['run_id']}", style="bold"))
    if report.get("configuration"):
        console.print(Text(f"configuration {report['configuration']}", style="dim"))
    for title, names in (("this run", _OF_THIS_RUN), ("all of the route, now", _OF_ALL)):
        shown = [(name, report[name]) for name in names if report.get(name) or (name in _ALWAYS and name in report)]
        if shown:
            console.print(Text(title, style="dim"))
            table = Table(box=None, show_header=False, pad_edge=True)
            table.add_column(justify="right")
            for name, value in shown:
                table.add_row(f"{value:,}", f"{name}{_MEANING.get(name, '')}")
            console.print(table)
    for reason, count in report.get("reasons", {}).items():
        console.print(Text(printable(f"  to people, {count:,}: {reason}")))
    if report.get("refused"):
        console.print(
            Text(f"  {report['refused']:,} were refused by the broker and went to people: `redrive review list`", "red")
        )
    if report.get("clean"):
        console.print(Text("clean: the sources are drained to their end, and nothing waits"))
    if report.get("paused"):
        console.print(Text(f"the route is {report['paused']}; `redrive resume {report['route']}`", style="red"))
    taken = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report["seconds"].items() if seconds >= 0.05)
    console.print(Text(f"took {taken or 'no time'}", style="dim"))


_OF_THIS_RUN = (
    "drained", "new", "returned", "duplicates", "suspected", "classified", "redelivered", "confirmed", "presumed",
    "suppressed", "escalated", "refused", "later", "overflowed", "rescued",
)  # fmt: skip
_OF_ALL = ("untouched", "waiting", "held", "unknown", "to_decide", "to_approve")
_ALWAYS = ("drained", "redelivered", "escalated")
_MEANING = {
    "untouched": " (this run did not ask for them)",
    "to_decide": " (a person decides: `redrive review list`)",
    "to_approve": " (decided, and a second person has to approve it: approved_by)",
    "refused": " (the broker won't ever take them)",
    "duplicates": " (copies that were staged before)",
    "suspected": " (perhaps staged before: people decide)",
    "suppressed": " (processed already, not sent again)",
    "confirmed": " (proved to be processed)",
    "presumed": " (did not come back within a window that could have seen it)",
    "overflowed": " (too many different failures at once: one group for each cause)",
    "later": " (staged, and classified in the next runs)",
    "rescued": " (drained beyond the limit: they would have been lost before the next run)",
    "unknown": " (lost sight of between send and confirmation)",
}


def print_advice(console: Console, causes: dict[str, int], broker: str) -> None:
    """How to make the commonest causes not happen again."""
    for cause, count in causes.items():
        console.print(
            Text(f"\n{cause}, {count:,} of the newest messages: how to make it not happen again", style="bold")
        )
        console.print(Text(registry.advice(Cause(cause), broker)))


def print_status(console: Console, status: dict[str, Any], now: datetime, *, wide: bool = False) -> None:
    """One route: messages by state, queues, gates, holder. For eighty columns, unless ``wide``."""
    console.print(Text(f"\n{status['route']}", style="bold"))
    if not status.get("configured", True):
        console.print(
            Text("  not in the configuration, or wrong there: no run does anything for what is unfinished", "red")
        )
    if status["paused"]:
        since = f"since {str(status['paused_at'])[:16]} UTC, by {status['paused_by']}"
        console.print(Text(printable(f"  paused {since}: {status['pause_reason']}"), style="red"))
    if status["held_by"]:
        held = status["held_by"]
        until = parse_instant(held["until"])
        if until is not None and until > now:
            says = f"holds it until {until:%Y-%m-%d %H:%M:%S} UTC"
        else:
            says = "held it and is gone: the next run takes over"
        console.print(Text(printable(f"  run {held['run_id']} ({held['holder']}) {says}")))
    last, following = status["configuration"]["last_run"], status["configuration"]["next_run"]
    if last:
        is_edited = following not in (last, None)
        changed = f"; the file was edited since: the next run begins with {following}" if is_edited else ""
        console.print(Text(f"  configuration {last}{changed}", style="dim"))
    balance = status["balance"]
    if not balance:
        console.print(Text("  nothing was staged yet", style="dim"))
    else:
        shown = [(words, balance[place]) for place, words in _PLACES.items() if balance.get(place)]
        console.print(Text("  " + "   ".join(f"{state} {count:,}" for state, count in shown)))
        people = [(status.get("to_decide"), "to decide (`redrive review list`)")]
        people.append((status.get("decided"), "decided (`redrive review apply`)"))
        if waits := [f"{count:,} {words}" for count, words in people if count]:
            console.print(Text(f"  people: {', '.join(waits)}"))
        if due := parse_instant(status["next_due_at"]):
            console.print(Text(f"  next redelivery {_due(status, due, now)}", style="dim"))
    _print_queues(console, status["queues"], now)
    for one in status["stuck_consumers"]:
        who, since = f"{one['consumer']} of {one['queue']}", str(one["last_progress_at"])[:16]
        said = f"  {who} is {one['status']}: it holds {one['unacked']:,} and got nowhere since {since} UTC"
        console.print(Text(printable(said), style="red"))
    _print_destinations(console, status["destinations"], now)
    _print_untold(console, status["route"], status["watching"])
    _print_gates(console, status["gates"], status["watching"], wide=wide)


def _print_queues(console: Console, queues: Sequence[dict[str, Any]], now: datetime) -> None:
    if not queues:
        return
    table = Table("queue", "visible", "in flight", "delayed", "oldest", "seen", box=box.SIMPLE_HEAD)
    for one in queues:
        age = one["oldest_age_seconds"]
        table.add_row(
            Text(printable(one["queue"])),
            *("?" if one[name] is None else f"{one[name]:,}" for name in ("visible", "in_flight", "delayed")),
            "unknown" if age is None else f"{age:,.0f} s",
            _ago(one["observed_at"], now),
        )
    console.print(table)


def _ago(moment: datetime | str | None, now: datetime) -> str:
    """How old a look is, in its largest unit."""
    at = parse_instant(moment)
    if at is None:
        return "never"
    seconds = max(0, int((now - at).total_seconds()))
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {name} ago"
    return f"{seconds} s ago"


def _due(status: dict[str, Any], due: datetime, now: datetime) -> str:
    """When something is due, and where it is by now, which run sends it."""
    if due > now:
        return f"due {due:%Y-%m-%d %H:%M:%S} UTC"
    if not status.get("configured", True):
        return "due"
    after = f" after `redrive resume {status['route']}`" if status["paused"] else ""
    return f"due now: the next run{after} sends it"


def _print_destinations(console: Console, destinations: Sequence[dict[str, Any]], now: datetime) -> None:
    """The destinations whose breaker lets nothing or only a few through."""
    for one in destinations:
        until = parse_instant(one["cool_down_until"])
        if one["stage"] == "tripped" and until is not None and until <= now:
            says = f"nothing went to {one['destination']} for a while; the next run tries it with a few"
        elif one["stage"] == "tripped":
            says = f"nothing goes to {one['destination']} until {str(until)[:16]} UTC"
        else:
            says = f"{one['destination']} is tried with {one['allowed']}, {one['sent']} are sent"
        console.print(Text(printable(f"  breaker: {says}; {one['waiting']:,} wait. {one['reason']}"), style="red"))


def _print_untold(console: Console, route: str, watching: dict[str, Any]) -> None:
    """The destinations of which nobody sees that they work, and what a person can do."""
    behind = "; later messages of their order keys wait for that" if watching["keeps_order"] else ""
    for queue in watching["untold"]:
        says = (
            f"  sends to {queue} may stay without an outcome, as nobody tells how much it holds{behind}: a processed"
            f" check tells, or a person says that it has worked them off: redrive release {route} --destination {queue}"
        )
        console.print(Text(printable(says), style="red" if behind else "dim"))


def _print_gates(console: Console, gates: Sequence[dict[str, Any]], watching: dict[str, Any], *, wide: bool) -> None:
    """The gates behind which something waits, and the stopped ones; an idle canary says nothing. What each waits for
    has a line of its own, so that it is read and no cause is cut."""
    telling = [g for g in gates if g["waiting"] or g["held"] or g["sent"] or g["stage"] in ("failed", "tripped")]
    if not telling:
        return
    names = ("group", "cause", "gate", "sent", "back", "waiting", "held", *(["waits for"] if wide else []))
    table = Table(*names, box=box.SIMPLE_HEAD) if wide else None
    if table is None:
        console.print(Text("  gates, by group:", style="dim"))
    for gate in telling:
        stage = gate["stage"] if gate["stage"] not in ("canary", "ramp") else f"{gate['stage']} of {gate['allowed']}"
        counts = [f"{gate[name]:,}" for name in ("sent", "returned", "waiting", "held")]
        if table is not None:
            table.add_row(
                str(gate["group_id"]), gate["cause"], stage, *counts, Text(printable(gate["waits_for"] or ""))
            )
            continue
        said = f"  {gate['group_id']:>5}  {gate['cause']}, {stage}; " + ", ".join(
            f"{n} {name}" for n, name in zip(counts, ("sent", "back", "waiting", "held"), strict=True)
        )
        console.print(Text(said))
        if gate["waits_for"]:
            console.print(Padding(Text(printable(f"waits for {gate['waits_for']}"), style="dim"), (0, 0, 0, 9)))
    if table is not None:
        console.print(table)
    if watching["not_worked_past"]:
        console.print(
            Text(
                f"  {watching['not_worked_past']:,} sends, the oldest of {str(watching['oldest_send'])[:16]} UTC: their"
                " destination is not known to have worked past them yet",
                style="dim",
            )
        )
    if watching["in_window"]:
        least = watching["least_drained"]
        console.print(
            Text(
                f"  {watching['in_window']:,} sends are within their observation window, the oldest since"
                f" {str(watching['worked_past_at'])[:16]} UTC"
                + (f"; {least['source']} is drained up to {str(least['drained_to'])[:16]} UTC" if least else ""),
                style="dim",
            )
        )


def print_preview(console: Console, plan: dict[str, Any]) -> None:
    """The plan of a dry run, a group in three lines: side by side its words fit no terminal."""
    if plan["plan"]:
        console.print(Text(f"{plan['route']}: what the next run would do", style="bold"))
    for row in plan["plan"]:
        group = "" if row["group"] is None else f"group {row['group']}"
        told = filter(None, (row["cause"], group))
        why = printable(": ".join(filter(None, (_span(row["when"], row.get("until")), row["why"]))))
        console.print(Text(f"{row['messages']:>9,}  {row['verdict']:<8}  {', '.join(told)}"))
        template = printable(" ".join((row["template"] or "").split()))[:120]
        console.print(Padding(Text("\n".join(filter(None, (why, template))), style="dim"), (0, 0, 0, 11)))
    if plan.get("peeked"):
        _print_peeked(console, plan["route"], plan["peeked"])
    for due in plan["due_now"]:
        console.print(Text(printable(f"due now for {due['destination']}: {due['messages']:,}")))
    for sentence in plan["bounds"]:
        console.print(Text(printable(f"but {sentence}"), style="red"))
    unseen = plan["not_seen"]
    staged = unseen["staged_but_not_classified"]
    copies = f"{staged:,} staged copies are not classified yet; " if staged else ""
    console.print(Text(f"not seen: {copies}the sources were {unseen['in_the_sources']}", style="dim"))
    _print_next(console, plan)


def _print_next(console: Console, plan: dict[str, Any]) -> None:
    """Where there is nothing to plan, how much lies in the sources, and the command that begins."""
    if plan["plan"]:
        return
    route, depths = plan["route"], plan.get("sources", {})
    for queue, count in depths.items():
        said = f"{count:>9,}  in {queue}" if count is not None else f"nobody tells how much is in {queue}"
        console.print(Text(printable(said)))
    if plan["not_seen"]["staged_but_not_classified"]:
        console.print(Text(f"next: redrive classify {route}, then this again"))
    elif plan.get("peeked") or any(count != 0 for count in depths.values()):
        console.print(Text(f"next: redrive drain {route} --limit 100, redrive classify {route}, then this again"))
    elif depths:
        console.print(Text(f"nothing of {route} is known that a run could do"))


def _print_peeked(console: Console, route: str, peeked: Sequence[dict[str, Any]]) -> None:
    """What lies in the sources, a kind in three lines: side by side its names and text fit no terminal."""
    console.print(Text(f"{route}: what lies in its sources (looked at, not touched)", style="bold"))
    for row in peeked:
        said = {name: printable(" ".join((row[name] or "").split()))[:200] for name in row if name != "messages"}
        names = " · ".join(said[name] for name in ("cause", "reason", "type") if said[name])
        where = f"in {said['source']}" + (f", failed at {said['origin']}" if said["origin"] else "")
        console.print(Text(f"{row['messages']:>9,}  {names}"))
        console.print(Padding(Text("\n".join(filter(None, (said["template"], where))), style="dim"), (0, 0, 1, 11)))


def _span(first: object, last: object) -> str:
    """When, or from when until when; words as they are."""
    begin, end = _moment(first), _moment(last)
    if not end or end == begin:
        return begin
    return f"{begin.removesuffix(' UTC')} - {end[11:] if end[:10] == begin[:10] else end}"


def _moment(told: object) -> str:
    try:
        at = parse_instant(told) if isinstance(told, str) else told
    except ValueError:
        return str(told)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if isinstance(at, datetime) else ""


_SIMULATED = ("redelivered", "returns", "stayed", "escalated", "given_up", "held", "not_known")


def print_simulation(console: Console, found: dict[str, Any]) -> None:
    """What was and what would have been: one number where both are the same."""
    if not found["rows"]:
        console.print(Text("nothing that was selected has a history", style="dim"))
        return
    table = Table("cause", "group", "messages", *(name.replace("_", " ") for name in _SIMULATED), "waits up to",
                  box=box.SIMPLE_HEAD, title=f"{found['route']}: what was → what would have been",
                  title_justify="left")  # fmt: skip
    total = {"cause": "all", "group": None, **found["total"]}
    for row in [*found["rows"], total]:
        was, would = row["was"], row["would"]
        table.add_row(
            row["cause"] or "delayed",
            "" if row["group"] is None else str(row["group"]),
            f"{was['messages']:,}",
            *(_change(was[name], would[name]) for name in _SIMULATED),
            f"{would['longest_wait_seconds']:,.0f} s",
        )
    console.print(table)
    for row in found["rows"]:
        if row["gate"] and row["gate"] != "passed":
            console.print(Text(f"group {row['group']}: {row['gate']}"))
    console.print(Text("given up: escalated, although a later redelivery did stay away", style="dim"))
    for line in found["not_known"]:
        console.print(Text(f"not known: {line}", style="dim"))


def _change(was: int, would: int) -> str:
    return f"{was:,}" if was == would else f"{was:,} → {would:,}"


def print_review_groups(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """What waits for a decision, a group in two lines."""
    if not rows:
        console.print(Text("nothing waits for a decision", style="dim"))
        return
    columns = "{:>7}  {:>7}  {:<23}  {:<11}  {:>9}  {}"
    console.print(Text(columns.format("group", "open", "cause", "oldest", "sent/back", "suggested"), style="bold"))
    for row in rows:
        went = f"{row['redelivered']}/{row['returned']}"
        suggested = row["suggested_decision"] or ""
        told = (row["open_messages"], row["cause"] or "", str(row["oldest"])[5:16], went, suggested)
        console.print(Text(columns.format(row["group_id"] or "none", f"{told[0]:,}", *told[1:])))
        about = f"{row['route']}: {row['template'] or row['why'] or ''}"
        about = " " * 9 + printable(" ".join(about.split()))
        console.print(Text(about, style="dim"), no_wrap=True, overflow="ellipsis")


def print_escalations(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The escalations of one message."""
    for row in rows:
        table = Table(
            box=box.SIMPLE, show_header=False, title=f"escalation {row['escalation_id']}", title_justify="left"
        )
        for name, value in row.items():
            if value is None or name == "escalation_id":
                continue
            table.add_row(name, Text(printable(_field(name, value)[:4000])))
        console.print(table)


def _field(name: str, value: Any) -> str:
    if name == "payload_bytes" and isinstance(value, bytes | memoryview):
        return f"{len(value)} bytes: {bytes(value[:64]).hex(' ')}"
    if name == "headers":
        return "\n".join(f"{header} ({kind}): {text}" for header, kind, text in json.loads(value))
    return str(value)


def print_trace(console: Console, life: dict[str, Any]) -> None:
    """One message's life as a timeline."""
    message = life["message"]
    console.print(Text(f"\nmessage {message['message_id']}  {message['redrive_id']}  {message['state']}", style="bold"))
    if life["group"]:
        console.print(Text(f"{message['cause']}: {printable(life['group']['template'])[:200]}"))
    table = Table("when (UTC)", "what", box=box.SIMPLE_HEAD)
    for event in life["timeline"]:
        table.add_row(str(event["at"])[:26], Text(printable(event["what"])))
    console.print(table)


def print_findings(console: Console, findings: Sequence[NamedTuple]) -> None:
    """What the doctor found."""
    table = Table(box=box.SIMPLE, show_header=False)
    for level, subject, text in findings:
        table.add_row(Text(level, style=_LEVELS[level]), Text(subject), Text(printable(text)))
    console.print(table)
