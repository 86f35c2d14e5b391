"""What a stage works with: the route's settings, its lease, ledger, staging, broker and clock."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redrive.brokers import open_broker
from redrive.brokers.base import Broker, Capabilities, Depth
from redrive.connections import storage
from redrive.errors import SettingsError
from redrive.ledger.engine import Ledger
from redrive.ledger.selecting import Selection
from redrive.ledger.transactions import RouteLease
from redrive.message import Micros
from redrive.policy.worked_past import CLOCKS
from redrive.redaction import Redactor, redactor
from redrive.selectors import Kind
from redrive.settings import Route, Settings
from redrive.stages import source_expansion

if TYPE_CHECKING:
    from redrive.staging.batch_files import Staging

#: Called with a sentence on what is going on and, where known, how much of how much is done.
Progress = Callable[[str, int, int | None], None]
#: Why a message whose payload can't be read goes to people.
FILE_DAMAGED = (
    "Its staging file is damaged or missing. Bring the file back (`redrive audit` names it), then decide to redeliver."
)


def utc_now() -> datetime:
    """The default clock."""
    return datetime.now(UTC)


def silent(_text: str, _done: int, _total: int | None) -> None:
    """The default progress: none."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one route, as it travels between tasks: names and numbers only."""

    route: str
    run_id: str
    fence: int
    ttl: timedelta
    started_at: datetime
    selection: Selection = field(default_factory=Selection)
    dry_run: bool = False
    system: str = ""  # the broker and connection that it began with; '': whichever the settings say
    configuration: str = ""  # the hash of what it began with; '': whatever the file says

    def to_json(self) -> dict[str, Any]:
        """A form that travels through XCom; :meth:`from_json` reads it."""
        return {
            "route": self.route,
            "run_id": self.run_id,
            "fence": self.fence,
            "ttl_seconds": self.ttl.total_seconds(),
            "started_at": self.started_at.isoformat(),
            "selection": self.selection.to_json(),
            "dry_run": self.dry_run,
            "system": self.system,
            "configuration": self.configuration,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Run":
        """The inverse of :meth:`to_json`."""
        return cls(
            route=data["route"],
            run_id=data["run_id"],
            fence=data["fence"],
            ttl=timedelta(seconds=data["ttl_seconds"]),
            started_at=datetime.fromisoformat(data["started_at"]),
            selection=Selection.from_json(data["selection"]),
            dry_run=data["dry_run"],
            system=data.get("system", ""),
            configuration=data.get("configuration", ""),
        )

    @property
    def lease(self) -> RouteLease:
        """The lease that every write of this run is guarded by."""
        return RouteLease(self.route, self.run_id, self.fence, self.ttl)


class Context:
    """Opens what a stage needs when it needs it, and closes it at the end of the ``with`` block."""

    def __init__(
        self,
        settings: Settings,
        run: Run,
        *,
        clock: Callable[[], datetime] = utc_now,
        progress: Progress = silent,
        broker: Broker | None = None,
    ) -> None:
        self.settings = settings
        self.run = run
        self._written: Route = settings.route(run.route)
        if run.system and run.system != self._written.system:
            raise SettingsError(
                f"routes.{run.route}: its queues were on {run.system} when the run began and are on"
                f" {self._written.system}"
                " now: what the run has seen holds for the former; the next run begins at the latter"
            )
        self.lease = run.lease
        self.now = clock
        self.progress = _masked(progress, redactor(self._written))
        self.ledger = Ledger(settings.database)
        #: By source, what the broker said of its origins.
        self.asked: dict[str, frozenset[str] | None] = {}
        self._staging: Staging | None = None
        self._broker = broker
        self._own_broker = broker is None

    def __enter__(self) -> "Context":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._broker is not None and self._own_broker:
            self._broker.close()
        if self._staging is not None:
            self._staging.close()
        self.ledger.close()

    @cached_property
    def route(self) -> Route:
        """The route, with every queue that it drains: the broker is asked for those that a source stands for."""
        return source_expansion.as_the_broker_says(self._written, lambda: self.broker)

    @cached_property
    def selection(self) -> Selection:
        """What the run is limited to."""
        return source_expansion.selected(self.run.selection, self._written, self.route)

    @property
    def name(self) -> str:
        """The route's name."""
        return self.run.route

    @property
    def staging(self) -> "Staging":
        """The staging folder."""
        if self._staging is None:
            self._staging = storage.staging(self.settings)
        return self._staging

    @property
    def broker(self) -> Broker:
        """The route's broker, connected on first use. It belongs to the thread that asks first."""
        if self._broker is None:
            self._broker = open_broker(self._written.broker, self._written.connection or "")
        return self._broker


def _masked(progress: Progress, mask: Redactor) -> Progress:
    """Progress may end in a log, and an error that it tells of may quote a message."""
    return (lambda text, done, total: progress(mask(text), done, total)) if mask else progress


def not_sent_on(route: Route, capabilities: Capabilities) -> frozenset[str]:
    """Headers that a redelivery goes without, beside our own marks: a failure text that travelled along would be read
    as fresh evidence when the message comes back."""
    evidence = {selector.name for selector in route.evidence if selector.kind is Kind.ATTRIBUTE}
    return capabilities.failure_headers | evidence


def micros(moment: datetime) -> Micros:
    """``moment`` in microseconds since the epoch, exactly."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def instant(moment: Micros) -> datetime:
    """The inverse of :func:`micros`."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)


def surely_as_of(depth: Depth) -> datetime | None:
    """When a depth that is told late was so at the earliest, by whichever clock; None: it is as of now."""
    if depth.as_of is None:
        return None
    return instant(depth.as_of) - (CLOCKS if depth.by_its_clock else timedelta(0))
