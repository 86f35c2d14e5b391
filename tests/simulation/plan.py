"""Everything that is random, made from the seed before anything happens: systems, configuration and a list of steps.

Each step carries dice of its own, so that leaving one out changes nothing in the others: that is what makes a failing
seed shrink.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation import clients, directed
from tests.simulation.world import Traits

#: Themes that are about one broker: the clients that all systems are reached through.
ON_CLIENT: dict[str, tuple[str, ...]] = {
    "sqs": ("sqs", "sqs", "sqs_fifo"),
    "rabbitmq": ("rabbitmq", "rabbitmq", "rabbitmq_managed"),
    "held": ("rabbitmq_managed",),
    "odd-headers": ("rabbitmq", "rabbitmq_managed"),
    "pubsub": ("pubsub",),
    "service_bus": ("service_bus",),
}
#: What a story is about, besides everything else that happens in it. Each asks for a world, steps and habits.
THEMES = (
    "plain", "crashes", "beside", "two processes", "faults", "people", "order", "canary",
    "forge", "forge-next-id", "forged-origin", "forward-with-headers", "same-names", "late-depth", "approximate-depth",
    "restore", "backup", "no-identity", "no-identity", "small-limit", "mistyped-destination", "delete-review-rows",
    "long-keys", "huge-numbers", "runaway-rules", *ON_CLIENT,
    "expiry", "fan-out", "records", "standing", "hangs", "rates", "shared-ids", "shuffles", "clocks",
    "backlog", "hidden", "pages", "moved-route", "damaged-file", "interrupts", "fast-clock", "torn-backup",
    "rulings", *(one for one in directed.ROUNDS if one != "beside"),
)  # fmt: skip
#: Of these so few steps tell all.
SHORT = {
    "backlog": 1,
    "hidden": 1,
    "pages": 2,
    "moved-route": 2,
    "held": 2,
    "damaged-file": 4,
    "fast-clock": 1,
    "torn-backup": 3,
}
#: Themes that ask for more of a system than a stand-in of a client library can be told.
OWN_CLIENT = (
    "forged-origin", "forward-with-headers", "late-depth", "approximate-depth", "small-limit", "canary", "order",
    "mistyped-destination", "huge-numbers", "same-names", "expiry", "fan-out", "records", "rates", "shuffles",
    "clocks", "backlog", "hidden", "moved-route", "fast-clock",
)  # fmt: skip
#: How often which stand-in is drawn.
CLIENTS = ("service_bus", "service_bus", "pubsub", "sqs", "sqs_fifo", "sqs_fifo", "rabbitmq", "rabbitmq")

#: Seconds for which queues keep a message where they don't keep it for long.
RETENTION = 2 * 3600

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
KEY_ERROR = "Traceback (most recent call last):\n  File \"shop.py\", line 7, in handle\nKeyError: 'sku'"
THROTTLED = "HTTP Error 429: Too Many Requests"
STRANGE = "the flux capacitor said hm"
ODD = "gate 7 does not open"
#: Texts that keep an engine with backtracking busy, or one that looks at many places at once.
LONG = "a" * 8000
#: A rule that RE2 takes, and looks for in linear time.
AMBIGUOUS = {"match": "^(?:a|aa)+$", "cause": "dependency_unavailable"}
#: One that takes seconds for each text, whatever the engine: the configuration has to refuse it.
VAST = {"match": "(?:a?){999}" * 24 + "b", "cause": "dependency_unavailable"}
#: With a word that only messages of its queue say.
DOOR = "the door of {} does not open"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
ERRORS = (REFUSED, REFUSED, REFUSED, REFUSED, THROTTLED, KEY_ERROR, STRANGE, ODD)


@dataclass
class Plan:
    """A whole story before it is played."""

    seed: int
    theme: str
    systems: dict[str, dict[str, Any]]  # by name: queues, and how each is made
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    traits: dict[str, Traits] = field(default_factory=dict)

    def flavour(self) -> list[str]:
        """What is special about it, for who reads the story."""
        found = [f"theme: {self.theme}", *(f"{name}: {able}" for name, able in self.traits.items())]
        return found + [f"{route}: {how}" for route, how in self.config["routes"].items()]


def make(seed: int, *, theme: str | None = None) -> Plan:
    """The plan of ``seed``; ``theme``: of this one, whatever the dice."""
    theme = theme or random.Random(f"theme {seed}").choice(THEMES)
    dice = random.Random(f"plan {seed}")  # not those of the theme, so that one more theme deals no other anew
    systems: dict[str, dict[str, Any]] = {}
    traits: dict[str, Traits] = {}
    routes: dict[str, Any] = {}
    several = theme in ("same-names", "moved-route") or (dice.random() < 0.1 and theme not in SHORT)
    for name in ("east", "west")[: 2 if several else 1]:
        able = _on_a_client(dice, replace(_traits(dice, theme), **directed.traits(theme, dice)), theme)
        traits[name] = able
        queues, made = _queues(dice, able, theme)
        systems[name] = queues
        if theme == "moved-route" and routes:  # there it goes later on
            continue
        for number, sources in enumerate(made):
            routes[f"{name}{number}"] = _route(dice, name, able, sources, theme)
    return Plan(seed, theme, systems, {"routes": routes}, _steps(dice, systems, routes, theme), traits)


def _traits(dice: random.Random, theme: str) -> Traits:
    depth = dice.choice(["exact"] * 9 + ["unknown"])
    late, about = dice.random() < 0.15, dice.random() < 0.15
    if late:
        depth = "late"
    if about:
        depth = "about"
    asked = {"late-depth": "late", "approximate-depth": "about", "small-limit": "exact", "canary": "exact"}
    asked |= dict.fromkeys(("expiry", "records", "rates", "shuffles", "backlog", "moved-route"), "exact")
    if theme in ("clocks", "hidden", "fast-clock"):
        depth = dice.choice(["exact", "late"])
    depth = asked.get(theme, depth)
    ids, without = dice.choice(["kept", "kept", "new", "new"]), dice.random() < 0.15
    if theme == "no-identity" or without or (theme == "order" and dice.random() < 0.3):
        ids = "none"
    shuffles, ordered = dice.random() < 0.3, dice.random() < 0.2
    dedupe = dice.choice([None, None, None, 300, 1200])
    if theme in ("shared-ids", "backup", "torn-backup"):
        dedupe = dedupe or 1200
    origins = ("forged-origin", "forward-with-headers", "mistyped-destination")
    return Traits(
        depth=depth,  # type: ignore[arg-type]
        lag=60 if depth == "late" else 0,
        ids=ids,  # type: ignore[arg-type]
        dedupe=dedupe,
        death_times=dice.random() < (0.3 if theme == "no-identity" else 0.7),
        tells_origin=dice.random() < 0.8 or theme in origins,
        tells_reason=dice.random() < 0.6,
        ordered=ordered
        and theme not in ("forward-with-headers", "no-identity", "shuffles", "hidden", "backlog", "fast-clock"),
        shuffles=theme in ("shuffles", "hidden")
        or (shuffles and theme not in ("late-depth", "approximate-depth", "same-names", "fast-clock")),
        max_headers=dice.choice([None, None, None, 10, 2, 1]),
        publish_batch=dice.choice([1, 2, 10, 100]),
        native_delay=dice.choice([None, 900]),
        subscribers=2 if theme == "fan-out" else 1,
    )


def _on_a_client(dice: random.Random, able: Traits, theme: str) -> Traits:
    """Two systems in five are reached through the stand-in of a client library, with the real adapter above it."""
    client = dice.choice(directed.CLIENTS.get(theme, CLIENTS))
    if theme in directed.ROUNDS and (theme not in directed.CLIENTS or client == "plain"):
        return able
    plain = dice.random() > 0.4
    if theme == "shared-ids":  # where ids mean something
        client = dice.choice(["plain", "sqs_fifo", "service_bus"])
        if client == "plain":
            return able
    elif theme in directed.ROUNDS:
        pass
    elif theme in ON_CLIENT:
        client = dice.choice(ON_CLIENT[theme])
    elif plain or theme in OWN_CLIENT:
        return able
    return replace(able, **clients.TRAITS[client], client=client)  # type: ignore[arg-type]


def _queues(dice: random.Random, able: Traits, theme: str) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Queues by name, and the sources of each route: (dead-letter queue, the queues that die into it)."""
    lease, deliveries = dice.choice([2, 30]), dice.choice([1, 2, 3])
    if theme == "held":
        lease = 1800
    if theme == "in-hand":
        lease = 600
    shape = dice.choice(["one", "one", "two", "shared" if able.tells_origin else "two"])
    if theme == "forward-with-headers":
        shape = dice.choice(["two", "two", "shared"])
    elif theme in ("same-names", "late-depth", "approximate-depth", "no-identity", "records", "expiry", "backlog",
                   "hidden", "moved-route", "held", "fast-clock"):  # fmt: skip
        shape = "one"
    elif theme in directed.ROUNDS:
        shape = dice.choice(["one", "one", "two"])
    elif theme in ("forge", "pages"):  # the same id, in several routes
        shape = "two"
    if shape == "shared" and able.client == "service_bus":  # each has its own there
        shape = "two"
    names = ["orders"] if shape == "one" else ["orders", "billing"]
    mains = [clients.queue_name(able.client, name) for name in names]
    queues: dict[str, Any] = {}
    made: list[list[dict[str, Any]]] = []
    for name, main in zip(names, mains, strict=True):
        dead = "dead" if shape == "shared" else f"{name}-dlq"
        dead = clients.queue_name(able.client, dead, dead_letters_of=main)
        queues.setdefault(dead, {"lease": 60})
        queues[main] = {"lease": lease, "max_deliveries": deliveries, "dead_letters": dead}
        if shape != "shared" or not made:
            made.append([{"queue": dead, "origins": [main], "lease": lease, "deliveries": deliveries}])
        else:
            made[0][0]["origins"].append(main)
    wants = theme == "put-off" or (theme not in directed.ROUNDS and dice.random() < 0.4)
    if wants and shape != "shared" and able.client != "sqs_fifo":
        main = dice.choice(mains)
        queues[f"{main}-delay"] = {"lease": 60}
        one = next(sources for sources in made if main in sources[0]["origins"])
        one.append({"queue": f"{main}-delay", "origins": [main], "kind": "delay"})
    if theme == "expiry":
        for one in queues.values():
            one["retention"] = RETENTION
    if theme == "forged-origin":
        queues["payroll"] = {"lease": 60}
    both = (dice.random() < 0.4 and theme not in ("forge", "pages")) or theme == "forward-with-headers"
    if len(made) == 2 and both and able.tells_origin:  # one route of both
        made = [[*made[0], *made[1]]]
    return queues, made


