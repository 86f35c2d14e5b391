"""Failure texts in families, one family for one failure, to measure how they are grouped.

Each family is written as what a program prints, with slots for what changes from message to message. Many have a twin
that looks alike and needs another fix. They were written before the rules of grouping that they measure, from other
software than those rules were tried on: look at the score, and write no rule for a text.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COUNT = 8


class Family(NamedTuple):
    """One failure: the ways in which it is told; ``dress`` lists what may stand in front."""

    name: str
    kind: str
    language: str
    texts: tuple[str, ...]
    dress: tuple[str, ...] = ("",)


def _families() -> Iterator[Family]:
    lines = Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    for line in map(json.loads, lines):
        dress = tuple(line.get("dress", [""]))
        yield Family(line["name"], line["kind"], line["language"], tuple(line["texts"]), dress)


FAMILIES = tuple(_families())


def texts(seed: int = 7) -> Iterator[tuple[str, Family]]:
    """Every family's texts, shuffled; the same for the same ``seed``."""
    chance = random.Random(seed)
    made = [
        ((chance.choice(family.dress) + chance.choice(family.texts)).format_map(_Values(chance)), family)
        for family in FAMILIES
        for _ in range(COUNT)
    ]
    chance.shuffle(made)
    yield from made


class _Values(dict[str, str]):
    """Values for slots, another one each time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def __getitem__(self, name: str) -> str:
        chance = self._chance
        digits = f"{chance.getrandbits(128):032x}"
        moment = f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
        made = {
            "n": lambda: str(chance.randint(2, 9999)),
            "d": lambda: str(chance.randint(0, 9)),
            "big": lambda: str(chance.randint(10**9, 10**14)),
            "id": lambda: chance.choice(
                (
                    digits[:16],
                    f"AB-{chance.randint(1000, 99999)}",
                    digits.upper()[:10],
                    str(chance.randint(10**5, 10**9)),
                )
            ),
            "short": lambda: digits[:8],
            "uuid": lambda: f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
            "time": lambda: (
                f"{moment}T{chance.randint(0, 23):02}:{chance.randint(0, 59):02}:{chance.randint(0, 59):02}Z"
            ),
            "date": lambda: chance.choice((moment, f"{moment[8:]}.{moment[5:7]}.{moment[:4]}")),
            "hour": lambda: f"{chance.randint(8, 19):02}:00",
            "syslog": lambda: (
                f"Mar {chance.randint(10, 28)} 10:{chance.randint(10, 59)}:07 node-{digits[:3]} app[{digits[3:4]}7]:"
            ),
            "thread": lambda: f"pool-{chance.randint(1, 9)}-thread-{chance.randint(1, 40)}",
            "logger": lambda: "shop.worker.Consumer",
            "host": lambda: chance.choice(
                (f"api-{chance.randint(1, 9)}.shop.example", f"10.1.{chance.randint(0, 9)}.7")
            ),
            "ip": lambda: f"10.{chance.randint(0, 255)}.{chance.randint(0, 255)}.9",
            "db": lambda: chance.choice(("prod", "stage", "analytics")),
            "word": lambda: chance.choice(("north", "south", "orders", "billing", "eu-west-1")),
            "upper": lambda: chance.choice(("ORDERS", "BILLING", "STOCK", "EU")),
            "city": lambda: chance.choice(("Lyon", "Madrid", "Porto", "Graz")),
            "country": lambda: chance.choice(("PL", "DE", "CZ")),
            "name": lambda: chance.choice(("MUELLER", "SYSTEM", "RFCUSER")),
            "hue": lambda: chance.choice(("dark-red", "NAVY", "Sky Blue", "teal/2")),
            "version": lambda: f"{chance.randint(1, 24)}.{chance.randint(0, 12)}.{chance.randint(0, 20)}",
            "size": lambda: f"{chance.randint(1, 90)}.{chance.randint(10, 99)} GiB",
            "duration": lambda: chance.choice(
                (f"{chance.randint(1, 999)}ms", f"{chance.randint(1, 59)}.{chance.randint(1, 999)}s")
            ),
            "amount": lambda: f"{chance.randint(1, 9999)}.{chance.randint(10, 99)}",
        }
        return made[name]()
