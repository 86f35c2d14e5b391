"""Consumers, producers and people: all who act besides Redrive."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.simulation import clients
from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System, World
from tests.simulation.world.book import Word
from tests.simulation.world.systems import ATTEMPT, COMPACT, ID, MINUTE, Header, moment, shown

MARKS = (ID, ATTEMPT, COMPACT)


class Illness:
    """Why a message fails, and how often still."""

    def __init__(self, text: str, fails: int) -> None:
        self.text = text
        self.fails = fails


class Actors:
    """All consumers and producers of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ill: dict[bytes, Illness] = {}
        self.bodies = 0
        self.healed = False
        self.kept: list[tuple[System, str, Copy]] = []  # what consumers finished and may still fail with

    # --- producers ------------------------------------------------------------------------------------------

    def new_body(self, word: str = "n") -> bytes:
        self.bodies += 1
        return b'{"%s": %d}' % (word.encode(), self.bodies)

    def produce(self, step: dict[str, Any], dice: random.Random) -> None:
        """Messages come to lie in a live queue."""
        system, queue = self.world.systems[step["system"]], step["queue"]
        self.world.tell(f"produce {step['count']} into {system.name}/{queue}: {step['error'].splitlines()[-1][:80]}")
        body = None
        for _ in range(step["count"]):
            if body is None or not step["same_body"]:
                body = self.new_body()
            error, odd = step["error"], []
            if "{}" in error:  # a word that nobody else says
                word = f"{queue.partition('.')[0][:3]}{dice.choice('abcdef')}xy"
                self.world.book.words.setdefault((system.name, queue), set()).add(word)
                error = error.format(word)
                odd = [("note", "String", "half\0done")]
            self.ill.setdefault(body, Illness(error, step["fails"]))
            headers: list[Header] = [("tenant", "String", dice.choice(["acme", "bolt"])), *odd]
            customer = dice.choice([None, "ana", "ben"])
            if customer:
                tail = f"{dice.getrandbits(24_000):x}\0" if step.get("long") and dice.random() < 0.5 else ""
                headers.append(("customer", "String", customer + tail))
            self.world.clock.now += 1000
            chosen = (
                f"p-{self.bodies}" if (dice.random() < 0.5 and not step["same_body"]) or step.get("numbered") else None
            )
            if step.get("shared") or (system.traits.client == "sqs_fifo" and dice.random() < 0.5):
                chosen = f"order-{dice.randrange(2)}"  # what it is about, and not which message it is
            fields: dict[str, Any] = {"publisher_id": chosen or ""}
            if system.traits.client != "plain":
                fields = clients.producer_fields(system.traits.client, body, dice, chosen=chosen)
            elif (
                step.get("shared") or step.get("numbered")
            ) and system.traits.ids == "none":  # and a clock that counts in minutes
                fields["enqueued_at"] = self.world.clock.now // MINUTE * MINUTE
            elif step.get("shared"):
                fields |= {"dedup_id": chosen, "properties": (("dedup_id", chosen),)}
            swallowed = self.world.book.numbers["swallowed"]
            system.send(
                queue, body, tuple(headers), by="producer",
                key=dice.choice(["k1", "k2"]) if system.traits.ordered else None, **fields,
            )  # fmt: skip
            if self.world.book.numbers["swallowed"] > swallowed:
                continue  # the producer repeats itself, as far as the broker can see
            self.world.book.owe((system.name, queue), body, self.world.clock.now)
            self.world.book.numbers["messages"] += 1

    # --- consumers --------------------------------------------------------------------------------------------

    def consume(self, step: dict[str, Any], dice: random.Random) -> None:
        """The consumer of a queue works for a while, in its own way."""
        system, queue, style = self.world.systems[step["system"]], step["queue"], step["style"]
        if style == "idle":
            return
        count = 2 if style == "few" else step["count"]
        taken = system.receive(queue, count, system.queues[queue].lease, by="consumer")
        if taken:
            self.world.tell(f"consume {len(taken)} of {system.name}/{queue}, {style}")
        if style == "hangs":  # it holds what it took as long as it may, and some of it is done by then
            for copy, _ in taken:
                if dice.random() < 0.3:
                    self.world.tell(f"    is done with {shown(copy.body)} and doesn't say so in time")
                    self.finish(system, queue, copy)
                    self.world.book.excuse((system.name, queue), copy.body, "a consumer that hung")
            return
        for copy, receipt in taken:
            self.world.clock.now += 1000
            self.theme = step.get("theme", "")
            self.one(system, queue, copy, receipt, "reject" if style == "few" else style, dice)
        if style == "late" and self.kept:
            where, its, copy = self.kept.pop(dice.randrange(len(self.kept)))
            self.world.tell(f"    fails after all: {shown(copy.body)}")
            self.world.book.excuse((where.name, its), copy.body, "it failed after it had been finished")
            self.dead_letter(where, its, copy, REFUSED_LATE)

    def work_off(self, system: System, queue: str) -> int:
        """Everything, well."""
        count = 0
        while taken := system.receive(queue, 1000, 60, by="consumer"):
            for copy, _ in taken:
                self.finish(system, queue, copy)
            system.settle(queue, [receipt for _, receipt in taken], by="consumer")
            count += len(taken)
        return count

    def one(self, system: System, queue: str, copy: Copy, receipt: int, style: str, dice: random.Random) -> None:
        place = (system.name, queue)
        if style == "mixed":
            style = dice.choice(["reject", "own", "bare", "leave", "well", "slow", "asks", "derives", "twice"])
        sick = self.ill.get(copy.body)
        fails = sick is not None and sick.fails > 0 and not self.healed and style != "well"
        text = sick.text if sick else ""
        if style == "slow":
            # Its work is done, and its lease is over before it says so: the message comes again.
            self.finish(system, queue, copy)
            self.world.book.excuse(place, copy.body, "a slow consumer")
            system.release(queue, [receipt], by="consumer")
            return
        if fails and style not in ("asks", "derives", "forwards", "late"):
            assert sick is not None
            if style == "leave":
                system.release(queue, [receipt], by="consumer")
                last = system.queues[queue].max_deliveries
                if last is None or copy.deliveries >= last:
                    sick.fails -= 1
                return
            sick.fails -= 1
            self.world.book.numbers["failures"] += 1
            if style in {"reject", "well"}:
                self.world.tell(f"    rejects {shown(copy.body)}")
                system.reject(queue, receipt, "Rejected", text)
                return
            self.world.tell(f"    dead-letters {shown(copy.body)} itself ({style})")
            if style == "splits" and not any(name == "part" for name, *_ in copy.headers):
                # Two messages with one body: from here on there is one more.
                self.world.book.owe(place, copy.body, self.world.clock.now)
                for part in ("1", "2"):
                    headers = (*self.without_error(copy), ("part", "String", part))
                    self.dead_letter(system, queue, copy, text, headers=headers)
                system.settle(queue, [receipt], by="consumer")
                return
            for _ in range(2 if style == "twice" else 1):
                self.dead_letter(system, queue, copy, text, bare=style == "bare", forge=style == "forges", dice=dice)
            if style == "twice":
                self.world.book.excuse(place, copy.body, "dead-lettered twice by its consumer")
            system.settle(queue, [receipt], by="consumer")
            return
        if style == "asks" and f"{queue}-delay" in system.queues:
            self.world.tell(f"    asks for later: {shown(copy.body)}")
            self.world.book.numbers["asks"] += 1
            self.copy_to(system, f"{queue}-delay", copy, self.without_error(copy), failed_at=place)
            system.settle(queue, [receipt], by="consumer")
            return
        self.finish(system, queue, copy)
        if style == "derives" and dice.random() < 0.5:
            body = self.new_body("derived")
            self.world.tell(f"    derives {shown(body)} of {shown(copy.body)}, headers copied")
            self.ill[body] = Illness(text or "derived: hm", 1)
            self.world.book.owe(place, body, self.world.clock.now)
            child = Copy(self.world.number(), body, parent=copy, key=copy.key)
            self.dead_letter(system, queue, child, text or "derived: hm", headers=copy.headers, fresh=True)
        elif style == "forwards":
            self.forward(system, queue, copy, dice)
        elif style == "late":
            self.kept.append((system, queue, copy))
        system.settle(queue, [receipt], by="consumer")

    def forward(self, system: System, queue: str, copy: Copy, dice: random.Random) -> None:
        """It goes on to another queue with all its headers: from there on it is another message."""
        others = [name for name, one in system.queues.items() if one.dead_letters and name != queue]
        if not others or self.world.book.owed[(system.name, others[0]), copy.body]:
            return
        to = others[0]
        headers = (
            copy.headers
            if dice.random() < 0.7 and self.theme == "forward-with-headers"
            else self.unmarked(copy.headers)
        )
        self.world.tell(f"    forwards {shown(copy.body)} to {to}" + (" with our headers" if copy.mark else ""))
        self.world.book.owe((system.name, to), copy.body, self.world.clock.now)
        self.ill[copy.body] = Illness(dice.choice(["ConnectionResetError: [Errno 104]", "KeyError: 'x'"]), 1)
        system.send(to, copy.body, headers, by="consumer", key=copy.key, parent=copy, fresh=True)

    theme = ""
    next_id: Callable[[], str] = staticmethod(lambda: "simulate-00000000100000")  # that the ledger will give

    def finish(self, system: System, queue: str, copy: Copy) -> None:
        self.world.book.finish(self.world.clock.now, (system.name, queue), copy)

    def dead_letter(
        self,
        system: System,
        queue: str,
        copy: Copy,
        text: str,
        *,
        bare: bool = False,
        forge: bool = False,
        fresh: bool = False,
        headers: tuple[Header, ...] | None = None,
        dice: random.Random | None = None,
    ) -> None:
        """The consumer itself lays a copy into the dead-letter queue."""
        target = system.queues[queue].dead_letters
        if target is None:
            return
        kept = self.without_error(copy) if headers is None else tuple(one for one in headers if one[0] != "error")
        if bare:
            kept = self.unmarked(kept)
        if forge and dice is not None:
            kept = self.forged(kept, dice, copy, queue)
        made = (*kept, ("error", "String", text))
        self.copy_to(system, target, copy, made, failed_at=(system.name, queue), fresh=fresh)

    def copy_to(
        self,
        system: System,
        target: str,
        copy: Copy,
        headers: tuple[Header, ...],
        *,
        failed_at: tuple[str, str],
        fresh: bool = False,
    ) -> None:
        system.send(
            target, copy.body, headers, by="consumer", key=copy.key, content_type=copy.content_type,
            publisher_id=copy.publisher_id, parent=copy, fresh=fresh, failed_at=failed_at,
            enqueued_at=copy.enqueued_at if system.traits.ids == "none" else None,
            origin=failed_at[1] if system.traits.tells_origin else None,
        )  # fmt: skip

    def forged(self, headers: tuple[Header, ...], dice: random.Random, copy: Copy, queue: str) -> tuple[Header, ...]:
        """Marks that Redrive didn't make."""
        kept = self.unmarked(headers)
        marks = [one.mark for one in self.world.book.arrivals if one.mark is not None]
        kinds = ["made up", "nonsense", "huge", "nul"] + (["another's"] if marks else [])
        if self.theme in ("forge-next-id", "forged-origin", "huge-numbers", "odd-headers", "odd-times"):
            kinds = [self.theme]
        elif self.theme == "forge":
            kinds += ["made up"] * 3
        match dice.choice(kinds):
            case "forge-next-id":
                name = self.next_id()
                self.world.book.forged.append((name, copy.body))
                return (*kept, (ID, "String", name), (ATTEMPT, "Number", "1"))
            case "forged-origin":
                return (*kept, ("x-told-origin", "String", "payroll"))
            case "odd-times":  # a clock in a unit of its own
                number = dice.choice([2**40, 2**50, 2**60, 10**16])
                return (*kept, ("x-told-enqueued", "Number", str(number)))
            case "huge-numbers" | "odd-headers":
                name = dice.choice(["x-told-deliveries", "x-told-enqueued", "x-death"])
                number = dice.choice([str(2**40), "99999999999", str(2**70), "several"])
                if name == "x-death":
                    number = str(int(number) % 2**62) if number.isdigit() else "-1"
                    died = json.dumps({"count": int(number), "reason": "rejected", "queue": queue})
                    return (*kept, (name, "json", f"[{died}]"))
                return (*kept, (name, "Number", number))
            case "made up":
                return (*kept, (ID, "String", "zzzzzzzz-00000000000007"), (ATTEMPT, "Number", "3"))
            case "nonsense":
                attempt = dice.choice(["-1", "²", "9999999999", "", "1e3"])
                return (*kept, (ID, "String", "simulate-1"), (ATTEMPT, "Number", attempt))
            case "huge":
                return (*kept, (ID, "String", "x" * 6000), (ATTEMPT, "Number", "1"))
            case "nul":
                return (*kept, (ID, "String", "a\0b"), (ATTEMPT, "Number", "1"))
        mark = dice.choice(marks)
        return (*kept, (ID, "String", mark[0]), (ATTEMPT, "Number", str(mark[1])))

    @staticmethod
    def without_error(copy: Copy) -> tuple[Header, ...]:
        return tuple(one for one in copy.headers if one[0] != "error")

    @staticmethod
    def unmarked(headers: tuple[Header, ...]) -> tuple[Header, ...]:
        return tuple(one for one in headers if one[0] not in MARKS)


