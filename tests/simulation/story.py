"""Plays a plan: every step, and then the end, at which all is well and everything must come to rest."""

import os
import random
import shlex
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation import plan as planning
from tests.simulation.actors import Actors, People
from tests.simulation.checker import Broken, Checker
from tests.simulation.driver import Outcome, Product, TooLong, simulated
from tests.simulation.life import Life
from tests.simulation.plan import Plan
from tests.simulation.sql import Sql
from tests.simulation.world import System, World
from tests.simulation.world.systems import MINUTE, SECOND

#: Runs of each route after which everything is at rest, once faults have ended and consumers are well.
BOUND = 14


@dataclass
class Told:
    """How a story ended."""

    seed: int
    theme: str | None = None  # where it was asked for
    rule: str = ""  # what is broken, in words; "": nothing
    detail: str = ""
    log: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    step: int = -1  # at which it broke; -1: at the end
    trace: str = ""

    @property
    def broken(self) -> bool:
        return bool(self.rule)

    def line(self) -> str:
        """One line for a failure."""
        how = f"{self.seed} --theme {shlex.quote(self.theme)}" if self.theme else str(self.seed)
        return f"seed {self.seed}: {self.rule}: {self.detail}  (python -m tests.simulation replay {how})"


class Story:
    """One plan in play."""

    def __init__(self, plan: Plan, database: str | None = None) -> None:
        self.plan = plan
        self.world = World(random.Random(f"world {plan.seed}"))
        for name, queues in plan.systems.items():
            system = System(self.world, name, plan.traits[name])
            for queue, how in queues.items():
                system.create(queue, **how)
        if plan.theme == "moved-route":
            self.world.book.one_for_all = dict.fromkeys(plan.systems, next(iter(plan.systems)))
        self.actors = Actors(self.world)
        self.people = People(self.world)
        self.config = {"routes": {name: dict(route) for name, route in plan.config["routes"].items()}}
        self.database = database
        self.told = Told(plan.seed)
        self.damaged: dict[int, tuple[Path, bytes]] = {}  # batch -> its file, and what was in it

    def play(self, steps: list[int] | None = None) -> Told:
        """All steps, or those with these numbers, and the end."""
        told = self.told
        told.log, told.numbers = self.world.log, self.world.book.numbers
        number = -1
        with simulated(self.world, self.plan.seed):
            self.product = Product(self.world, self.config, self.database)
            self.sql = Sql(self.product.database)
            self.checker = Checker(self.world, self.plan.config["routes"], self.product.folder / "staging")
            self.checker.sql = self.sql
            if any("processed_check" in route for route in self.config["routes"].values()):
                self.checker.records = self.world.book.record = self.product.records()
            self.actors.next_id = self.next_id
            try:
                for number, step in enumerate(self.plan.steps):
                    if steps is not None and number not in steps:
                        continue
                    self.world.log.append(f"            [{number}]")
                    self.step(step)
                    self.checker.after_step(self.sql)
                number = -1
                self.end()
            except TooLong as long:
                told.rule, told.detail, told.step = "no run goes on for ever", str(long), number
            except Broken as broken:
                told.rule, told.detail, told.step = broken.rule, broken.detail, number
            except Exception as error:
                told.rule, told.step = "the product doesn't fall over", number
                told.detail = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
                told.trace = traceback.format_exc()
            finally:
                self.sql.close()
                self.product.close()
        if told.broken:
            self.world.tell(f"BROKEN: {told.rule}: {told.detail}")
        return told

    # --- steps ------------------------------------------------------------------------------------------------

    def step(self, step: dict[str, Any]) -> None:
        dice, world = random.Random(step["dice"]), self.world
        match step["op"]:
            case "produce":
                self.actors.produce(step, dice)
            case "consume":
                self.actors.consume(step, dice)
            case "run":
                world.clock.now += round(step["minutes"] * MINUTE)
                self.run(step, dice)
            case "review":
                self.people.decide(self.sql, step["how"], dice)
                if step["apply"]:
                    self.review(step)
            case "advance":
                world.tell(f"{step['minutes']} minutes pass")
                world.clock.now += step["minutes"] * MINUTE
            case "trouble":
                world.systems[step["system"]].troubles.setdefault(step["action"], []).extend(step["fates"])
            case "peek":
                self.peek(step)
            case "restart":
                world.tell(f"{step['system']} restarts")
                world.systems[step["system"]].restart()
            case "heal":
                world.tell("what was wrong is mended")
                for sick in self.actors.ill.values():
                    sick.fails = 0
            case "pause":
                world.tell(f"ana pauses {step['route']}")
                self.pause(step["route"])
            case "resume":
                world.tell(f"ana resumes {step['route']}")
                self.resume(step["route"])
            case "release":
                self.release(step["route"])
            case "retention":
                before = self.checker.terms.before_retention(self.sql)
                world.tell(f"retention: {self.product.retention()}")
                self.checker.terms.after_retention(self.sql, before)
            case "restore":
                self.restore(step)
            case "mistype":
                self.configure({**step, "key": "destination", "value": {"queue": "oders"}})
            case "mend":
                self.mend()
            case "stand":
                self.people.stand(self.sql, step, dice)
            case "revoke":
                self.people.revoke(self.sql)
            case "ruling":
                self.people.rule(self.sql, step["kind"], dice)
            case "take_back":
                self.people.take_back(self.sql, dice)
            case "delete_rows":
                self.people.delete_rows(self.sql, older=dice.random() < 0.5)
            case "configure":
                self.configure(step)
            case "backup":
                if self.database is None:
                    world.tell("a backup of the ledger")
                    self.product.backup()
                    self.checker.keep()
            case "restore_backup":
                self.restore_backup(step)
            case "move":
                self.move(step)
            case "rename":
                self.rename(step["route"])
            case "damage":
                self.damage(dice)
            case "misquery":
                self.misquery(step["route"])
            case "pages":
                self.checker.pages_show_their_own({route: self.product.pages(route) for route in self.config["routes"]})
            case "siege":
                self.siege(step, dice)

    def run(self, step: dict[str, Any], dice: random.Random) -> Outcome:
        route, trouble = step["route"], step.get("trouble", {})
        one = self.life(trouble)
        if "meet" in trouble:
            one.meet[trouble["meet"]] = lambda: self.meet(trouble, step)
        self.world.tell(f"run of {route}" + (f", {_words(trouble)}" if trouble else ""))
        self.checker.exact_bounds = not trouble and self.product.skew == 0
        self.product.skew = trouble.get("skew", 0) * SECOND
        self.world.book.numbers["runs with another clock"] += "skew" in trouble
        self.checker.clocks_differed |= self.product.skew != 0
        self.world.book.numbers["runs"] += 1

        def watch(stage: str, counts: dict[str, Any]) -> None:
            told = {name: n for name, n in counts.items() if n and name not in ("seconds", "window_seconds", "shards")}
            self.world.tell(f"    {stage}" + (f" {told}" if told and stage != "report" else ""))
            self.checker.after_stage(stage, self.sql, route, step.get("shards", 1))
            if not trouble and stage == "resolve":
                self.checker.foretold(self.sql, route, self.product.foretold(route))
            elif not trouble and stage == "plan":
                self.checker.came_true(self.sql, route)

        outcome = self.product.run(
            route,
            one,
            retries=trouble.get("retries", 0),
            twice=trouble.get("twice", ""),
            shards=step.get("shards", 1),
            together=step.get("together", False),
            watch=watch,
        )
        self.product.skew = 0
        self.checker.after_run(self.sql, self.config["routes"], route, outcome.status, outcome.error, trouble)
        if trouble.get("who") == "take over":
            self.checker.leases.replaced_is_over(self.sql, route)
        self.world.tell(f"    run of {route}: {outcome}")
        self.world.book.numbers[f"runs {outcome.status}"] += 1
        if outcome.status == "died":
            self.world.book.numbers["deaths"] += 1
        if trouble.get("again") or (outcome.status == "died" and dice.random() < 0.5):
            self.world.clock.now += 3 * MINUTE
        return outcome

    def review(self, step: dict[str, Any]) -> None:
        trouble = step.get("trouble", {})
        one = self.life(trouble)
        if "meet" in trouble:
            one.meet[trouble["meet"]] = lambda: self.meet(trouble, step)
        released = self.checker.decisions.to_be_released(self.sql, step["route"])
        outcome = self.product.review(step["route"], one)
        self.world.tell(f"review of {step['route']}: {outcome}")
        if outcome.status == "done" and not trouble:
            self.checker.decisions.after_review(self.sql, step["route"], released)

    def meet(self, trouble: dict[str, Any], step: dict[str, Any]) -> None:
        """Others work while a run stands still."""
        dice, route = random.Random(trouble["dice"]), step["route"]
        exact, self.checker.exact_bounds = self.checker.exact_bounds, False
        match trouble["who"]:
            case "take over":
                self.world.clock.now += 5 * MINUTE  # its lease is over
                self.run({"route": route, "shards": 1}, dice)
                self.checker.leases.taken_over(self.sql, route)
            case "second":
                self.checker.leases.second(self.sql, route, lambda: self.run({"route": route, "shards": 1}, dice))
            case "nobody":  # it is only slow
                self.world.clock.now += trouble["minutes"] * MINUTE
            case "reconsider":
                self.people.reconsider(self.sql, dice)
            case "person":
                self.people.decide(self.sql, "all", dice)
                if dice.random() < 0.5:
                    self.world.tell(f"review of {route}: {self.product.review(route)}")
            case "consume":
                for name, queue in self._live():
                    self.actors.consume({"system": name, "queue": queue, "count": 10, "style": "own"}, dice)
            case "produce":
                name, queue = dice.choice(self._live())
                self.actors.produce(
                    {
                        "system": name,
                        "queue": queue,
                        "count": 2,
                        "error": planning.REFUSED,
                        "fails": 1,
                        "same_body": False,
                    },
                    dice,
                )
                self.actors.consume({"system": name, "queue": queue, "count": 10, "style": "reject"}, dice)
            case "pause":
                self.pause(route)
            case "backup" if self.database is None:
                self.world.tell("    a backup of the ledger")
                self.product.backup()
                self.checker.keep()
        self.checker.exact_bounds = exact

    def pause(self, route: str) -> None:
        self.product.pause(route)
        if route not in self.world.book.paused:
            last = self.sql.value("select coalesce(max(slice_id), 0) from delivery_slices")
            self.world.book.paused[route] = last

    def resume(self, route: str) -> None:
        self.product.resume(route)
        self.world.book.paused.pop(route, None)

    def peek(self, step: dict[str, Any]) -> None:
        system = self.world.systems[step["system"]]
        taken = system.receive(step["queue"], step["count"], 600, by="person")
        self.world.tell(f"somebody looks at {len(taken)} in {system.name}/{step['queue']}")
        if step["back"]:
            system.release(step["queue"], [receipt for _, receipt in taken], by="person")

    def release(self, route: str) -> None:
        for (group,) in self.sql.rows(
            f"select group_id from group_state where route = '{route}' and stage in ('failed', 'tripped')"
        ):
            self.world.tell(f"ana releases group {group} of {route}")
            self.product.release(route, group)
        for (queue,) in self.sql.rows(
            f"select destination from destination_state where route = '{route}' and stage <> 'open'"
        ):
            self.world.tell(f"ana releases {queue} of {route}")
            self.product.release_destination(route, queue)
        # Where no depth is told, those that failed by their lease go one by one, until somebody says that it worked;
        # and what is to be sent again counts as under way itself, which may be all that may be.
        if self.world.systems[self.config["routes"][route]["connection"]].traits.depth == "unknown":
            for (queue,) in self.sql.rows(
                f"select distinct destination from messages where route = '{route}'"
                " and (state = 'waiting' and cause = 'lease_expired' or state = 'unknown' and plan = 'resend')"
            ):
                self.world.tell(f"ana says that {queue} of {route} has worked")
                self.product.vouch(route, queue)

    def configure(self, step: dict[str, Any]) -> None:
        """What is refused stays as it was."""
        self.world.tell(f"configuration: {step['route']}.{step['key']} = {str(step['value'])[:100]}")
        route = self.config["routes"][step["route"]]
        before = route.get(step["key"])
        if step["key"] == "canary":
            self.checker.changed_canaries.add(step["route"])
        route[step["key"]] = step["value"]
        self.product.config, self.checker.current = self.config, self.config["routes"]
        if no := self.product.refused():
            self.world.tell(f"    refused: {no}")
            route[step["key"]] = before
            if before is None:
                del route[step["key"]]
        self.product.configure()

    def mend(self) -> None:
        """The configuration is again what it was in the beginning."""
        if self.config["routes"] != self.plan.config["routes"]:
            self.world.tell("configuration: as it was")
            self.config = {"routes": {name: dict(route) for name, route in self.plan.config["routes"].items()}}
            self.product.config, self.checker.current = self.config, self.config["routes"]
            self.product.configure()

    def move(self, step: dict[str, Any]) -> None:
        """The route's queues are on another broker from now on."""
        route = self.config["routes"][step["route"]]
        to = next(name for name in self.world.systems if name != route["connection"])
        self.world.tell(f"configuration: {step['route']} moves to {to}")
        self.config["routes"][step["route"]] = {**route, "connection": to}
        self.product.config, self.checker.current = self.config, self.config["routes"]
        self.product.configure()
        self.checker.group_sends.clear()  # there everything proves itself anew

    def rename(self, route: str) -> None:
        """A new queue takes the place of a route's destination, and has its consumers from now on."""
        at, queue = self.config["routes"][route], self.config["routes"][route].get("destination", {}).get("queue")
        system = self.world.systems[at["connection"]]
        if queue not in system.queues or queue.endswith("-2"):
            return
        new, old = f"{queue}-2", system.queues[queue]
        if not system.exists(new):
            system.create(new, lease=old.lease, max_deliveries=old.max_deliveries, dead_letters=old.dead_letters)
            self.world.book.renamed[system.name, new] = (system.name, queue)
        self.configure({"route": route, "key": "destination", "value": {"queue": new}})

    def misquery(self, route: str) -> None:
        """Somebody writes the consumer's key in another form than the consumer does."""
        check = self.config["routes"][route].get("processed_check")
        if check is not None:
            query = check["query"].replace("select order_number ", "select 'no-' || order_number ", 1)
            self.configure({"route": route, "key": "processed_check", "value": {**check, "query": query}})

    def damage(self, dice: random.Random) -> None:
        """A file of the staging is cut off, by somebody else."""
        found = {batch: path for batch, path in self.product.files().items() if batch not in self.damaged}
        if found:
            batch = dice.choice(sorted(found))
            self.damaged[batch] = (found[batch], found[batch].read_bytes())
            self.world.tell(f"the staging file of batch {batch} is cut off")
            os.truncate(found[batch], len(self.damaged[batch][1]) // 2)

    def bring_back(self) -> None:
        """Damaged files come back from the store's versions."""
        for path, content in self.damaged.values():
            path.write_bytes(content)
        self.damaged.clear()

    def siege(self, step: dict[str, Any], dice: random.Random) -> None:
        """More dead letters come in than a run drains, run after run; the consumer is well."""
        system, queue, route = self.world.systems[step["system"]], step["queue"], step["route"]
        limit = self.config["routes"][route]["drain"].get("limit", 2)
        self.checker.begin_siege()
        self.world.tell("a siege")
        for number in range(step["runs"]):
            for error in (step["error"], planning.KEY_ERROR)[: 2 if number % 2 else 1]:
                made = {"system": system.name, "queue": queue, "count": limit if number else 3 * limit, "error": error}
                self.actors.produce({**made, "fails": 1, "same_body": False}, dice)
            self.actors.consume({"system": system.name, "queue": queue, "count": 100, "style": "reject"}, dice)
            self.world.clock.now += 20 * MINUTE
            self.product.resume(route)
            self.run({"route": route, "shards": step["shards"], "together": True}, dice)
            self.actors.work_off(system, queue)
            self.checker.gates_move_on(self.sql, route)

    def restore(self, step: dict[str, Any]) -> None:
        route, trouble = step["route"], step.get("trouble", {})
        one = self.life(trouble)
        if "meet" in trouble:
            one.meet[trouble["meet"]] = lambda: self.meet(trouble, step)
        self.world.tell(f"restore of {route}" + (f", {_words(trouble)}" if trouble else ""))
        outcome = self.product.restore(route, one)
        self.world.tell(f"    restore of {route}: {outcome}")
        self.world.book.numbers[f"restores {outcome.status}"] += 1
        if outcome.status == "died":
            self.world.book.numbers["deaths"] += 1
            self.world.clock.now += 3 * MINUTE

    def life(self, trouble: dict[str, Any]) -> Life:
        return Life(
            die_at=trouble.get("die_at"),
            die_of=trouble.get("die_of", ""),
            ledger={trouble["ledger"]: trouble["how"]} if "ledger" in trouble else None,
            meet_of=trouble.get("meet_of", ""),
            disk={trouble["disk"]} if "disk" in trouble else None,
            tell=self.world.tell,
        )

    def next_id(self) -> str:
        """The id that the next message but a few will get."""
        last = self.sql.value("select coalesce(max(batch_id), 0) from staging_batches")
        self.world.serial += 1
        return f"simulate-{(last + 1 + self.world.serial % 3) << 20:014x}"

    def restore_backup(self, step: dict[str, Any]) -> None:
        if not self.product.backups or self.database is not None:
            return
        self.world.tell("the ledger is lost and comes back from its last backup")
        self.sql.close()
        self.product.restore_backup(-1)
        self.sql = Sql(self.product.database)
        self.checker.sql = self.sql
        self.checker.forget()
        self.world.book.forgotten += self.world.book.arrivals[self.product.backup_at :]
        if step.get("late"):  # the schedule doesn't wait for people
            self.world.book.asked_late = True
            for route in self.config["routes"]:
                self.world.clock.now += 3 * MINUTE
                self.run({"route": route, "shards": 1}, random.Random(step["dice"]))
        for route in self.config["routes"]:
            self.world.clock.now += 3 * MINUTE  # whoever held it then is gone
            outcome = self.product.adopt(route)
            self.world.tell(f"    files of {route} that it doesn't know are taken in: {outcome} {outcome.report}")
            self.must_be_done(route, outcome)

    def _live(self) -> list[tuple[str, str]]:
        return [
            (system.name, queue.name)
            for system in self.world.systems.values()
            for queue in system.queues.values()
            if queue.dead_letters
        ]

    # --- the end ----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Faults end, consumers are well, people resume and decide: within :data:`BOUND` runs everything is at rest."""
        world, product = self.world, self.product
        world.tell("from here on all is well")
        self.actors.healed = True
        for system in world.systems.values():
            system.troubles.clear()
        self.checker.exact_bounds = False
        self.mend()
        for name, route in self.config["routes"].items():
            if route.get("fan_out") == "refuse":  # people find that all readers may have it; till then nothing goes
                self.configure({"route": name, "key": "fan_out", "value": "allow"})
        self.checker.all_readers_may = True
        world.clock.now += 30 * MINUTE  # leases of the dead, looks of the curious
        if self.damaged:  # it stops its own messages and no others
            self.to_rest()
            world.tell("damaged files come back")
            self.bring_back()
        self.to_rest()
        self.checker.at_the_end(self.sql)
        problems = product.audit()
        if problems:
            raise Broken("the audit is clean", str(problems[0])[:300])

    def to_rest(self) -> None:
        world, product = self.world, self.product
        unrest: list[str] = []
        for number in range(self.bound()):
            for route in self.config["routes"]:
                world.clock.now += 20 * MINUTE
                self.resume(route)
                if number > 0:
                    self.release(route)
                if self.sql.value("select count(*) from escalated_messages where status = 'decided'"):
                    self.must_be_done(route, product.review(route))
                if number < 1 or self.checker.unrest(self.sql, route, self.damaged):
                    world.tell(f"run {number + 1} of {route}")
                    self.must_be_done(route, self.quiet_run(route))
            for name, queue in self._live():
                self.actors.work_off(world.systems[name], queue)
            self.checker.after_step(self.sql)
            unrest = self.checker.unrest(self.sql, without=self.damaged)
            open_ = self.people.decide_all(self.sql) if number < 4 else 0
            if not unrest and not open_ and number >= 2:
                break
        else:
            raise Broken("everything comes to rest", f"after {self.bound()} runs: {'; '.join(unrest)}")
        world.book.numbers["rounds to rest"] = max(world.book.numbers["rounds to rest"], number + 1)

    def bound(self) -> int:
        """:data:`BOUND`, and where only some may go at a time, as many runs as these need: of a key one goes per run
        and is observed until the next, and a limit of a run is shared by what was drained. Where depths are estimated
        a stage of a canary takes a run more, which sees that a zero stays."""
        ordered = any("order_by" in route for route in self.plan.config["routes"].values())
        limits = [route["drain"]["limit"] for route in self.plan.config["routes"].values() if "limit" in route["drain"]]
        # Of what is sent because its consumer was overloaded, a tenth may be in flight.
        rooms = [
            max(1, route["rate"]["max_in_flight"] // 10)
            for route in self.plan.config["routes"].values()
            if "rate" in route
        ]
        made = self.world.book.numbers["messages"]
        estimated = any(
            system.traits.depth == "about" or system.traits.client.startswith("sqs")
            for system in self.world.systems.values()
        )
        return (
            BOUND
            + (BOUND if estimated else 0)
            + (2 * made if ordered else 0)
            + (2 * made // min(limits) if limits else 0)
            + (made // min(rooms) if rooms else 0)
        )

    def quiet_run(self, route: str) -> Outcome:
        def watch(stage: str, _counts: dict[str, Any]) -> None:
            self.checker.after_stage(stage, self.sql, route)

        self.world.book.numbers["runs"] += 1
        outcome = self.product.run(route, watch=watch)
        self.world.tell(f"    {outcome}")
        return outcome

    def must_be_done(self, route: str, outcome: Outcome) -> None:
        # A route may pause itself once more when it finds most of what it has behind stopped gates.
        if outcome.status not in ("done", "paused"):
            raise Broken("once all is well no run fails", f"{route}: {outcome}")


def _words(trouble: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in trouble.items() if name != "dice")


def play(
    seed: int,
    steps: list[int] | None = None,
    *,
    theme: str | None = None,
    database: str | None = None,
) -> Told:
    """The story of ``seed``."""
    one = Story(planning.make(seed, theme=theme), database)
    one.told.theme = theme
    return one.play(steps)
