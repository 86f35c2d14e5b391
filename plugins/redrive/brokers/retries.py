"""Doing again what failed for the moment: exponential backoff with full jitter, the same for every adapter.

Only what may safely be repeated comes here. A send whose answer is lost never does.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import tenacity

from redrive.errors import BrokerError, BrokerUnavailable, PermissionRefused, QueueMissing

Result = TypeVar("Result")


class RetryPolicy(NamedTuple):
    """How often, and for how long: no try begins more than ``within`` seconds after the first one did."""

    tries: int
    first: float  # seconds: the longest wait before the second try; it doubles with each further one
    longest: float  # seconds: no wait is longer
    within: float = math.inf
    tries_where_away: int = 0  # of a server that is not there, which is told sooner than one that is busy; 0: as many


#: 8 tries in 13 s on average, 40 s at most.
STANDARD: Final = RetryPolicy(8, 0.25, 10, within=30, tries_where_away=4)
#: For links that take their time to fail: 4 tries.
BRIEF: Final = RetryPolicy(4, 0.25, 5)


def again(
    work: Callable[[], Result],
    *,
    when: Callable[[BaseException], bool],
    policy: RetryPolicy = STANDARD,
    away: Callable[[BaseException], bool] = lambda _: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """``work``, done again while it fails with an error that ``when`` says may pass; its last error is raised.

    ``away`` says of an error that the server is not there.
    """
    return tenacity.Retrying(retry=tenacity.retry_if_exception(when), reraise=True, **_pace(policy, away, sleep))(work)


def until(
    done: Callable[[], bool],
    *,
    policy: RetryPolicy = STANDARD,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Ask ``done`` until it says so; False where it did not in the end. Its errors are raised at once."""
    asked: bool = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda said: not said),
        retry_error_callback=lambda _: False,
        **_pace(policy, lambda _: False, sleep),
    )(done)
    return asked


def _pace(policy: RetryPolicy, away: Callable[[BaseException], bool], sleep: Callable[[float], None]) -> dict[str, Any]:
    def enough(state: tenacity.RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        is_away = error is not None and policy.tries_where_away and away(error)
        tries = policy.tries_where_away if is_away else policy.tries
        return state.attempt_number >= tries or (state.seconds_since_start or 0) >= policy.within

    wait = tenacity.wait_random_exponential(multiplier=policy.first, max=policy.longest)
    return {"wait": wait, "stop": enough, "sleep": sleep}


def of_all(errors: Sequence[BrokerError], *, repeated: bool) -> BrokerError:
    """What is raised where each request of several failed. Of one whose answer is lost nobody knows what became of it,
    also where it was ``repeated`` and refused then: a refusal is only what was refused each time."""
    unsure = next((one for one in errors if not isinstance(one, PermissionRefused | QueueMissing)), None)
    return unsure or (BrokerUnavailable(errors[0].detail) if repeated else errors[0])
