"""What Airflow's versions call otherwise, from 3.1 on; nobody else asks which one runs."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any, Final

from airflow import __version__

from redrive.errors import UsageError

VERSION: Final = tuple(int(part) for part in __version__.split(".")[:2])
if VERSION < (3, 1):
    raise UsageError(f"Redrive needs Airflow 3.1 or newer, and this is {__version__}")

try:
    from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
except ImportError:  # before Airflow 3.2
    from airflow.exceptions import AirflowFailException, AirflowSkipException

try:
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
except ImportError:  # before Airflow 3.3
    ExceptionRetryPolicy = None

__all__ = [
    "VERSION",
    "AirflowSkipException",
    "known_to",
    "lineage_collector",
    "no_backfill",
    "not_tried_again",
    "retries",
    "stats",
    "user_of",
]


def known_to(operator: type, **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that this version of an operator, or of one that it is made from, takes."""
    taken = _taken_by(operator)
    return {name: value for name, value in arguments.items() if name in taken}


@functools.cache
def _taken_by(operator: type) -> frozenset[str]:
    """Asked once and not for each route: a parse makes thousands of tasks of a few classes."""
    made: list[Any] = [kind.__dict__["__init__"] for kind in operator.__mro__ if "__init__" in kind.__dict__]
    return frozenset(name for one in made for name in inspect.signature(one).parameters)


def lineage_collector() -> Any:
    """Where a task tells what it read and wrote; it keeps nothing where nobody listens."""
    try:
        from airflow.sdk.lineage import get_hook_lineage_collector  # noqa: PLC0415  not at every parse
    except ImportError:  # before Airflow 3.2
        from airflow.lineage.hook import get_hook_lineage_collector  # noqa: PLC0415
    return get_hook_lineage_collector()


def stats() -> Any:
    """Airflow's metrics."""
    try:
        from airflow.sdk.observability import stats  # noqa: PLC0415  not at every parse
    except ImportError:  # before Airflow 3.2
        from airflow.stats import Stats as stats  # noqa: PLC0415, N813
    return stats


async def user_of(request: Any) -> Any:
    """Who sent this request, by Airflow's own login: a token in its header, else the cookie that the login leaves.

    Raises FastAPI's ``HTTPException`` for nobody.
    """
    from airflow.api_fastapi.core_api import security  # noqa: PLC0415  the api-server alone has it

    credentials = await security.bearer_scheme(request)
    if "request" in inspect.signature(security.get_user).parameters:
        return await security.get_user(request, None, credentials)
    # The first Airflow 3.1 leaves its cookie to a script, which puts it into the header; a page has no script to ask.
    token = credentials.credentials if credentials is not None else request.cookies.get("_token")
    return await security.resolve_user_from_token(token)


def no_backfill() -> dict[str, Any]:
    """An argument of every DAG: a run works on what there is now, so to run for days that are over means nothing.

    Not every Airflow can be told so, nor do all know the same kinds of runs.
    """
    from airflow.sdk import DAG  # noqa: PLC0415  an Airflow that is too old has none

    if "allowed_run_types" not in inspect.signature(DAG).parameters:
        return {}
    from airflow.sdk.api.datamodels._generated import DagRunType  # noqa: PLC0415  a DAG takes these only

    return {"allowed_run_types": [kind.value for kind in DagRunType if kind.value != "backfill"]}


def retries(hopeless: Sequence[type[Exception]]) -> dict[str, Any]:
    """Arguments of every task: waits that double, and no second try for errors that are ``hopeless``."""
    if ExceptionRetryPolicy is None:
        return {"retry_exponential_backoff": True}
    rule = RetryRule(exception=list(hopeless), action=RetryAction.FAIL, reason="trying again can't help")
    return {"retry_exponential_backoff": 2.0, "retry_policy": ExceptionRetryPolicy([rule])}


def not_tried_again(error: Exception, hopeless: tuple[type[Exception], ...]) -> Exception:
    """What a task raises for ``error``: itself, or what an Airflow without retry policies doesn't try again."""
    if ExceptionRetryPolicy is None and isinstance(error, hopeless):
        failed: Exception = AirflowFailException(f"{type(error).__name__}: {error}")
        return failed
    return error