def _route(dice: random.Random, system: str, able: Traits, sources: list[dict[str, Any]], theme: str) -> dict[str, Any]:
    mains = sorted({origin for source in sources for origin in source["origins"]})
    listed = []
    for source in sources:
        if source.get("kind") == "delay":
            listed.append(
                {"queue": source["queue"], "kind": "delay", "delay": "1m", "destination": source["origins"][0]}
            )
        else:
            one = {"queue": source["queue"], "retention": "14d"}
            if dice.random() < 0.7:
                one |= {"lease": f"{source['lease']}s", "max_deliveries": source["deliveries"]}
            listed.append(one)
    route: dict[str, Any] = {
        "broker": clients.CONNECT[able.client][0] if able.client in clients.CONNECT else "memory",
        "connection": system,
        "sources": listed,
        "evidence": ["attribute:error"],
        "drain": {"wait": "0s", "flush_messages": dice.choice([2, 4, 50]), "lease": dice.choice(["30s", "5m"])},
        "deliver": {"slice": dice.choice([2, 4, 50]), "confirm_window": dice.choice([1, 2, 10])},
        "requeue_attempts": dice.choice([0, 1, 2]),
        "delay_attempts": dice.choice([0, 1, 2]),
        "backoff": {"first": "1m", "factor": 2, "max": "5m", "native": dice.random() < 0.2},
        "on_unknown": dice.choice(["auto", "auto", "resend", "review"]),
        "breaker": {"return_rate": 0.6, "min_samples": dice.choice([3, 20]), "cool_down": "2m"},
        "approvals": dice.choice([1, 1, 1, 2]),
    }
    if len(mains) == 1 and (dice.random() < 0.6 or not able.tells_origin or theme == "mistyped-destination"):
        route["destination"] = {"queue": mains[0]}
    if theme == "moved-route":
        route["destination"] = {"queue": mains[0]}
    if theme == "forged-origin":
        route.pop("destination", None)
    quiet = theme in ("late-depth", "approximate-depth", "same-names", "hidden", "moved-route", "held", "fast-clock")
    if theme in ("canary", "small-limit", "backlog", "rulings") or (dice.random() < 0.5 and not quiet):
        route["canary"] = {
            "first": dice.choice([1, 2, 3]), "grow": dice.choice([2, 2, 10] if theme == "canary" else [2, 10, 10]),
            "pass": 0.6,
            "observe": dice.choice(["10s", "2m", "auto"]),
        }  # fmt: skip
    elif quiet and (dice.random() < 0.7 or theme in SHORT):
        route["canary"] = {"first": 5, "grow": 10, "pass": 0.6, "observe": "1s"}
    else:
        route["canary"] = "off"
    if theme == "order" or (dice.random() < 0.1 and not route["backoff"]["native"]):
        route["backoff"]["native"] = False
        route["order_by"] = dice.choice(["attribute:customer", "key"] if able.ordered else ["attribute:customer"])
    if theme == "long-keys":
        route["order_by"] = "attribute:customer"
        route["backoff"]["native"] = False
    if dice.random() < 0.2:
        route["rate"] = {"per_second": dice.choice([1, 5]), "max_in_flight": dice.choice([2, 5, 20])}
    if theme == "torn-backup":
        route["drain"]["flush_messages"] = dice.choice([4, 50, 50])
    if theme == "mistyped-destination":
        route["delay_attempts"] = max(1, route["delay_attempts"])
    if theme in ("hidden", "fast-clock", "canary"):
        route["requeue_attempts"] = max(1, route["requeue_attempts"])
    if theme in ("small-limit", "backlog"):
        route["drain"]["limit"] = 2 if theme == "backlog" else dice.choice([2, 5])
    if theme == "backlog" and dice.random() < 0.4:
        route["canary"], route["order_by"] = "off", "attribute:customer"
        route["backoff"]["native"] = False
    if theme == "fan-out":
        route["fan_out"] = dice.choice(["refuse", "refuse", "allow"])
    if theme in ("rates", "hangs"):
        route["rate"] = {"per_second": dice.choice([1, 2, 5]), "max_in_flight": dice.choice([2, 5, 100])}
    if theme == "expiry":
        route["drain"]["limit"] = dice.choice([2, 5])
        for one in listed:
            one["retention"] = f"{RETENTION}s"
    if theme == "records":
        route["processed_check"] = {
            "connection": "records", "query": "select order_number from processed where order_number in :keys",
            "key": "body:$.n", "settle_after": dice.choice(["0s", "1m"]),
        }  # fmt: skip
    directed.tell_route(theme, dice, route)
    if theme == "runaway-rules":
        route["rules"] = [AMBIGUOUS]
    elif dice.random() < 0.2:
        route["rules"] = [{"match": "gate \\d+ does not open", "cause": "dependency_unavailable"}]
    return route


