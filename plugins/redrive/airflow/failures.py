"""When a task fails: whether it is tried again, and what its log says first."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from redrive.airflow import compat
from redrive.airflow.compat import AirflowSkipException
from redrive.errors import (
    BalanceBroken,
    IllegalMove,
    LeaseLost,
    PermissionRefused,
    QueueMissing,
    QueuesFailed,
    RedriveError,
    RouteBusy,
    RoutePaused,
    SchemaOutdated,
    UsageError,
)

log = logging.getLogger(__name__)


class MessagesExpiring(RedriveError):
    """Messages are about to expire in a source that nobody drains; the text names it."""


class RunFailed(RedriveError):
    """Not everything of the run was done; the text names the tasks."""


#: What the same task can't do better the next time.
HOPELESS: Final = (
    UsageError,  # wrong configuration, connection or parameter
    SchemaOutdated,
    QueueMissing,
    PermissionRefused,
    IllegalMove,
    LeaseLost,  # another run has the route now
    RouteBusy,
    RoutePaused,
    BalanceBroken,
    QueuesFailed,
    MessagesExpiring,
    RunFailed,
    # Mistakes of ours, or a program that isn't installed: what is away for a while raises other errors.
    ArithmeticError,
    AssertionError,
    AttributeError,
    FileNotFoundError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


def telling(function: Callable[..., object]) -> Callable[..., object]:
    """``function``, with one line in the task's log where it fails, for whoever looks there first."""

    @functools.wraps(function)
    def logged(*args: Any, **kwargs: Any) -> object:
        try:
            return function(*args, **kwargs)
        except AirflowSkipException:
            raise
        except Exception as error:
            log.error(
                "%s failed: %s: %s. Nothing is lost: what was staged and not settled comes back, and the next run"
                " goes on where this one ended.",
                function.__name__.lstrip("_"),
                type(error).__name__,
                error,
            )
            final = compat.not_tried_again(error, HOPELESS)
            if final is not error:
                raise final from error
            raise

    # Said once: Airflow asks for it several times a task, and a parse makes thousands of them.
    logged.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return logged
