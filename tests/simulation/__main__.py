"""``python -m tests.simulation``: see ``--help``."""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.servers import Postgres
from tests.simulation import planting, story
from tests.simulation.plan import THEMES, make
from tests.simulation.story import Told

GUIDE = """
A seed makes a whole story: brokers, routes, consumers, faults, people. The product runs in it; a checker that shares
no code with it says what is broken.

  python -m tests.simulation run 7 8 9          these seeds
  python -m tests.simulation range 0 300        so many from the first
  python -m tests.simulation replay 7           the story of a seed, line by line
  python -m tests.simulation replay 7 --steps 0 3 9    only these of its steps
  python -m tests.simulation shrink 7           a short list of steps that still fails
  python -m tests.simulation soak --minutes 60  new seeds, and the account
  python -m tests.simulation mistakes B- --seeds 300   does it find mistakes that were put in on purpose?

Exit code 1 where something is broken.
"""


def _play(task: tuple[int, str | None]) -> Told:
    seed, theme = task
    told = story.play(seed, theme=theme)
    if not told.broken:
        told.log = []
    return told


def play_all(seeds: Iterable[int], *, theme: str | None = None, workers: int = 2) -> Iterator[Told]:
    """The stories of all seeds, over ``workers`` processes."""
    tasks = ((seed, theme) for seed in seeds)
    if workers <= 1:
        yield from map(_play, tasks)
        return
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=200) as pool:
        yield from pool.imap(_play, tasks, chunksize=1)


def shrink(seed: int, *, theme: str | None = None) -> tuple[list[int], Told]:
    """Leave out step after step, as long as the same rule is broken."""
    whole = story.play(seed, theme=theme)
    if not whole.broken:
        return [], whole
    kept = list(range(len(make(seed, theme=theme).steps)))
    if whole.step >= 0:
        kept = kept[: whole.step + 1]
    size, told = max(1, len(kept) // 2), whole
    while size >= 1:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            found = story.play(seed, fewer, theme=theme)
            if found.broken and found.rule == whole.rule:
                kept, told = fewer, found
            else:
                at += size
        size //= 2
    return kept, told


def account(tolds: Iterable[Told], started: float) -> int:
    """Print what was played, and each failure as it comes; the number of failures."""
    numbers: Counter[str] = Counter()
    seeds = failures = 0
    rest: list[int] = []
    for told in tolds:
        seeds += 1
        rest.append(told.numbers.pop("rounds to rest", 0))
        numbers.update(told.numbers)
        if told.broken:
            failures += 1
            print(told.line(), flush=True)
    print(f"{seeds} seeds in {time.time() - started:.0f} s, {failures} failed")
    print(f"at most {max(rest, default=0)} runs until everything was at rest")
    for name, count in sorted(numbers.items()):
        print(f"  {name:32} {count:>9,}")
    return failures


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=GUIDE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, words: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=words)
        made.add_argument("--theme", choices=sorted(set(THEMES)), help="all stories of this theme")
        made.add_argument("--workers", type=int, default=2, help="processes (2)")
        return made

    command("run", "play these seeds").add_argument("seeds", type=int, nargs="+")
    some = command("range", "play COUNT seeds from FROM on")
    some.add_argument("first", type=int)
    some.add_argument("count", type=int)
    again = command("replay", "tell the story of a seed")
    again.add_argument("seed", type=int)
    again.add_argument("--steps", type=int, nargs="*")
    command("shrink", "find a short list of steps that still fails").add_argument("seed", type=int)
    soak = command("soak", "new seeds for as long as told")
    soak.add_argument("--minutes", type=float, default=60)
    soak.add_argument("--first", type=int, help="first seed; default: from the clock")
    hunt = command("hunt", "play seeds until one breaks; the last line is JSON")
    hunt.add_argument("first", type=int)
    hunt.add_argument("count", type=int)
    hunt.add_argument("--postgresql", action="store_true", help="on a PostgreSQL server of their own, one by one")
    planted = command("mistakes", "put mistakes into copies of the product, one by one, and look for them")
    planted.add_argument("names", nargs="*", help="beginnings of names; default: all")
    planted.add_argument("--seeds", type=int, default=300, help="to play at most, for each (300)")
    planted.add_argument("--themed", action="store_true", help="look only in the theme that the mistake names")
    planted.add_argument("--table", help="write the table to this file")
    given = parser.parse_args(arguments)
    started = time.time()
    match given.command:
        case "run":
            return int(account(play_all(given.seeds, theme=given.theme, workers=given.workers), started) > 0)
        case "range":
            seeds = range(given.first, given.first + given.count)
            return int(account(play_all(seeds, theme=given.theme, workers=given.workers), started) > 0)
        case "soak":
            first = given.first if given.first is not None else int(started) * 1000

            def until() -> Iterator[int]:
                seed = first
                while time.time() < started + given.minutes * 60:
                    yield seed
                    seed += 1

            return int(account(_bounded(until(), given), started) > 0)
        case "hunt":
            seeds = range(given.first, given.first + given.count)
            return hunted(on_postgresql(seeds, given.theme) if given.postgresql else None, seeds, given)
        case "mistakes":
            return looked_for(given)
        case "shrink":
            steps, told = shrink(given.seed, theme=given.theme)
            print("\n".join(told.log))
            print(f"python -m tests.simulation replay {given.seed} --steps {' '.join(map(str, steps))}")
            return int(told.broken)
    told = story.play(given.seed, given.steps, theme=given.theme)
    for flavour in make(given.seed, theme=given.theme).flavour():
        print(flavour)
    print("\n".join(told.log))
    if told.trace:
        print(told.trace)
    print(told.line() if told.broken else f"seed {given.seed}: all is well")
    return int(told.broken)


def on_postgresql(seeds: Iterable[int], theme: str | None) -> Iterator[Told]:
    """The stories of all seeds, each on a database of its own."""
    with Postgres() as server:
        for seed in seeds:
            database = server.create_database()
            yield story.play(seed, theme=theme, database=database)
            server.drop_database(database)


def hunted(tolds: Iterator[Told] | None, seeds: Iterable[int], given: argparse.Namespace) -> int:
    """Until the first one that breaks."""
    said: dict[str, object] = {"seeds": 0, "seed": None, "rule": ""}
    found = tolds
    if found is None:
        found = _bounded(iter(seeds), given) if given.workers > 1 else play_all(seeds, theme=given.theme, workers=1)
    for number, told in enumerate(found, 1):
        said["seeds"] = number
        if told.broken:
            print(told.line())
            said |= {"seed": told.seed, "rule": told.rule}
            break
    print(json.dumps(said))
    return int(said["seed"] is not None)


def looked_for(given: argparse.Namespace) -> int:
    """Mistakes, one by one."""
    found = []
    for one in planting.look_for_all(given.names, given.seeds, workers=given.workers, themed=given.themed):
        found.append(one)
        said = f"seed {one.seed}, after {one.seeds}: {one.rule}" if one.rule else f"not found in {one.seeds}"
        print(f"{one.mistake.name}: {said}", flush=True)
    if given.table:
        Path(given.table).write_text(planting.table(found) + "\n")
    return int(any(not one.rule for one in found))


def _bounded(seeds: Iterator[int], given: argparse.Namespace) -> Iterator[Told]:
    """imap takes all that an iterator gives at once; this one gives a few hundred at a time."""
    while chunk := [seed for _, seed in zip(range(20), seeds, strict=False)]:
        yield from play_all(chunk, theme=given.theme, workers=given.workers)


if __name__ == "__main__":
    sys.exit(main())