#: What may happen in a step, and how often.
OPS = {
    "produce": 14,
    "consume": 20,
    "run": 20,
    "run_troubled": 18,
    "review": 8,
    "trouble": 8,
    "advance": 3,
    "peek": 3,
    "restart": 2,
    "heal": 3,
    "pause": 1,
    "resume": 1,
    "release": 2,
    "retention": 1,
    "limit": 1,
}
#: What a theme adds to that.
MORE_OPS: dict[str, dict[str, int]] = {
    "crashes": {"run_troubled": 40},
    "two processes": {"run_troubled": 40},
    "faults": {"trouble": 25},
    **{theme: {"trouble": 25} for theme in ON_CLIENT},
    "people": {"review": 25, "release": 5, "pause": 2, "resume": 2},
    "canary": {"release": 5, "heal": 5, "restore": 6, "produce": 10, "trickle": 15},
    "restore": {"restore": 40, "review": 20, "trouble": 5},
    "backup": {"backup": 10, "restore_backup": 10, "relapse": 30, "torn": 30},
    "no-identity": {"run_troubled": 15, "peek": 5, "whole_batch": 40},
    "mistyped-destination": {"mistype": 8, "mend": 6, "review": 6, "rename": 30},
    "delete-review-rows": {"delete_rows": 8},
    "late-depth": {"advance": 6},
    "approximate-depth": {"run": 20},
    "runaway-rules": {"rule": 8},
    "expiry": {"advance": 10, "produce": 10},
    "standing": {"stand": 10, "revoke": 4, "review": 10, "run": 10},
    "rulings": {"ruling": 5, "take_back": 3, "review": 10, "run": 40, "advance": 10, "consume": 20},
    "records": {"trouble": 10, "misquery": 10, "mend": 5},
    "rates": {"produce": 10},
    "shared-ids": {"both": 20},
    "shuffles": {"consume": 20, "produce": 10},
    "clocks": {"run_troubled": 40, "produce": 5},
    "fast-clock": {"ahead": 200},
    "torn-backup": {"torn": 3, "relapse": 2},
    "backlog": {"siege": 200},
    "hidden": {"hide": 200},
    "held": {"grab": 200},
    "pages": {"pages": 200},
    "moved-route": {"move": 100},
    "damaged-file": {"damage": 30, "run": 30, "produce": 30},
    "interrupts": {"run_troubled": 60},
}
#: How its consumers are more often than not.
HABITS: dict[str, tuple[str, ...]] = {
    "forge": ("forges",),
    "forge-next-id": ("forges", "reject"),
    "forged-origin": ("own", "forges"),
    "forward-with-headers": ("forwards", "forwards", "own", "splits", "splits"),
    "no-identity": ("own", "own", "reject", "derives"),
    "late-depth": ("few", "idle"),
    "approximate-depth": ("idle", "few"),
    "same-names": ("idle", "idle", "reject"),
    "huge-numbers": ("forges", "own"),
    "odd-headers": ("forges", "own"),
    "canary": ("own", "reject", "mixed"),
    "hangs": ("hangs", "hangs", "own"),
    "rulings": ("well", "well", "own", "mixed"),
    "records": ("slow", "late", "own"),
    "rates": ("own", "idle"),
    "shuffles": ("few", "few", "own"),
    "clocks": ("idle", "few", "own"),
}
#: How a consumer deals with what it gets; see actors.py.
STYLES = ("reject", "reject", "own", "own", "own", "leave", "bare", "mixed", "mixed", "well", "slow", "twice", "asks",
          "derives", "forwards", "forges", "late", "few", "hangs")  # fmt: skip


