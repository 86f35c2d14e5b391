"""What really happened, as only the world knows it."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.world.systems import Copy

#: A place where a message has to be processed: system and queue.
Place = tuple[str, str]
#: The marks on a copy of ours: id and attempt.
Mark = tuple[str, int]


class Arrival(NamedTuple):
    """Something that Redrive published and that the broker took."""

    at: int
    place: Place
    body: bytes
    mark: Mark | None
    copy: "Copy | None"  # None: swallowed by the broker's deduplication
    repeats: Mark | None = None  # the mark on the copy for whose sake it was swallowed
    known: bool = True  # False: the answer was lost


class Processed(NamedTuple):
    """A consumer finished a message."""

    at: int
    place: Place
    body: bytes
    copy: "Copy"


class Word(NamedTuple):
    """What somebody decided about a message, as long as nobody said otherwise."""

    decision: str | None  # None: it was taken back
    body: bytes | None = None  # of an edit
    approved: bool = False  # by somebody else


@dataclass(slots=True)
class Allowed:
    """A second processing that the world itself is the cause of."""

    why: str


class Book:
    """Counts per (place, body); bodies are unique for the most part."""

    def __init__(self) -> None:
        self.owed: Counter[tuple[Place, bytes]] = Counter()  # has to be processed there so often
        self.processed: list[Processed] = []
        self.done: Counter[tuple[Place, bytes]] = Counter()
        self.excused: dict[tuple[Place, bytes], list[str]] = defaultdict(list)  # second processings of the world's own
        self.lost: Counter[tuple[Place, bytes]] = Counter()  # by the world itself: expired, purged
        self.arrivals: list[Arrival] = []
        self.forgotten: list[Arrival] = []  # those of which a ledger from a backup knows nothing
        self.asked_late = False  # a run came before people were asked about these
        self.entries: list[tuple[Place, Copy]] = []  # every copy that came to lie in a queue, in order
        self.edited: dict[bytes, set[bytes]] = defaultdict(set)  # body -> what people made of it
        self.first_seen: dict[bytes, int] = {}  # body -> when it was made
        self.deaths: list[tuple[int, Place, Copy]] = []  # (when, where it failed, the dead copy)
        self.forged: list[tuple[str, bytes]] = []  # ids that somebody made up in the ledger's name, and on which body
        self.words: dict[Place, set[str]] = {}  # that failures of messages there say, and no others
        self.one_for_all: dict[str, str] = {}  # systems that are one for the account -> which
        self.renamed: dict[Place, Place] = {}  # queues that took the place of another
        self.revoked: dict[int, int] = {}  # standing decisions, and when
        self.said: dict[int, Word] = {}  # message id -> the last word of people about it
        self.releases: Counter[int] = Counter()  # message id -> how often people said that it may go
        self.paused: dict[str, int] = {}  # route -> the last slice that was claimed when people paused it
        self.settled: Counter[Place] = Counter()  # by Redrive, in each queue
        self.numbers: Counter[str] = Counter()  # for the account
        self.record: Callable[[bytes], None] = lambda _body: None  # a consumer's own table of what it processed

    def home(self, place: Place) -> Place:
        """Where a route moves between systems or queues, these are the same for the account."""
        place = self.renamed.get(place, place)
        return self.one_for_all.get(place[0], place[0]), place[1]

    def owe(self, place: Place, body: bytes, at: int) -> None:
        """A message that has to be processed at ``place``."""
        self.owed[self.home(place), body] += 1
        self.first_seen.setdefault(body, at)

    def excuse(self, place: Place, body: bytes, why: str) -> None:
        """It may be processed there once more, and Redrive is not to blame."""
        self.excused[self.home(place), body].append(why)

    def finish(self, at: int, place: Place, copy: "Copy") -> None:
        """A consumer has processed ``copy``."""
        self.processed.append(Processed(at, place, copy.body, copy))
        self.done[self.home(place), copy.body] += 1
        self.record(copy.body)
        self.numbers["processed"] += 1
