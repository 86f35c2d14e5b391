"""Rules about what people decided: what they said is what happens, and nothing else in their name.

The book knows each word of people that the ledger took, and the last about each message. Nothing of the product is
imported here.
"""

from typing import TYPE_CHECKING

from tests.simulation.rule import Broken, Rules, body_hash, micros, own_headers
from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System
from tests.simulation.world.book import Word
from tests.simulation.world.systems import shown

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

#: SQL over ``escalated_messages`` as ``asked``: a standing decision spoke, which has rules of its own.
STANDS = "coalesce(asked.note, '') like 'standing decision %'"
NEWEST = (
    "asked.escalation_id = (select max(newest.escalation_id) from escalated_messages newest"
    " where newest.message_id = asked.message_id)"
)


class Decisions(Rules):
    """See the module."""

    def __init__(self, checker: "Checker") -> None:
        super().__init__(checker)
        self.kept: tuple[dict[int, Word], dict[int, int]] = ({}, {})

    def keep(self) -> None:
        self.kept = (dict(self.book.said), dict(self.book.releases))

    def forget(self) -> None:
        """What people said since is lost with the ledger."""
        self.book.said.clear()
        self.book.said.update(self.kept[0])
        self.book.releases.clear()
        self.book.releases.update(self.kept[1])

    def sent(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        assert copy.mark is not None
        rows = sql.rows(
            "select m.message_id, m.route, m.body_hash, a.mode from messages m inner join redelivery_attempts a"
            f" on a.message_id = m.message_id and a.attempt = {copy.mark[1]}"
            f" where m.redrive_id = {sql.quoted(copy.mark[0])}"
        )
        if not rows:
            return
        message, route, digest, mode = rows[0]
        told = f"{shown(copy.body)}, message {message}, to {queue}"
        word = self.book.said.get(message, Word(None))
        standing = self.stands(sql, message)
        if word.decision == "discard" and not standing:
            raise Broken("what people discarded is not sent", told)
        if mode == "release":
            self._may_go(message, route, word, standing)
        edits = {one for body, mended in self.book.edited.items() if body_hash(body) == bytes(digest) for one in mended}
        if mode == "release" and word.decision == "edit" and not standing:
            if copy.body != word.body:
                raise Broken("an edited message goes out with its edit", told)
        elif body_hash(copy.body) != bytes(digest) and copy.body not in edits:
            raise Broken("a message goes out with its own body", told)
        self._keeps_the_rest(system, copy, bytes(digest), told)

    def _keeps_the_rest(self, system: System, copy: Copy, digest: bytes, told: str) -> None:
        """Also where its body was edited it has the headers, and where there is order the key, of one of its copies."""
        known = {
            (own_headers(one), one.key)
            for place, one in self.book.entries
            if place[0] == system.name and one.by != "redrive" and body_hash(one.body) == digest
        }
        keyed = system.traits.client in ("plain", "sqs_fifo")
        mine = own_headers(copy), copy.key if keyed else None
        if known and not any((headers, key if keyed else None) == mine for headers, key in known):
            raise Broken("an edit changes nothing but the body", told)

    def stands(self, sql: Sql, message: int) -> bool:
        """Whether a standing decision spoke last."""
        return bool(
            sql.rows(f"select 1 from escalated_messages asked where message_id = {message} and {STANDS} and {NEWEST}")
        )

    def _may_go(self, message: int, route: str, word: Word, standing: bool) -> None:
        if standing:
            return
        if word.decision not in ("redeliver", "edit"):
            raise Broken("nothing is released that people did not release", f"message {message}: {word.decision}")
        if self._needs_two(route) and not word.approved:
            raise Broken("what needs two people waits for the second", f"message {message}, {word.decision}")

    def _needs_two(self, route: str) -> bool:
        return bool(self.checker.routes[route].get("approvals", 1) > 1)

    def after_step(self, sql: Sql) -> None:
        self._releases_were_said(sql)
        self._discards_were_said(sql)
        self._standing_ones_were_approved(sql)

    def _releases_were_said(self, sql: Sql) -> None:
        for message, route, state, plan, releases, standing in sql.rows(
            "select m.message_id, m.route, m.state, m.plan, m.releases, (select count(*) from standing_decisions s"
            " where s.decision = 'redeliver' and coalesce(s.route, m.route) = m.route) from messages m"
            " where m.releases > 0"
        ):
            if releases > self.book.releases.get(message, 0) + min(standing, 1):
                raise Broken("each word of people is carried out once", f"message {message}: {releases} times")
            if plan == "release" and state in ("waiting", "held"):
                word = self.book.said.get(message, Word(None))
                self._may_go(message, route, word, self.stands(sql, message))

    def to_be_released(self, sql: Sql, route: str) -> set[int]:
        """What a review is going to release."""
        two = "and asked.approved_by is not null" if self._needs_two(route) else ""
        return {
            row[0]
            for row in sql.rows(
                "select m.message_id from messages m inner join escalated_messages asked"
                f" on asked.message_id = m.message_id and {NEWEST} where m.route = {sql.quoted(route)}"
                " and m.state = 'escalated' and asked.status = 'decided'"
                f" and asked.decision in ('redeliver', 'edit') {two}"
            )
        }

    def after_review(self, sql: Sql, route: str, released: set[int]) -> None:
        """What was released now goes behind a canary of its own, whatever its group's gate was."""
        asked_again = [
            row[0] for row in sql.rows("select message_id from escalated_messages where status = 'reopened'")
            if row[0] in released
        ]  # fmt: skip
        if asked_again:
            raise Broken("what people release gets a canary", f"{route}: {asked_again} are asked about again at once")
        if self.checker.routes[route].get("canary", "off") == "off" or route in self.checker.changed_canaries:
            return
        rows = sql.rows(
            "select m.message_id, g.stage, g.stage_at from messages m left join group_state g on g.route = m.route"
            f" and g.group_id = m.group_id where m.route = {sql.quoted(route)} and m.plan = 'release'"
            " and m.state in ('waiting', 'held') and coalesce(g.stage, 'none') not in ('canary', 'ramp')"
        )
        # A gate that stopped at this very moment is no older than the decision, as far as clocks can tell.
        found = [row[:2] for row in rows if row[2] is None or micros(row[2]) < self.world.clock.now]
        if found:
            raise Broken("what people release gets a canary", f"{route}: {found}")

    def _discards_were_said(self, sql: Sql) -> None:
        for message, route in sql.rows(
            "select m.message_id, m.route from messages m inner join escalated_messages asked"
            f" on asked.message_id = m.message_id and {NEWEST} where m.state = 'discarded'"
            f" and asked.decision = 'discard' and asked.decided_by <> 'redrive restore' and not {STANDS}"
        ):
            word = self.book.said.get(message, Word(None))
            if word.decision != "discard":
                raise Broken("nothing is discarded that people did not discard", f"message {message}: {word.decision}")
            if self._needs_two(route) and not word.approved:
                raise Broken("what needs two people waits for the second", f"message {message}, discard")

    def _standing_ones_were_approved(self, sql: Sql) -> None:
        for message, route, approved in sql.rows(
            "select m.message_id, m.route, (select count(*) from standing_decisions s where s.approved_by is not null"
            " and s.approved_by <> s.decided_by and asked.note like 'standing decision ' || s.standing_id || ':%')"
            f" from messages m inner join escalated_messages asked on asked.message_id = m.message_id and {NEWEST}"
            f" where {STANDS} and asked.status in ('decided', 'applied') and m.state <> 'escalated'"
        ):
            if self._needs_two(route) and not approved:
                raise Broken("what needs two people waits for the second", f"message {message}, a standing decision")

    def at_the_end(self, sql: Sql) -> None:
        """What was discarded is."""
        for message, word in self.book.said.items():
            if word.decision != "discard":
                continue
            left = sql.rows(
                f"select m.state from messages m where m.message_id = {message} and m.state <> 'discarded'"
                f" and not exists (select 1 from escalated_messages asked where asked.message_id = {message}"
                f" and {NEWEST} and (asked.status in ('open', 'refused', 'reopened') or {STANDS}))"
            )
            if left:
                raise Broken("what people decided is done", f"message {message} was discarded and is {left[0][0]}")