def _steps(
    dice: random.Random, systems: dict[str, Any], configured: dict[str, Any], theme: str
) -> list[dict[str, Any]]:
    routes = list(configured)
    ops = Counter({} if theme in SHORT else OPS) + Counter(MORE_OPS.get(theme, {}))
    names, weights = list(ops), list(ops.values())
    mains = [
        (system, queue) for system, queues in systems.items() for queue, how in queues.items() if "dead_letters" in how
    ]
    steps: list[dict[str, Any]] = []

    def own(system: str, queue: str) -> str:
        """The route that has what dies there."""
        dead = systems[system][queue]["dead_letters"]
        return next(
            (name for name, route in configured.items()
             if route["connection"] == system and any(source["queue"] == dead for source in route["sources"])),
            routes[0],
        )  # fmt: skip

    def add(op: str, **how: Any) -> None:
        steps.append({"op": op, "dice": dice.getrandbits(32), **how})

    def produce() -> None:
        system, queue = dice.choice(mains)
        error = dice.choice(ERRORS)
        if theme == "standing" and dice.random() < 0.6:
            error = KEY_ERROR
        if theme == "rulings":  # groups of one cause
            error = dice.choice([REFUSED, RESET, RESET, KEY_ERROR])
        if theme == "canary":  # one group, which comes back to life now and then
            error = dice.choice(ERRORS[:5])
        if theme == "runaway-rules" and dice.random() < 0.5:
            error = f"{LONG}{len(steps)}"
        add(
            "produce", system=system, queue=queue, count=dice.randint(1, 5), error=error,
            fails=dice.choice([2, 3, 99] if theme == "no-identity" else [1, 1, 2, 4, 99]),
            same_body=dice.random() < 0.08, long=theme == "long-keys", shared=theme == "shared-ids",
        )  # fmt: skip

    def all_die(system: str, queue: str) -> None:
        style = dice.choice(["reject", "own"])
        add("consume", system=system, queue=queue, count=20, style=style, theme=theme)

    pauses = {"late-depth": [0.2, 0.2, 0.4, 1], "moved-route": [0.2, 1, 3], "clocks": [0, 0.2, 0.4, 1, 7]}.get(
        theme, [0, 1, 3, 7, 40]
    )

    def consume() -> None:
        system, queue = dice.choice(mains)
        style = dice.choice(HABITS.get(theme, STYLES) if dice.random() < 0.6 else STYLES)
        add("consume", system=system, queue=queue, count=dice.randint(2, 10), style=style, theme=theme)

    def run() -> None:
        add("run", route=dice.choice(routes), minutes=dice.choice(pauses), shards=dice.choice([1, 1, 2]))
        consume()

    if theme in directed.ROUNDS:
        directed.tell(
            theme,
            directed.Writer(dice, add, routes, {at: systems[at[0]][at[1]]["dead_letters"] for at in mains}, theme),
        )
        return steps
    for _ in range(2):
        produce()
    for system, queue in mains:
        add("produce", system=system, queue=queue, count=dice.randint(2, 4), error=REFUSED,
            fails=2 if theme == "no-identity" else 1, same_body=False)  # fmt: skip
        all_die(system, queue)
    for _ in range(SHORT.get(theme) or dice.randint(6, 14)):
        op = dice.choices(names, weights)[0]
        route = dice.choice(routes)
        match op:
            case "produce":
                produce()
            case "consume":
                consume()
            case "run":
                run()
            case "run_troubled":
                add("run", route=route, minutes=dice.choice(pauses), shards=dice.choice([1, 1, 2]),
                    trouble=_trouble(dice, theme))  # fmt: skip
                if dice.random() < 0.6:
                    consume()
            case "whole_batch":  # is taken by a run that dies of it, fails again, and somebody looks at it
                for system, queue in mains if dice.random() < 0.6 else ():
                    add("produce", system=system, queue=queue, count=2, error=REFUSED, fails=3, same_body=False)
                    add("consume", system=system, queue=queue, count=20, style="own", theme=theme)
                last = {"die_at": dice.choice([1, 1, 3]), "die_of": "settle", "again": True}
                add("run", route=route, minutes=7, shards=1, trouble=last)
                add("run", route=route, minutes=0, shards=1)
                if dice.random() < 0.5:  # after which nothing of it can come again
                    add("run", route=route, minutes=7, shards=1)
                for system, queue in mains:
                    style = dice.choice(["own", "own", "reject", "bare"])
                    add("consume", system=system, queue=queue, count=20, style=style, theme=theme)
                    dead = systems[system][queue]["dead_letters"]
                    add("peek", system=system, queue=dead, count=20, back=True)
                add("run", route=route, minutes=dice.choice([0, 1]), shards=1)
            case "trickle":  # a group of which there was little, and nothing waits when its canary passes
                system, queue = dice.choice(mains)
                route = own(system, queue)
                for count in (dice.choice([1, 2]), 9):
                    add("produce", system=system, queue=queue, count=count, error=RESET, fails=1, same_body=False)
                    add("consume", system=system, queue=queue, count=20, style="reject", theme=theme)
                    for minutes in (1, 7, 7) if count < 9 else (1,):
                        add("run", route=route, minutes=minutes, shards=1)
                        add("consume", system=system, queue=queue, count=20, style="well", theme=theme)
            case "ahead":  # what was sent first has the later time; it comes back while the other lies there
                system, queue = dice.choice(mains)
                route = own(system, queue)
                add("run", route=route, minutes=1, shards=1)
                add("consume", system=system, queue=queue, count=50, style="well", theme=theme)
                add("produce", system=system, queue=queue, count=4, error=RESET, fails=3, same_body=False)
                add("consume", system=system, queue=queue, count=20, style="reject", theme=theme)
                add("peek", system=system, queue=systems[system][queue]["dead_letters"], count=2, back=False)
                add("run", route=route, minutes=1, shards=1, trouble={"skew": 90})
                add("restart", system=system)
                add("run", route=route, minutes=0.2, shards=1)
                add("consume", system=system, queue=queue, count=2, style="few", theme=theme)
                for _ in range(3):
                    add("run", route=route, minutes=0.4, shards=1)
            case "mistype":  # and what dies meanwhile is loaded with it
                add("mistype", route=route)
                for system, queue in mains:
                    add("produce", system=system, queue=queue, count=2, error=dice.choice([REFUSED, KEY_ERROR]),
                        fails=1, same_body=False)  # fmt: skip
                    all_die(system, queue)
                run()
                if dice.random() < 0.5:
                    add("review", apply=True, how="all", route=route)
                    run()
            case "rename":  # while messages wait
                system, queue = dice.choice(mains)
                route = own(system, queue)
                add("resume", route=route)
                add("produce", system=system, queue=queue, count=4, error=THROTTLED, fails=1,
                    same_body=False)  # fmt: skip
                all_die(system, queue)
                add("run", route=route, minutes=0, shards=1)
                add("rename", route=route)
                for minutes in (3, 7, 40):
                    add("run", route=route, minutes=minutes, shards=1)
            case "misquery":  # while what was processed lies dead
                system, queue = dice.choice(mains)
                route = own(system, queue)
                add("produce", system=system, queue=queue, count=3, error=REFUSED, fails=1, same_body=False)
                add("consume", system=system, queue=queue, count=20, style="slow", theme=theme)
                all_die(system, queue)
                add("misquery", route=route)
                for minutes in (1, 3):
                    add("run", route=route, minutes=minutes, shards=1)
                add("mend", route=route)
            case "siege":
                system, queue = dice.choice(mains)
                route = own(system, queue)
                add("siege", system=system, queue=queue, route=route, runs=7, shards=dice.choice([1, 2, 2]),
                    error=dice.choice([REFUSED, THROTTLED]))  # fmt: skip
            case "hide":  # what failed again is with somebody who looks at it, while as many others die
                system, queue = dice.choice(mains)
                route = own(system, queue)
                dead = systems[system][queue]["dead_letters"]
                add("run", route=route, minutes=7, shards=1)
                add("produce", system=system, queue=queue, count=2, error=REFUSED, fails=2, same_body=False)
                add("consume", system=system, queue=queue, count=20, style="reject", theme=theme)
                add("run", route=route, minutes=3, shards=1)
                add("consume", system=system, queue=queue, count=20, style="reject", theme=theme)
                add("peek", system=system, queue=dead, count=2, back=False)
                add("run", route=route, minutes=0, shards=1)
                add("run", route=route, minutes=3, shards=1)
                add("produce", system=system, queue=queue, count=2, error=REFUSED, fails=1, same_body=False)
                add("consume", system=system, queue=queue, count=20, style="reject", theme=theme)
                add("run", route=route, minutes=1, shards=1, trouble={
                    "meet": 0, "meet_of": "after receive", "who": "produce", "dice": dice.getrandbits(32)})  # fmt: skip
            case "grab":  # a consumer takes all that there is at the moment before somebody looks, and hangs
                system, queue = dice.choice(mains)
                route = own(system, queue)
                add("run", route=route, minutes=1, shards=1)
                add("advance", minutes=1)
                add("consume", system=system, queue=queue, count=100, style="hangs", theme=theme)
                add("run", route=route, minutes=0, shards=1)
                add("run", route=route, minutes=dice.choice([1, 3]), shards=1)
                add("run", route=route, minutes=dice.choice([1, 3]), shards=1)
            case "move":
                run()
                add("move", route=route)
                for system, queue in mains:
                    add("produce", system=system, queue=queue, count=2, error=REFUSED, fails=1, same_body=False)
                    all_die(system, queue)
                for minutes in (1, 3):
                    add("run", route=route, minutes=minutes, shards=1)
            case "damage":
                run()
                add("damage")
                run()
            case "pages":  # the same failure on two routes, first in one way, then in many
                for (system, queue), count in zip(mains, (1, 6), strict=False):
                    add("produce", system=system, queue=queue, count=count, error=DOOR, fails=1, same_body=False)
                    all_die(system, queue)
                    add("run", route=own(system, queue), minutes=1, shards=1)
                add("pages")
            case "relapse":  # what was sent since the backup is not known, and its numbers are given again
                add("backup", route=route)
                late = theme == "torn-backup" or dice.random() < 0.5
                for op in ("", "restore_backup"):
                    if op and not late:
                        add(op, route=route, late=False)
                    for system, queue in mains:
                        error = dice.choice([REFUSED, KEY_ERROR, STRANGE])
                        add("produce", system=system, queue=queue, count=dice.randint(2, 4), error=error, fails=1,
                            same_body=False)  # fmt: skip
                        all_die(system, queue)
                    if op and late:  # a run goes before anybody takes the files in that the ledger doesn't know
                        add(op, route=route, late=True)
                    add("run", route=route, minutes=dice.choice([0, 1]), shards=1)
            case "torn" if theme == "torn-backup" or dice.random() < 0.5:  # by the same run
                produce()
                for system, queue in mains:
                    all_die(system, queue)
                add("run", route=route, minutes=0, shards=1, trouble={
                    "meet": dice.choice([1, 2, 2, 3]), "meet_of": "receive", "who": "backup", "dice": 0})  # fmt: skip
                if dice.random() < 0.5:
                    consume()
                add("restore_backup", route=route)
                add("run", route=route, minutes=1, shards=1)
            case "torn":  # a batch is open in the backup, and was recorded since
                add("run", route=route, minutes=0, shards=1,
                    trouble={"die_at": dice.randint(0, 4), "die_of": dice.choice(["file", "commit"])})  # fmt: skip
                add("backup", route=route)
                add("run", route=route, minutes=7, shards=1)
                add("restore_backup", route=route)
                add("run", route=route, minutes=1, shards=1)
            case "both":  # messages with one id, longer apart than a broker compares, die and are sent again together
                for _ in range(2):
                    produce()
                    add("advance", minutes=dice.choice([5, 30]))
                for system, queue in mains:
                    all_die(system, queue)
                run()
            case "review":
                add("review", apply=dice.random() < 0.7, how=dice.choice(["one", "group", "all"]), route=route)
            case "trouble" if theme == "faults" and dice.random() < 0.3:  # nobody answers for a while
                add("trouble", system=dice.choice(list(systems)), action="publish", fates=["lost"] * 8)
                run()
            case "trouble":
                action, fates = dice.choice(
                    [
                        ("publish", ["lost", "error", "retry", "refused", "ok"]),
                        ("publish", ["lost", "lost", "error", "retry", "ok"]),
                        ("settle", ["lost", "error", "part"]),
                        ("receive", ["lost", "error"]),
                        ("depth", ["error"]),
                    ]
                )
                add("trouble", system=dice.choice(list(systems)), action=action,
                    fates=dice.choices(fates, k=dice.randint(1, 3)))  # fmt: skip
                if dice.random() < 0.7:  # while it lasts
                    run()
            case "advance":
                add("advance", minutes=dice.choice([1, 5, 30, 120]))
            case "peek":
                system = dice.choice(list(systems))
                dead = dice.choice([name for name, how in systems[system].items() if "dead_letters" not in how])
                add("peek", system=system, queue=dead, count=dice.randint(1, 4), back=dice.random() < 0.7)
            case "restart":
                add("restart", system=dice.choice(list(systems)))
            case "limit":
                add("configure", route=route, key="canary", value=dice.choice(["off", {"first": 2, "observe": "30s"}]))
            case "stand":
                decision = dice.choice(["redeliver", "redeliver", "discard"])
                add("stand", route=dice.choice([route, None]), decision=decision, minutes=dice.choice([5, 30, 300]))
                produce()
                consume()
            case "ruling":
                add("ruling", kind=dice.choice(["merge"] * 5 + ["split", "words"]))
                produce()
                consume()
            case "rule":
                add("configure", route=route, key="rules", value=[VAST])
            case "restore":
                how = {}
                if dice.random() < 0.5:
                    how = dice.choice(
                        [
                            {"die_at": dice.randint(0, 6), "die_of": dice.choice(["publish", "commit"])},
                            {"meet": dice.randint(0, 40), "who": "person", "dice": dice.getrandbits(32)},
                            {"ledger": dice.randint(0, 8), "how": "lost after commit"},
                        ]
                    )
                add("restore", route=route, trouble=how)
            case _:
                add(op, route=route)
    return steps


