"""Rules about the terms of each send and each settle: when it may be made, how often, and what has to be there before.

Times are the world's, terms are those of the configuration and of the ledger's tables. Nothing of the product is
imported here.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from tests.simulation.rule import Broken, Rules, body_hash, micros, own_headers
from tests.simulation.sql import Sql
from tests.simulation.world import Copy, System
from tests.simulation.world.book import Mark, Place
from tests.simulation.world.systems import MINUTE, SECOND, shown

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

UNITS = {"s": SECOND, "m": MINUTE, "h": 60 * MINUTE, "d": 24 * 60 * MINUTE}
#: SQL over ``messages`` as ``m`` and their last attempt as ``a``.
LAST_ATTEMPT = "messages m inner join redelivery_attempts a on a.message_id = m.message_id and a.attempt = m.attempts"


def duration(text: str) -> int:
    """Microseconds of "30s", "5m", "2h", "14d"."""
    return int(text[:-1]) * UNITS[text[-1]]


class Terms(Rules):
    """See the module."""

    def __init__(self, checker: "Checker") -> None:
        super().__init__(checker)
        self.files: set[str] = set()  # that were looked into
        self.recorded: dict[Place, Counter[bytes]] = {}  # by source: bodies in files that the ledger counts on
        self.settled_bodies: dict[Place, Counter[bytes]] = {}
        self.planned_at = 0
        self.late: Counter[int] = Counter()  # sends of a slice after its end
        self.carried: dict[int, int] = {}  # message -> attempts that it came with
        self.observed: set[tuple[int, int]] = set()  # attempts that were presumed
        self.gates: dict[tuple[str, int], tuple[str, int]] = {}  # stage, and since when

    def forget(self) -> None:
        self.late.clear()
        self.carried.clear()
        self.observed.clear()
        self.gates.clear()
        self.book.paused.clear()

    # --- a send ---------------------------------------------------------------------------------------------

    def sent(self, sql: Sql, system: System, queue: str, copy: Copy) -> None:
        assert copy.mark is not None
        rows = sql.rows(
            "select m.message_id, m.route, m.kind, m.next_attempt_at, m.first_enqueued_at, a.mode, a.slice_id,"
            " a.unknown_at, s.deadline_at from messages m inner join redelivery_attempts a"
            f" on a.message_id = m.message_id and a.attempt = {copy.mark[1]}"
            " inner join delivery_slices s on s.slice_id = a.slice_id"
            f" where m.redrive_id = {sql.quoted(copy.mark[0])}"
        )
        if not rows:
            return
        message, route, kind, due, enqueued, mode, slice_id, unknown, deadline = rows[0]
        told = f"{shown(copy.body)}, message {message}, to {queue}"
        if slice_id > self.book.paused.get(route, slice_id):
            raise Broken("nothing is sent while its route is paused", told)
        self._is_in_time(route, slice_id, deadline, told)
        if system.traits.ordered and copy.key is not None:
            self._keeps_its_place(sql, copy, message, slice_id, told)
        if self.checker.staging is not None:
            self._comes_first(sql, system, route, copy, enqueued, told)
        if unknown is not None:
            self._may_be_repeated(route, system, copy.mark, told)
        elif self.checker.exact_bounds:
            self._is_due(route, system, copy, kind, mode, due, told)
            given_up = self.planned_at - duration(self.checker.routes[route].get("give_up_after", "14d"))
            if mode != "release" and enqueued is not None and micros(enqueued) < given_up:
                raise Broken("what is older than give_up_after is not sent", told)

    def _comes_first(self, sql: Sql, system: System, route: str, copy: Copy, enqueued: Any, told: str) -> None:
        """No earlier one of its key lies in a source since before it died itself."""
        customer = dict(own_headers(copy)).get("customer")
        if self.checker.routes[route].get("order_by") != "attribute:customer" or customer is None or enqueued is None:
            return
        sources = {one["queue"] for one in self.checker.routes[route]["sources"]}
        died = [
            one.arrived_at for place, one in self.book.entries
            if place[0] == system.name and place[1] in sources and one.body == copy.body
        ]  # fmt: skip
        self._look_into_files(sql)
        for source in sources if died else ():
            for one in system.queues[source].copies():
                earlier = one.enqueued_at < micros(enqueued) - SECOND and one.arrived_at < max(died)
                staged = self.recorded.get((system.name, source), Counter())[one.body]
                if earlier and not staged and dict(own_headers(one)).get("customer") == customer:
                    raise Broken("messages of a key go in order", f"{told}: {shown(one.body)} is not even staged")

    def _keeps_its_place(self, sql: Sql, copy: Copy, message: int, slice_id: int, told: str) -> None:
        """Where a broker keeps order, no message goes in a window from which an earlier one of its key did not go."""
        arrived = {one.mark for one in self.book.arrivals}
        nameless = {body_hash(one.body) for one in self.book.arrivals if one.mark is None}  # no room for our headers
        of_key = {body_hash(one.body) for _, one in self.book.entries if one.key == copy.key}
        for name, attempt, digest in sql.rows(
            "select m.redrive_id, a.attempt, m.body_hash from redelivery_attempts a inner join messages m"
            " on m.message_id = a.message_id inner join delivery_slices s on s.slice_id = a.slice_id"
            f" where a.slice_id = {slice_id} and a.message_id < {message} and a.message_id > s.confirmed_to"
        ):
            if bytes(digest) in of_key - nameless and (name, attempt) not in arrived:
                raise Broken("messages of a key go in order", f"{told}: {name} of its window did not go")

    def _is_in_time(self, route: str, slice_id: int, deadline: Any, told: str) -> None:
        """After the end of its claim at most the window goes that had been announced."""
        if self.checker.clocks_differed or micros(deadline) >= self.world.clock.now:
            return
        self.late[slice_id] += 1
        if self.late[slice_id] > self.checker.routes[route]["deliver"]["confirm_window"]:
            raise Broken("no window is sent after the end of its claim", told)

    def _may_be_repeated(self, route: str, system: System, mark: Mark, told: str) -> None:
        """An unknown send is made again only where the route says so, or a broker drops the second of two."""
        how, check = (
            self.checker.routes[route].get("on_unknown", "auto"),
            "processed_check" in self.checker.routes[route],
        )
        window = system.traits.dedupe
        made = [one.at for one in self.book.arrivals[:-1] if one.mark == mark]
        if not made or how == "resend" or (how == "auto" and check):
            return  # also where a run that stood still makes it, after others had wondered what became of it
        if how == "review" or window is None:
            raise Broken("an unknown send is repeated only as its route says", f"{told}: {how}")
        if self.checker.exact_bounds and self.world.clock.now - made[0] >= window * SECOND:
            raise Broken("an unknown send is repeated only as its route says", f"{told}: after the broker's window")

    def _is_due(self, route: str, system: System, copy: Copy, kind: str, mode: str, due: Any, told: str) -> None:
        at = max(self.world.clock.now, copy.visible_at) + SECOND
        if due is not None and at < micros(due):
            raise Broken("nothing is sent before it is due", f"{told}: {(micros(due) - at) / SECOND:g} s")
        if kind != "delay" or mode == "release":
            return
        # The world's own look: the consumer put it off, and its queue says for how long.
        waits = {
            one["queue"]: one["delay"] for one in self.checker.routes[route]["sources"] if one.get("kind") == "delay"
        }
        put_off = [
            one.arrived_at + duration(waits[place[1]])
            for place, one in self.book.entries
            if place[0] == system.name and place[1] in waits and one.body == copy.body
        ]
        if put_off and at < max(put_off):
            raise Broken("what a consumer put off waits as long as that says", told)

    # --- a settle -------------------------------------------------------------------------------------------

    def settled(self, sql: Sql, system: System, queue: str, copies: list[Copy]) -> None:
        """The rows and the files of these copies are there."""
        if self.checker.staging is None:
            return
        self._look_into_files(sql)
        place = (self.checker.home_of(system.name), queue)
        there = self.recorded.setdefault(place, Counter())
        before = self.settled_bodies.setdefault(place, Counter())
        for copy in copies:
            before[copy.body] += 1
            if before[copy.body] > there[copy.body]:
                raise Broken("what is settled is durable and recorded", f"{shown(copy.body)} in {system.name}/{queue}")

    def _look_into_files(self, sql: Sql) -> None:
        assert self.checker.staging is not None
        for uri, route, source in sql.rows(
            "select uri, route, source from staging_batches where state in ('recorded', 'settled')"
        ):
            if uri in self.files:
                continue
            try:
                bodies = parquet.read_table(self.checker.staging / uri, columns=["body"]).column("body").to_pylist()
            except (OSError, ValueError):
                continue  # it counts on a file that is not there
            self.files.add(uri)
            place = (self.checker.routes[route]["connection"], source)
            self.recorded.setdefault(place, Counter()).update(bodies)

    # --- a stage --------------------------------------------------------------------------------------------

    def after_stage(self, sql: Sql, stage: str, route: str) -> None:
        match stage:
            case "load":
                self._attempts_are_carried(sql)
                self._attempts_are_counted(sql)
            case "resolve":
                self._observed_long_enough(sql)
            case "plan":
                self.planned_at = self.world.clock.now
                self._gates_were_earned(sql, route)

    def _attempts_are_carried(self, sql: Sql) -> None:
        """Whatever id a message came with, it goes on to count its attempts."""
        told: dict[str, int] = {}
        for _, copy in self.book.entries:
            if copy.mark is not None and not copy.mark[0].startswith("simulate-"):
                told[copy.mark[0]] = min(told.get(copy.mark[0], 1000), copy.mark[1])
        for name, attempts in sql.rows(
            "select redrive_id, attempts from messages where redrive_id not like 'simulate-%'"
        ):
            if attempts < min(told.get(name, 0), 100):
                raise Broken("no circle begins to count anew", f"{name} came with {told[name]}, and counts {attempts}")

    def _observed_long_enough(self, sql: Sql) -> None:
        for message, attempt, route, sent in sql.rows(
            "select message_id, attempt, route, sent_at from redelivery_attempts where outcome = 'presumed'"
        ):
            if (message, attempt) in self.observed:
                continue
            self.observed.add((message, attempt))
            canary = self.checker.routes[route].get("canary", "off")
            if canary == "off" or canary["observe"] == "auto" or route in self.checker.changed_canaries:
                continue
            if sent is None or self.checker.clocks_differed:
                continue
            if self.world.clock.now - micros(sent) < duration(canary["observe"]):
                raise Broken("what is presumed was observed as long as the route says", f"message {message} of {route}")

    def _gates_were_earned(self, sql: Sql, route: str) -> None:
        """A canary grows only when enough of what it sent stayed away."""
        canary = self.checker.routes[route].get("canary", "off")
        for group, stage, stage_at in sql.rows(
            f"select group_id, stage, stage_at from group_state where route = {sql.quoted(route)}"
        ):
            before = self.gates.get((route, group))
            self.gates[route, group] = (stage, micros(stage_at))
            if before is None or canary == "off" or route in self.checker.changed_canaries:
                continue
            if before[0] not in ("canary", "ramp") or stage not in ("ramp", "open") or before[1] == micros(stage_at):
                continue
            good = bad = 0
            for outcome, sent in sql.rows(
                "select outcome, coalesce(sent_at, unknown_at) from redelivery_attempts where outcome is not null"
                f" and route = {sql.quoted(route)} and group_id = {group}"
                " and (return_kind is null or return_kind = 'dead_letter')"
            ):
                if micros(sent) >= before[1]:
                    good, bad = good + (outcome != "returned"), bad + (outcome == "returned")
            if good < canary["pass"] * (good + bad) - 0.001 or not good:
                raise Broken(
                    "a canary grows only on what stayed away", f"group {group} of {route}: {good} of {good + bad}"
                )

    # --- a step ---------------------------------------------------------------------------------------------

    def after_step(self, sql: Sql) -> None:
        self._settled_is_gone(sql)
        self._attempts_are_counted(sql)
        self._caps_hold(sql)
        self._what_is_under_way_is_not_planned(sql)
        self._drained_to_its_end(sql)

    def _settled_is_gone(self, sql: Sql) -> None:
        for route, source, count in sql.rows(
            "select route, source, sum(settled_copies) from staging_batches where adopted_from is null"
            " group by route, source"
        ):
            home = self.checker.routes[route]["connection"]
            done = sum(
                number
                for (system, queue), number in self.book.settled.items()
                if queue == source and self.checker.home_of(system) == home
            )
            if count > done:
                raise Broken("what counts as settled is", f"{count} of {source}, and {done} are")

    def _attempts_are_counted(self, sql: Sql) -> None:
        """As many as were made, and those that it came with."""
        for message, extra in sql.rows(
            "select m.message_id, m.attempts - (select count(*) from redelivery_attempts a"
            " where a.message_id = m.message_id) from messages m"
        ):
            if self.carried.setdefault(message, extra) != extra:
                raise Broken("attempts are counted as they are made", f"message {message}: {extra} too many")

    def _caps_hold(self, sql: Sql) -> None:
        for message, route, delays, others, after in sql.rows(
            "select a.message_id, a.route, sum(case when a.mode = 'delay' then 1 else 0 end),"
            " sum(case when a.mode in ('requeue', 'canary') then 1 else 0 end),"
            " sum(case when a.mode <> 'release' and exists (select 1 from redelivery_attempts before"
            "   where before.message_id = a.message_id and before.attempt < a.attempt and before.mode = 'release')"
            "   then 1 else 0 end)"
            " from redelivery_attempts a group by a.message_id, a.route"
        ):
            caps = self.checker.routes[route]
            told = f"message {message} of {route}"
            if delays > caps.get("delay_attempts", 5):
                raise Broken("no message is delayed more often than its cap allows", f"{told}: {delays}")
            if others > max(caps.get("requeue_attempts", 2), 1):  # of an unknown cause one goes, whatever the cap
                raise Broken("no message is requeued more often than its cap allows", f"{told}: {others}")
            if after:
                raise Broken("what people released and came back goes to people", told)

    def _what_is_under_way_is_not_planned(self, sql: Sql) -> None:
        """While nobody knows what became of its last send, nothing else is done with a message."""
        found = sql.rows(
            f"select m.message_id, m.state from {LAST_ATTEMPT} where a.sent_at is not null and a.outcome is null"
            " and a.unknown_at is null"
            " and m.state in ('classified', 'waiting', 'held', 'to_review', 'escalated', 'expired')"
        )
        if found:
            raise Broken("what is under way is not planned anew", f"{found}")

    def _drained_to_its_end(self, sql: Sql) -> None:
        """What lay in a source before the moment up to which it counts as drained was staged."""
        if self.checker.clocks_differed:
            return
        for route, source, to, where in sql.rows(
            "select s.route, s.source, s.drained_to, r.system from source_state s inner join route_state r"
            " on r.route = s.route where s.drained_to is not null"
        ):
            system = self.world.systems[self.checker.current[route]["connection"]]
            if where and not where.endswith(f":{system.name}"):
                continue  # it moves with its next run
            if system.traits.depth not in ("exact", "late") or source not in system.queues:
                continue
            if self.checker.home_of(system.name) != system.name:
                continue  # the route has moved
            place = (system.name, source)
            lying = {copy.body for copy in system.queues[source].copies() if copy.arrived_at < micros(to)}
            if not lying:
                continue
            self._look_into_files(sql)
            came = Counter(one.body for at, one in self.book.entries if at == place and one.arrived_at < micros(to))
            for body in lying:
                if came[body] > self.recorded.get(place, Counter())[body]:
                    raise Broken("a source that counts as drained is", f"{shown(body)} lies in {source} since before")

    # --- retention ------------------------------------------------------------------------------------------

    def before_retention(self, sql: Sql) -> dict[int, tuple[Any, ...]]:
        """All messages."""
        return {
            row[0]: row[1:]
            for row in sql.rows("select message_id, route, state, changed_at, body_hash, redrive_id from messages")
        }

    def after_retention(self, sql: Sql, before: dict[int, tuple[Any, ...]]) -> None:
        """What is gone was finished, and old enough."""
        there = {row[0] for row in sql.rows("select message_id from messages")}
        for message, (route, state, changed, digest, _) in before.items():
            if message in there:
                continue
            told = f"message {message} of {route}, {state}"
            if state not in ("presumed", "confirmed", "suppressed", "discarded"):
                raise Broken("retention removes what is finished", told)
            keep = duration(self.checker.routes[route].get("retention", "30d"))
            if micros(changed) > self.world.clock.now - keep + SECOND:
                raise Broken("retention removes what is old", told)
            if state in ("suppressed", "discarded"):
                self.checker.let_go[bytes(digest)] += 1

    def at_the_end(self, sql: Sql) -> None:
        lonely = sql.rows(
            "select copy_id from repeat_copies where kind = 'suspected' and not exists"
            " (select 1 from escalated_messages e where e.message_id = copy_id)"
        )
        if lonely:
            raise Broken("what is suspected lies before a person", str(lonely))