REFUSED_LATE = "ConnectionRefusedError: [Errno 111] Connection refused"


#: States in which Redrive still has a message and may send it.
OPEN = ("classified", "waiting", "held", "sending", "unknown", "to_review", "escalated", "expired", "restoring",
        "restore_unknown")  # fmt: skip


class People:
    """They know SQL and the documentation."""

    def __init__(self, world: World) -> None:
        self.world = world

    def write(self, sql: Sql, statement: str) -> bool:
        """Somebody types this; the ledger may refuse it, as of what was taken up already."""
        if no := sql.refused(statement):
            self.world.tell(f"    the ledger refuses it: {no}")
        return not no

    def say(self, sql: Sql, what: str, where: str, word: Word) -> None:
        """Somebody sets ``what`` of review rows ``where``, and the book notes it if the ledger takes it."""
        about = [row[0] for row in sql.rows(f"select message_id from escalated_messages where {where}")]
        if self.write(sql, f"update escalated_messages set {what} where {where}"):
            for message in about:
                self.world.book.said[message] = word
                self.world.book.releases[message] += word.decision in ("redeliver", "edit")

    def approve(self, sql: Sql, where: str) -> None:
        """A second person agrees."""
        about = [row[0] for row in sql.rows(f"select message_id from escalated_messages where {where}")]
        if self.write(sql, f"update escalated_messages set approved_by = 'ben' where {where}"):
            for message in about:
                word = self.world.book.said.get(message, Word(None))
                self.world.book.said[message] = word._replace(approved=True)

    def decide(self, sql: Sql, how: str, dice: random.Random) -> None:
        """Decisions on open rows, as README.md says."""
        rows = sql.rows(
            "select escalation_id, group_id, payload from escalated_messages"
            " where status in ('open', 'refused', 'reopened') order by escalation_id"
        )
        if not rows:
            return
        chosen = dice.choice(rows)
        decision = dice.choice(["redeliver"] * 6 + ["discard", "edit"])
        if how == "one" or (how == "group" and chosen[1] is None):
            where = f"escalation_id = {chosen[0]}"
        elif how == "group":
            where = f"group_id = {chosen[1]}"
        else:
            where = "1 = 1"
        if decision == "edit":
            where = f"escalation_id = {chosen[0]}"
            edited = f"{chosen[2]} " if chosen[2] is not None else '{"edited": true}'
            if chosen[2] is not None:
                self.world.book.edited[chosen[2].encode()].add(edited.encode())
            self.world.tell(f"ana edits {chosen[2]}")
            self.say(
                sql,
                "decision = 'edit', decided_by = 'ana', note = 'mended', corrected_body = " + sql.quoted(edited),
                f"{where} and status in ('open', 'refused', 'reopened')",
                Word("edit", edited.encode()),
            )
        else:
            self.world.tell(f"ana decides {decision} where {where}")
            self.say(
                sql,
                f"decision = '{decision}', decided_by = 'ana', note = 'fixed'",
                f"{where} and status in ('open', 'refused', 'reopened')",
                Word(decision),
            )
        if dice.random() < 0.7:
            self.approve(sql, "status = 'decided' and decided_by = 'ana'")
        if dice.random() < 0.1:
            self.world.tell("ana changes her mind")
            self.say(sql, "decision = null", f"escalation_id = {chosen[0]} and status = 'decided'", Word(None))

    def reconsider(self, sql: Sql, dice: random.Random) -> None:
        """Somebody decides otherwise, as long as it was not taken up."""
        for row, decision in sql.rows(
            "select escalation_id, decision from escalated_messages where status = 'decided' order by escalation_id"
        ):
            other = dice.choice([None, "discard" if decision != "discard" else "redeliver"])
            self.world.tell(f"ana decides otherwise about row {row}: {other}")
            said = "null" if other is None else f"'{other}'"
            self.say(sql, f"decision = {said}, decided_by = 'ana'", f"escalation_id = {row}", Word(other))
            if dice.random() < 0.5 and other is not None:
                self.approve(sql, f"escalation_id = {row} and status = 'decided'")

    def stand(self, sql: Sql, step: dict[str, Any], dice: random.Random) -> None:
        """A decision that also holds for what comes later."""
        groups = [row[0] for row in sql.rows("select group_id from failure_groups order by group_id")]
        if not groups or not sql.sqlite:  # only there can a person's clock be the world's
            return
        group, now = dice.choice(groups), self.world.clock.now
        until = now + step["minutes"] * MINUTE
        self.world.tell(f"ana decides {step['decision']} for group {group} on {step['route']} until {moment(until)}")
        route = "null" if step["route"] is None else sql.quoted(step["route"])
        self.write(
            sql,
            "insert into standing_decisions (route, group_id, decision, decided_by, note, created_at, until_at)"
            f" values ({route}, {group}, '{step['decision']}', 'ana', 'known', '{moment(now)}', '{moment(until)}')",
        )
        if dice.random() < 0.5:
            self.write(sql, "update standing_decisions set approved_by = 'ben' where approved_by is null")

    def revoke(self, sql: Sql) -> None:
        self.world.tell("ben revokes what stands")
        for (standing,) in sql.rows("select standing_id from standing_decisions where revoked_at is null"):
            self.world.book.revoked[standing] = self.world.clock.now
        self.write(sql, "update standing_decisions set revoked_by = 'ben' where revoked_at is null")

    def rule(self, sql: Sql, kind: str, dice: random.Random) -> None:
        """Somebody says which groups are one failure, or that one of them holds two."""
        groups = sql.rows("select group_id, cause from failure_groups order by group_id")
        pairs = [(one, other) for one, cause in groups for other, theirs in groups if one < other and cause == theirs]
        if kind == "words":
            if groups:
                (group, _), words = dice.choice(groups), dice.choice(["reset by peer", "by peer", "refused"])
                self.world.tell(f"ana splits what says {words!r} off group {group}")
                self._ruled(sql, "split", group, "null", sql.quoted(words))
        elif pairs:
            one, other = dice.choice(pairs)
            self.world.tell(f"ana: {kind} of groups {one} and {other}")
            self._ruled(sql, kind, other, str(one), "null")

    def _ruled(self, sql: Sql, kind: str, group: int, other: str, words: str) -> None:
        self.write(
            sql,
            "insert into group_rulings (ruling, group_id, other_group_id, words, decided_by, note)"
            f" values ('{kind}', {group}, {other}, {words}, 'ana', 'she knows')",
        )

    def take_back(self, sql: Sql, dice: random.Random) -> None:
        """Somebody takes a ruling back."""
        said = sql.rows("select ruling_id from group_rulings where revoked_at is null order by ruling_id")
        if said:
            (ruling,) = dice.choice(said)
            self.world.tell(f"ben takes ruling {ruling} back")
            self.write(sql, f"update group_rulings set revoked_by = 'ben' where ruling_id = {ruling}")

    def delete_rows(self, sql: Sql, *, older: bool) -> None:
        """Somebody tidies up, which is refused; ``older``: on a ledger that doesn't refuse it yet."""
        self.world.tell("somebody deletes review rows" + (" of an older ledger" if older else ""))
        guard = "escalated_messages_stay"
        if older and sql.sqlite:
            (made,) = sql.rows(f"select sql from sqlite_master where type = 'trigger' and name = '{guard}'")
            sql.do(f"drop trigger {guard}")
        asked = (
            "select count(*) from escalated_messages e inner join messages m on m.message_id = e.message_id"
            " where e.status <> 'applied' and m.state = 'escalated'"
        )
        before = sql.value(asked)
        self.write(sql, "delete from escalated_messages where status <> 'applied'")
        if older and sql.sqlite:
            sql.do(made[0])
        elif sql.value(asked) < before:
            self.world.book.numbers["questions that somebody could delete"] += 1

    def decide_all(self, sql: Sql) -> int:
        """At the end everything that is open is decided, by people who look into queues and ask consumers first."""
        rows = sql.rows(
            "select e.escalation_id, m.state, e.message_id, e.payload, e.payload_bytes,"
            " (select count(*) from repeat_copies r where r.copy_id = e.message_id and r.kind = 'suspected')"
            " from escalated_messages e left join messages m on m.message_id = e.message_id"
            " where e.status in ('open', 'refused', 'reopened') order by e.escalation_id"
        )
        unapproved = "status = 'decided' and approved_by is null"
        pending = int(sql.value(f"select count(*) from escalated_messages where {unapproved}"))
        if not rows and not pending:
            return 0
        self.world.tell(f"people decide about all that is open: {len(rows)}")
        chosen: dict[str, list[int]] = {}
        for escalation_id, state, message_id, payload, raw, suspected in rows:
            body = payload.encode() if payload is not None else bytes(raw or b"")
            decision = "redeliver"
            if state == "restore_unknown":
                decision = "discard" if self._is_somewhere(body) else "not_there"
            elif suspected:
                kept = sql.value(
                    f"select count(*) from messages where state in {OPEN} and body_hash ="
                    " (select s.body_hash from messages s"
                    f" inner join repeat_copies r on r.message_id = s.message_id where r.copy_id = {message_id})"
                )
                decision = "discard" if kept or self._is_somewhere(body) or self._is_done(body) else "redeliver"
            chosen.setdefault(decision, []).append(int(escalation_id))
        for decision, ids in chosen.items():
            self.say(
                sql,
                f"decision = '{decision}', decided_by = 'ana', note = 'all is well now'",
                f"escalation_id in ({', '.join(map(str, ids))})",
                Word(decision),
            )
        self.approve(sql, unapproved)
        return len(rows) + pending

    def _is_somewhere(self, body: bytes) -> bool:
        """A queue holds it, or it was drained once more after it had been restored."""
        if any(copy.body == body for _, copy in self.world.copies()):
            return True
        restored = [one for one in self.world.book.arrivals if one.body == body and one.copy is not None]
        return any(self.world.systems[at[0]].queues[at[1]].dead_letters is None for _, at, *_ in restored)

    def _is_done(self, body: bytes) -> bool:
        book = self.world.book
        return all(book.done[key] >= count for key, count in book.owed.items() if key[1] == body)