def _trouble(dice: random.Random, theme: str) -> dict[str, Any]:
    kind = dice.choice(["die", "die", "die", "meet", "meet", "ledger", "ledger", "disk", "retry", "twice", "skew"])
    if theme == "two processes" and dice.random() < 0.7:
        kind = "meet"
    if theme == "clocks" and dice.random() < 0.8:
        kind = "skew"
    if theme == "interrupts" and dice.random() < 0.8:
        return {"ledger": int(dice.triangular(0, 60, 10)), "how": "interrupted"}
    if theme in ("crashes", "no-identity") and dice.random() < 0.7:
        kind = "die"
    match kind:
        case "die":
            # At a call of the broker or a file, or anywhere: there are fewer of those, and more hangs on each.
            what = dice.choice(["", "", "settle", "publish", "commit", "file"])
            if theme == "no-identity" and dice.random() < 0.6:
                return {"die_at": dice.choice([1, 1, 3]), "die_of": "settle"}  # taken, and nobody wrote it down
            at = dice.randint(0, 7) if what else int(dice.triangular(0, 200, 60))
            return {"die_at": at, "die_of": what}
        case "meet":
            other = dice.choice(["take over", "take over", "person", "consume", "produce", "pause"])
            return {"meet": int(dice.triangular(0, 160, 40)), "who": other, "dice": dice.getrandbits(32)}
        case "ledger":
            how = dice.choice(["lost before commit", "lost after commit", "serialization"])
            return {"ledger": dice.randint(0, 40), "how": how, "retries": dice.choice([0, 1])}
        case "disk":
            return {"disk": dice.randint(0, 4), "retries": dice.choice([0, 1])}
        case "retry":
            return {"die_at": int(dice.triangular(0, 200, 60)), "again": True}
        case "skew":
            return {"skew": dice.choice([-90, -20, 20, 90])}
    return {"twice": dice.choice(["observe", "drain", "load", "resolve", "plan", "deliver", "escalate"])}
