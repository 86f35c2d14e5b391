"""Every error that Redrive raises, on one page.

The class says what a caller can do about it, the docstring says what happened, and the text given at
``raise`` names the key, queue, row or run. ``exit_code`` is what the command line returns.
"""


class RedriveError(Exception):
    """Something that Redrive knows about went wrong."""

    exit_code = 1

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(detail or (type(self).__doc__ or "").strip().splitlines()[0])


# --- wrong use: nothing was touched, fix the input and try again -------------------------------------


class UsageError(RedriveError):
    """The command or its arguments make no sense."""

    exit_code = 2


class SettingsError(UsageError):
    """The configuration is wrong; the text begins with the path of the key."""


class ConnectionMissing(SettingsError):
    """An Airflow connection that the configuration names is not defined anywhere."""


class ExtraMissing(SettingsError):
    """Something that the configuration asks for needs packages that are not installed; the text says which."""


class SelectorError(SettingsError):
    """A selector such as ``attribute:error`` or ``body:$.error.message`` can't be read."""


# --- the broker ---------------------------------------------------------------------------------------


class BrokerError(RedriveError):
    """A broker said no."""


class BrokerUnavailable(BrokerError):
    """The broker could not be reached or is overloaded; the same call may work later."""


class NothingSent(BrokerUnavailable):
    """As :class:`BrokerUnavailable`, of a publish that certainly handed none of its messages to the broker."""


class QueueMissing(BrokerError):
    """The queue does not exist; the text names it."""


class PermissionRefused(BrokerError):
    """The credentials are wrong or do not allow this; the text names the queue and the action."""


class MessageRefused(BrokerError):
    """The broker will never take this message (too large, not encodable, too many attributes)."""


class SettlementFailed(BrokerError):
    """Some copies could not be settled; they will come back and be recognised as duplicates."""


# --- the ledger and staging ---------------------------------------------------------------------------


class LedgerError(RedriveError):
    """The ledger refused an operation."""


class LedgerUnavailable(LedgerError):
    """The ledger's database can't be reached."""


class LedgerBusy(LedgerUnavailable):
    """Somebody else is changing the same rows, and has not ended in time; nothing was changed here."""


class LedgerRefused(LedgerError):
    """The ledger's database is there and does not take a value: too large for an index or a column, or not text. Trying
    again changes nothing; the text says what it was for."""


class SchemaOutdated(LedgerError):
    """The ledger's schema is missing or of another version; run ``redrive db upgrade``."""

    exit_code = 2


class IllegalMove(LedgerError):
    """A change of state that the lifecycle does not know."""


class BatchLost(LedgerError):
    """The batch was abandoned or belongs to another run; nothing of it may be settled."""


class StagingError(RedriveError):
    """Staged data can't be written or read."""


class PathTaken(StagingError):
    """Something lies already where a staging file was to be written; nothing of it was touched."""


class BalanceBroken(LedgerError):
    """Copies, messages and states do not add up; the text says where and by how much."""


class CheckFailed(RedriveError):
    """A processed check gave no answer; the messages that it was asked about are held, not guessed about."""


class KeysRefused(CheckFailed):
    """A processed check answered that it can't be asked about any of these keys."""


class NotificationFailed(RedriveError):
    """Somebody could not be told of something; it is tried again. The text says whom and why, and nothing secret."""


# --- runs ---------------------------------------------------------------------------------------------


class RouteBusy(RedriveError):
    """Another run holds the route; the text says which and until when."""

    exit_code = 3


class LeaseLost(RedriveError):
    """This run no longer holds the route: it was too slow or was replaced. Its writes are refused."""


class QueuesFailed(RedriveError):
    """Some queues failed; everything else was done. The text names each, ``report`` are the run's numbers."""

    def __init__(self, detail: str = "", report: "dict[str, object] | None" = None) -> None:
        super().__init__(detail)
        self.report = report


class RoutePaused(RedriveError):
    """The route is paused; the text says by whom and why."""

    exit_code = 3


class ClassificationFailed(RedriveError):
    """The Spark job that finds causes failed; the text says where its log is."""
