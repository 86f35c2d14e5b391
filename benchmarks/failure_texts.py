"""Failure texts for measuring speed: as many as wanted, made from the texts of ``$REDRIVE_DATA``.

Half of them come from the labelled failures, half from the Loghub samples. Every text gets fresh ids, numbers and
hosts, so hardly any two are equal; codes that tell failures apart (status, SQLSTATE, errno, vendor codes) stay.
The same ``seed`` gives the same texts.
"""

import csv
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

_CODE_WORD = (
    r"(?:[Cc]ode|CODE|[Ss]tatus|STATUS|STATE|[Ee]rror|ERROR|[Ee]rrno|HTTP|HTTP/1.1\"?|Msg|[Ee]xit|[Ss]ignal)"
    r"[ :=(\[\"']{1,3}$"
)
_FRESH = re.compile(
    r"(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<ip>(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.]))"
    r"|(?P<host>(?<![A-Za-z0-9.])[a-z0-9][a-z0-9-]{0,40}(?=\.[a-z0-9.-]{0,60}(?:internal|local|cluster|example|corp|intra)(?![a-z])))"
    r"|(?P<hex>(?<![A-Za-z0-9])(?=[a-f]{0,40}[0-9])[0-9a-f]{8,64}(?![A-Za-z0-9]))"
    r"|(?P<number>(?<![A-Za-z0-9])[0-9]{1,40}(?![A-Za-z]))"
)
_IS_CODE = re.compile(_CODE_WORD)
_WORD = re.compile(r"(?<![A-Za-z0-9_.])[a-z]{3,}(?![A-Za-z0-9_.])")

#: Where a word of each text is invented: in none, in one place of its template, or in any.
PLACES = ("nowhere", "in one place", "anywhere")


def lines() -> tuple[list[str], list[str]]:
    """(texts of failures, texts of logs); both empty where there is no data."""
    folder = Path(os.environ.get("REDRIVE_DATA", "../shared/data"))
    failures = [
        json.loads(line)["text"]
        for file in sorted(folder.glob("failures/*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    logs: list[str] = []
    for file in sorted(folder.glob("loghub/*.csv")):
        with file.open(encoding="utf-8", newline="") as rows:
            logs += [row["text"] for row in csv.DictReader(rows)]
    return failures, logs


def texts(count: int, seed: int, invented: str = "nowhere") -> Iterator[str]:
    """``count`` texts; raises ValueError where there is nothing to make them from.

    With ``invented`` in one place (:data:`PLACES`), one word of each text is replaced by an invented one of letters,
    which no mask takes for a value. So no two are equal once they are masked, as where a sender writes names of people
    or of things into its failures.
    """
    if invented not in PLACES:
        raise ValueError(f"{invented!r} is none of {PLACES}")
    chance = random.Random(seed)
    pools = [[_Template(line) for line in pool] for pool in lines() if pool]
    if not pools:
        raise ValueError("no data")
    for number in range(count):
        pool = pools[number % len(pools)]
        template = pool[int(chance.random() * len(pool))]
        text = template.fresh(chance)
        if invented != "nowhere":
            where = chance.random() if invented == "anywhere" else template.place
            text = _with_invented_word(text, where, chance)
        yield text


def _with_invented_word(text: str, where: float, chance: random.Random) -> str:
    """``text`` with one of its words invented, ``where`` of 0 to 1; with a word behind it where it has none."""
    invented = "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(6))
    words = list(_WORD.finditer(text))
    if not words:
        return f"{text} {invented}"
    word = words[int(where * len(words))]
    return text[: word.start()] + invented + text[word.end() :]


class _Template:
    """A text cut at what is to be made anew."""

    def __init__(self, text: str) -> None:
        self.place = random.Random(text).random()  # of a word that varies
        self._pieces: list[str] = []
        self._makers: list[tuple[str, str]] = []
        end = 0
        for match in _FRESH.finditer(text):
            kind, word = match.lastgroup or "", match[0]
            if word.isdigit():
                kind = "number"
            if kind == "number" and (
                _IS_CODE.search(text[max(0, match.start() - 20) : match.start()]) or _stands(text, match)
            ):
                continue
            self._pieces.append(text[end : match.start()])
            self._makers.append((kind, word))
            end = match.end()
        self._rest = text[end:]
        if not self._makers:
            self._pieces, self._makers, self._rest = ["[request "], [("hex", "0" * 12)], f"] {text}"

    def fresh(self, chance: random.Random) -> str:
        """The text with new values."""
        made: list[str] = []
        for piece, (kind, word) in zip(self._pieces, self._makers, strict=True):
            made.append(piece)
            made.append(_value(kind, word, chance))
        made.append(self._rest)
        return "".join(made)


def _stands(text: str, match: re.Match[str]) -> bool:
    """Whether a number is part of a code: ``ORA-00060``, ``(1205, 'Lock wait…')``, ``503 Service``, ``550 5.7.1``."""
    before, after = text[max(0, match.start() - 2) : match.start()], text[match.end() : match.end() + 4]
    if re.fullmatch(r"[A-Z]-", before) is not None or re.match(r", [bu]?[\"'(\u201c\u2018]", after) is not None:
        return True
    is_status = re.fullmatch(r"[1-5][0-9]{2}", match[0]) is not None
    return is_status and re.match(r"[ :)-]{1,2}\(?[A-Z]|[ -][245]\.[0-9]", after) is not None


def _value(kind: str, word: str, chance: random.Random) -> str:
    match kind:
        case "uuid":
            digits = f"{chance.getrandbits(128):032x}"
            return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        case "ip":
            bits = chance.getrandbits(24)
            return f"10.{bits >> 16}.{bits >> 8 & 255}.{bits & 255}"
        case "host":
            name = word.rstrip("0123456789-") or "host"
            return f"{name}-{chance.getrandbits(10)}"
        case "hex":
            # With a digit in front: what is all letters is a word, and the original had a digit too.
            return f"{chance.getrandbits(3) + 1}{chance.getrandbits(4 * len(word) - 4):0{len(word) - 1}x}"
        case _:
            low = 10 ** (len(word) - 1) if len(word) > 1 else 0
            return str(low + int(chance.random() * (10 ** len(word) - low)))
