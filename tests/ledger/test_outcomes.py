"""Presumed only where a return could have been seen; confirmed only by proof; unknown stays unknown until decided."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest

from redrive.ledger import leases
from redrive.ledger.delivery import breakers, expiry, observations, outcomes, presuming, unknown_sends
from redrive.ledger.delivery.observations import Observation
from redrive.ledger.drain import horizon
from redrive.ledger.engine import Ledger
from redrive.lifecycle import Plan
from redrive.policy.worked_past import Consumption, Holds, Look, Sends, worked_past
from tests.ledger.planting import MINUTE, NOW, Plant

WINDOW = 5 * MINUTE
SOURCES = ["orders-dlq", "orders-delay"]


def see_destination(plant: Plant, at: datetime, depth: int = 0, *, exact: bool = False) -> None:
    """As the next run sees it."""
    plant.begin(at_once=True)
    seen = Observation("orders", "destination", depth, 0, 0, exact=exact)
    observations.observe(plant.ledger, plant.lease, [seen], at)


def drain(plant: Plant, since: datetime, sources: list[str] = SOURCES) -> None:
    horizon.sources_drained(plant.ledger, plant.lease, sources, since, plant.now)
    horizon.sources_loaded(plant.ledger, plant.lease, max(plant.now, since))


def presume(plant: Plant, in_order: Collection[str] = (), after: timedelta = timedelta(days=1)) -> int:
    how = {queue: Consumption(in_order=True) for queue in in_order}
    return presuming.presume(plant.ledger, plant.lease, how, window=WINDOW, sources=SOURCES, now=plant.now + after)


@pytest.fixture
def sent(plant: Plant) -> Plant:
    plant.messages(2)
    plant.send()
    return plant


def test_what_stayed_away_beyond_the_window_is_presumed(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + MINUTE + WINDOW)
    assert presume(sent) == 2
    assert sent.states() == {"presumed": 2}
    assert sent.rows("select outcome from redelivery_attempts") == [("presumed",)] * 2
    assert presume(sent) == 0


def test_not_before_the_destination_has_worked_past_the_send(sent: Plant) -> None:
    see_destination(sent, sent.now)  # not after the send
    see_destination(sent, sent.now + MINUTE, depth=1)  # not empty
    drain(sent, sent.now + timedelta(days=1))
    assert presume(sent) == 0


def test_not_before_the_window_is_over(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + MINUTE + WINDOW - timedelta(seconds=1))
    assert presume(sent) == 0


def test_not_before_every_source_was_drained_beyond_it(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + timedelta(days=1), ["orders-dlq"])
    assert presume(sent) == 0
    drain(sent, sent.now + timedelta(days=1), ["orders-delay"])
    assert presume(sent) == 2


def drain_of_four_days(plant: Plant) -> None:
    """A run drains the dead-letter queue to its end, which keeps messages for four days."""
    known = expiry.Expiry(timedelta(days=4), plant.now)
    expiry.note(
        plant.ledger, plant.lease, "orders-dlq", known, rescued=0, expiring_at=plant.now, began_at=plant.now,
        now=plant.now,
    )  # fmt: skip
    drain(plant, plant.now)


def test_not_where_it_may_have_come_back_and_been_lost_before_anybody_looked(plant: Plant) -> None:
    """Three weeks without a run."""
    drain_of_four_days(plant)
    plant.messages(2)
    plant.send()
    see_destination(plant, plant.now + MINUTE)
    plant.now += timedelta(days=21)
    plant.begin(at_once=True)
    drain_of_four_days(plant)
    assert presume(plant) == 0
    assert plant.states() == {"sent": 2}
    [(why,)] = plant.rows("select distinct reason from messages")
    assert why.startswith("It may have come back to orders-dlq and been lost there")
    assert plant.rows("select count(*) from delivery_slices where observed_at is null") == [(0,)], "nobody waits for it"


@pytest.mark.parametrize("days", [[3], [1 / 48, 21], [3, 3, 3]])
def test_also_after_long_where_what_came_back_would_be_there_or_was_seen(plant: Plant, days: list[float]) -> None:
    drain_of_four_days(plant)
    plant.messages(2)
    plant.send()
    see_destination(plant, plant.now + MINUTE)
    for some in days:
        plant.now += timedelta(days=some)
        plant.begin(at_once=True)
        drain_of_four_days(plant)
        presume(plant)
    assert plant.states() == {"presumed": 2}


def test_what_was_drained_counts_only_when_it_is_loaded(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    sent.batch(1)  # recorded, not loaded: a return may be in it
    drain(sent, sent.now + timedelta(days=1))
    assert presume(sent) == 0


def test_a_moment_that_is_yet_to_come_is_no_horizon(sent: Plant) -> None:
    """The host on which all of an earlier run was done did not know the time."""
    see_destination(sent, sent.now + MINUTE)
    drain(sent, sent.now + timedelta(hours=1))
    horizon.sources_loaded(sent.ledger, sent.lease, sent.now + timedelta(minutes=59))
    assert sent.rows("select count(*) from source_state where drained_to is null") == [(0,)], "clocks differ so much"
    assert presume(sent, after=timedelta(minutes=57)) == 0
    horizon.sources_loaded(sent.ledger, sent.lease, sent.now)
    assert presume(sent) == 0, "it is not known, also when that moment has come"


def test_what_a_dead_run_drained_does_not_count(sent: Plant) -> None:
    see_destination(sent, sent.now + MINUTE)
    horizon.sources_drained(sent.ledger, sent.lease, SOURCES, sent.now + timedelta(days=1), sent.now)
    sent.begin()
    horizon.forget_pending(sent.ledger, sent.lease, sent.now)
    horizon.sources_loaded(sent.ledger, sent.lease, sent.now)
    assert presume(sent) == 0


def test_a_slice_that_is_still_open_is_not_observed(plant: Plant) -> None:
    plant.messages(1)
    plant.send()
    plant.change("update delivery_slices set closed_at = null")
    see_destination(plant, plant.now + MINUTE)
    drain(plant, plant.now + timedelta(days=1))
    assert presume(plant) == 0


def test_the_group_learns_how_many_stayed_away(plant: Plant) -> None:
    group = plant.group()
    plant.messages(3, group_id=group)
    plant.gate(group, "canary")
    plant.send()
    assert plant.rows("select sent, stayed from group_state") == [(3, 0)]
    see_destination(plant, plant.now + MINUTE)
    drain(plant, plant.now + timedelta(days=1))
    presume(plant)
    assert plant.rows("select sent, stayed, returned from group_state") == [(3, 3, 0)]


@pytest.mark.parametrize("status", ["sent", "unknown"])
def test_proof_confirms(plant: Plant, status: str) -> None:
    first, second = plant.messages(2, message_key="k")
    plant.send(status=status)
    assert outcomes.confirm(plant.ledger, plant.lease, [first], plant.now) == 1
    assert plant.rows("select message_id, state from messages order by message_id") == [
        (first, "confirmed"),
        (second, status),
    ]
    assert plant.rows("select outcome from redelivery_attempts order by message_id") == [("confirmed",), (None,)]


def test_only_what_has_a_key_and_no_outcome_is_asked_about(plant: Plant) -> None:
    (with_key,) = plant.messages(1, message_key="k")
    plant.messages(1)
    plant.send()
    plant.messages(1, message_key="waits")
    with plant.ledger.read() as connection:
        assert outcomes.under_observation(connection, "orders", -1, 10) == [(with_key, "k")]


@pytest.mark.parametrize("plan", [Plan.REPEAT, Plan.RESEND, None])
def test_unknown_sends_are_decided_once_their_time_has_come(
    plant: Plant, plan: Literal[Plan.REPEAT, Plan.RESEND] | None
) -> None:
    plant.messages(2)
    plant.send(status="unknown")

    def decide(before: datetime) -> int:
        rule = unknown_sends.Rule(plan, before)
        return unknown_sends.decide(plant.ledger, plant.lease, destination="orders", rule=rule, now=plant.now)

    assert decide(plant.now - timedelta(seconds=1)) == 0
    assert decide(plant.now) == 2
    assert (
        plant.rows("select state, plan from messages")
        == [("to_review", None) if plan is None else ("unknown", plan)] * 2
    )


def test_unknown_sends_are_told_apart_by_their_claim_and_their_key(plant: Plant) -> None:
    plant.messages(1, message_key="k")
    plant.messages(1)
    plant.send(status="unknown")

    def decide(**which: Any) -> int:
        rule = unknown_sends.Rule(Plan.RESEND, plant.now, **which)
        return unknown_sends.decide(plant.ledger, plant.lease, destination="orders", rule=rule, now=plant.now)

    forgotten = unknown_sends.Memory(plant.now, system="")
    fresh, elsewhere = (unknown_sends.Memory(plant.now - timedelta(seconds=1), system) for system in ("", "sqs:west"))
    assert decide(memory=forgotten) == 0
    assert decide(memory=elsewhere) == 0
    assert decide(beyond=fresh) == 0
    assert decide(keyed=True, beyond=forgotten) == 1
    assert plant.rows("select message_key from messages where plan = 'resend'") == [("k",)]
    assert decide(keyed=False, memory=fresh) == 1
    plant.change("update messages set plan = null")
    assert decide(beyond=elsewhere) == 2


def test_times_to_return_are_known_from_twenty_on(plant: Plant) -> None:
    plant.messages(20)
    plant.send()
    ids = plant.rows("select redrive_id from messages order by message_id")
    sent_at = plant.now
    for n, (redrive_id,) in enumerate(ids):
        with plant.ledger.read() as connection:
            assert outcomes.return_times(connection, "orders") is None
        plant.now = sent_at + timedelta(seconds=n + 1)
        plant.load({"redrive_id": redrive_id, "redrive_attempt": 1, "body": f"body {n}".encode()})
    with plant.ledger.read() as connection:
        assert outcomes.return_times(connection, "orders") == pytest.approx(20)
        assert outcomes.return_times(connection, "orders", quantile=0.5) == pytest.approx(11)


@pytest.mark.parametrize("wrong", [timedelta(days=1), timedelta(days=-1)], ids=["ahead", "behind"])
def test_a_clock_that_is_wrong_tells_nothing_of_the_time_to_return(plant: Plant, wrong: timedelta) -> None:
    plant.messages(2)
    plant.send()
    ids = plant.rows("select redrive_id from messages order by message_id")
    plant.now += timedelta(seconds=20)
    for n, (redrive_id,) in enumerate(ids):
        said = plant.ledger.dialect.stored(plant.now + wrong)
        plant.load(
            {"redrive_id": redrive_id, "redrive_attempt": 1, "body": f"body {n}".encode(), "dead_lettered_at": said}
        )
    with plant.ledger.read() as connection:
        assert outcomes.return_times(connection, "orders", least=2) == pytest.approx(20)


def test_what_a_consumer_put_off_for_later_tells_nothing_of_the_time_to_return(plant: Plant) -> None:
    ids = plant.messages(3)
    plant.send()
    own_ids = plant.rows("select redrive_id from messages order by message_id")
    for n, (redrive_id,) in enumerate(own_ids):
        kind = "dead_letter" if n else "delay"
        plant.load({"redrive_id": redrive_id, "redrive_attempt": 1, "body": f"body {n}".encode(), "kind": kind})
    with plant.ledger.read() as connection:
        assert outcomes.return_times(connection, "orders", least=len(ids) - 1) is not None
        assert outcomes.return_times(connection, "orders", least=len(ids)) is None


# --- what looks prove -------------------------------------------------------------------------------------


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


def looks(*depths: int, lag: float = 0, exact: bool = True) -> list[Look]:
    """One a minute, the first a minute after the send."""
    return [Look(at(n + 1), depth, timedelta(minutes=lag), exact, fence=8) for n, depth in enumerate(depths)]


SENT = Sends(1, at(0), at(0.5), 5, None, fence=7)


def passed(slices: list[Sends], seen: list[Look], *, in_order: bool = True) -> dict[int, datetime]:
    return worked_past(slices, seen, Consumption(in_order=in_order))


@pytest.mark.parametrize("exact", [True, False])
def test_emptiness_after_the_send_is_worked_past(exact: bool) -> None:
    assert passed([SENT], looks(7, 0, exact=exact)) == {1: at(2)}


def estimates(*depths: int, apart: float = 2) -> list[Look]:
    return [look._replace(zeros_apart=timedelta(minutes=apart)) for look in looks(*depths, exact=False)]


@pytest.mark.parametrize(
    ("depths", "proved"),
    [
        ((0,), {}),
        ((0, 0), {}),
        ((0, 0, 0), {1: at(3)}),
        ((0, 1, 0, 0), {}),
        ((0, 1, 0, 0, 0, 0), {1: at(5)}),
        ((3, 0, 0, 1, 0, 0, 0), {1: at(7)}),
    ],
)
def test_an_estimate_of_zero_is_emptiness_only_if_it_stays(
    depths: tuple[int, ...], proved: dict[int, datetime]
) -> None:
    assert passed([SENT], estimates(*depths)) == proved


def test_zeros_of_before_a_send_are_none_of_after_it() -> None:
    """The row of zeros begins before the send: what counts is how long it lasts from there on."""
    late = Sends(2, at(1.5), at(1.6), 5, None, fence=7)
    assert passed([SENT, late], estimates(0, 0, 0, 0)) == {1: at(3), 2: at(4)}


def given_out(seen: list[Look], *, lease: float, deliveries: int) -> dict[int, datetime]:
    return worked_past([SENT], seen, Consumption(holds=Holds(timedelta(minutes=lease), deliveries)))


def held(*waiting: int) -> list[Look]:
    """One look a minute: so many wait, and consumers hold nine, of which some may be ours."""
    return [look._replace(waiting=number) for look, number in zip(looks(*[9] * len(waiting)), waiting, strict=True)]


def test_what_is_estimated_to_be_given_out_counts_if_it_stays_so() -> None:
    seen = [look._replace(zeros_apart=timedelta(minutes=2)) for look in held(*[0] * 8)]
    assert given_out(seen[:7], lease=5, deliveries=1) == {}
    assert given_out(seen, lease=5, deliveries=1) == {1: at(8)}


def test_a_look_is_as_old_as_the_broker_may_be_late() -> None:
    """And the clock of who looked may be two minutes ahead: only from minute 4 on it was surely after the send."""
    assert passed([SENT], looks(0, 0, 0, lag=1)) == {}
    assert passed([SENT], looks(0, 0, 0, 0, lag=1)) == {1: at(4)}


def test_own_sends_that_a_late_count_may_not_show_yet_have_not_left() -> None:
    later = Sends(2, at(1.2), at(1.8), 100, None, fence=9)
    seen = [Look(at(1), 10, exact=True, fence=8), Look(at(2), 10, timedelta(minutes=1), exact=True, fence=10)]
    assert passed([SENT, later], seen) == {}
    assert passed([SENT, later], [seen[0], seen[1]._replace(lag=timedelta(0))]) == {1: at(2)}


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.3])
@pytest.mark.parametrize("depth", [1, 3, 7, 100, 5_000])
def test_a_depth_that_only_wavers_never_adds_up_to_everything_having_left(depth: int, share: float) -> None:
    low = round(depth * (1 - share)) if depth > 10 else max(1, depth - 3)
    assert passed([SENT], looks(*[depth, low] * 500, exact=False)) == {}


def test_where_counts_are_exact_a_destination_that_others_fill_without_end_is_worked_past() -> None:
    assert passed([SENT], looks(*[100, 95] * 25, exact=True)) == {1: at(40)}


def test_where_counts_are_approximate_only_great_swings_count() -> None:
    worked = passed([SENT], looks(*[100, 10] * 50, exact=False))
    assert at(2) < worked[1] <= at(20), "ninety leave each time, of which what can't be the count's wavering counts"


def test_a_fall_that_began_before_the_send_counts_from_the_first_look_after_it() -> None:
    before = [Look(at(-1), 1_000, exact=False), Look(at(0.2), 600, exact=False)]
    assert passed([SENT], [*before, *looks(500, 400, 300, exact=False)]) == {}


@pytest.mark.parametrize(
    ("others", "depths", "proved"),
    [
        ([Sends(2, at(2), at(2.5), 5, at(4), fence=8)], [7, 7, 7], False),
        ([], [100, 95] * 25, False),
        ([], [100, 0], True),
    ],
    ids=["a later send came back", "as many left", "empty"],
)
def test_where_later_ones_go_past_earlier_ones_only_emptiness_proves(
    others: list[Sends], depths: list[int], proved: bool
) -> None:
    assert 1 in passed([SENT, *others], looks(*depths), in_order=True)
    assert (1 in passed([SENT, *others], looks(*depths), in_order=False)) is proved


@pytest.mark.parametrize(
    ("waiting", "proved"),
    [
        ([1, *[0] * 7], {1: at(8)}),
        ([1, *[0] * 6], {}),
        ([0, 0, *[5] * 90], {}),
        ([0, 0, *[5] * 90, 0], {}),
        ([*[0] * 4, 5, *[0] * 4], {1: at(8)}),
        ([0, 0, 5, 5, 0, 0], {}),
        ([0, 5, 0, 5, 0, 5, 0], {1: at(7)}),
        ([0, 5, 5, 0, 5, 5, 5, 0, 5, 5], {}),
        ([0, 5, 5, 0, 5, 5, 5, 0, 5, 5, 0], {1: at(11)}),
    ],
    ids=[
        "the redrive is over",
        "it isn't yet",
        "taken once, and consumers are down since",
        "taken once more",
        "two times of emptiness that last together",
        "that don't",
        "short times of emptiness, a lease apart each",
        "three of them only",
        "four",
    ],
)
def test_a_busy_queue_is_worked_past_when_what_was_given_out_would_have_died(
    waiting: list[int], proved: dict[int, datetime]
) -> None:
    """Two minutes, three times: what waits at a look may be ours, and then it is not dying."""
    assert given_out(held(*waiting), lease=2, deliveries=3) == proved


def test_nothing_dies_of_leases_where_none_ends() -> None:
    assert worked_past([SENT], held(*[0] * 60), Consumption()) == {}


def test_what_was_given_out_before_the_send_says_nothing() -> None:
    early = Look(at(1), 9, timedelta(minutes=1), waiting=0)
    seen = [early, *(look._replace(waiting=1) for look in looks(*[9] * 60)[1:])]
    assert given_out(seen, lease=5, deliveries=1) == {}


@pytest.mark.parametrize(("fence", "proved"), [(6, False), (7, False), (8, True), (None, False)])
def test_a_look_of_an_earlier_run_whose_clock_is_ahead_proves_nothing(fence: int | None, proved: bool) -> None:
    """It says to be of after the send, and was taken before; of another route's only the time is known."""
    assert (1 in passed([SENT], [Look(at(1), 0, exact=True, fence=fence)])) is proved
    assert (1 in passed([SENT], [Look(at(3), 0, exact=True, fence=fence)])) is (fence is None or proved)


@pytest.mark.parametrize("ahead", [60, 60 * 24 * 30], ids=["an hour", "a month"])
@pytest.mark.parametrize("sent_by", [5, 7], ids=["sent before it", "sent after it"])
def test_one_look_under_a_clock_that_was_ahead_hides_no_later_one(ahead: float, sent_by: int) -> None:
    wrong = Look(at(ahead), 9, exact=True, fence=6)
    assert passed([SENT._replace(fence=sent_by)], [wrong, *looks(7, 0, 0)]) == {1: at(2)}


def test_of_a_look_under_a_wrong_clock_nothing_is_learnt_from_before_it() -> None:
    """Zeros of before it and of after it are no row: it saw nine in between, whenever that was."""
    before, after = (
        [look._replace(fence=fence, zeros_apart=timedelta(minutes=3)) for look in looks(*[0] * 4, exact=False)[some]]
        for fence, some in ((8, slice(0, 2)), (10, slice(2, 4)))
    )
    of_others = [look._replace(fence=None) for look in before]
    wrong = Look(at(500), 9, fence=9, zeros_apart=timedelta(minutes=3))
    assert passed([SENT], [*before, *after]) == {1: at(4)}, "without it, they would be one"
    assert passed([SENT], [*before, wrong, *after]) == {}
    assert passed([SENT], [*of_others, wrong, *after]) == {}


def test_clocks_that_differ_a_little_leave_every_look_where_it_is() -> None:
    """Two minutes: it counts as the last one, so nothing of before it proves what a later run sent."""
    wrong = Look(at(3.9), 9, exact=True, fence=6)
    assert passed([SENT], [wrong, *looks(0, 0)]) == {}


def test_a_look_whose_moment_the_broker_told_proves_something_two_minutes_later() -> None:
    """Its clock and that of the run that sent may differ, whichever run looked."""
    assert passed([SENT], [Look(at(1), 0, exact=True, fence=8, told=True)]) == {}
    assert passed([SENT], [Look(at(3), 0, exact=True, fence=8, told=True)]) == {1: at(3)}


def test_sends_near_a_look_whose_moment_the_broker_told_are_not_added_to_it() -> None:
    seen = [Look(at(3), 7, exact=True, fence=9, told=True), Look(at(8), 7, exact=True, fence=11, told=True)]
    assert passed([SENT, Sends(2, at(4.2), at(4.8), 7, None, fence=10)], seen) == {}
    assert passed([SENT, Sends(2, at(7.2), at(7.8), 7, None, fence=10)], seen) == {}
    assert passed([SENT, Sends(2, at(5.2), at(5.8), 7, None, fence=10)], seen) == {1: at(8)}


@pytest.mark.parametrize(("fence", "proved"), [(6, False), (7, False), (8, True)])
def test_a_send_of_an_earlier_run_whose_clock_is_ahead_is_no_later_one(fence: int, proved: bool) -> None:
    assert (1 in passed([SENT, Sends(2, at(1), at(1), 5, at(2), fence)], [])) is proved


def test_sends_that_a_look_had_counted_are_not_added_to_it() -> None:
    """Its clock is behind that of the run that had sent them before."""
    others = Sends(2, at(1.2), at(1.8), 90, None, fence=8)
    seen = [Look(at(1), 100, exact=True, fence=9), Look(at(2), 90, exact=True, fence=10)]
    assert passed([SENT, others], seen) == {}
    assert passed([SENT, others], [seen[0]._replace(fence=8), seen[1]]) == {1: at(2)}


@pytest.mark.parametrize(("fence", "left"), [(9, True), (10, False), (11, False)])
def test_sends_that_a_look_had_not_counted_are_not_added_to_it(fence: int, left: bool) -> None:
    """The run that looks sends afterwards, with a clock that may be behind; so do those after it."""
    again = Sends(2, at(1.2), at(1.8), 7, None, fence=fence)
    seen = [Look(at(1), 7, exact=True, fence=9), Look(at(2), 7, exact=True, fence=10)]
    assert (1 in passed([SENT, again], seen)) is left


def test_sends_near_a_look_of_another_route_are_not_added_to_it() -> None:
    seen = [Look(at(3), 7, exact=True, fence=9), Look(at(6), 7, exact=True)]
    assert passed([SENT, Sends(2, at(4.2), at(4.8), 7, None, fence=9)], seen) == {}
    assert passed([SENT, Sends(2, at(3.2), at(3.8), 7, None, fence=9)], seen) == {1: at(6)}


def test_a_later_send_that_came_back_proves_nothing_without_order(plant: Plant) -> None:
    """A later send has come back; only of a destination that keeps order does that prove anything of the first."""
    plant.messages(1)
    plant.send()
    plant.begin()
    (later,) = plant.messages(1)
    plant.send()
    plant.change("update redelivery_attempts set outcome = 'returned', outcome_at = :at where message_id = :m",
                 at=plant.now + MINUTE, m=later)  # fmt: skip
    drain(plant, plant.now + timedelta(days=1))
    with plant.ledger.read() as connection:
        assert list(presuming.watched(connection, "orders")) == ["orders"]
    assert presume(plant) == 0
    assert presume(plant, in_order=["orders"]) == 1


def _resent(plant: Plant) -> list[int]:
    """Later sends that a broker dropped, or may have: it had the first try of each, nobody knows since when."""
    plant.begin()
    later = plant.messages(2)
    plant.send()
    plant.change("update redelivery_attempts set unknown_at = :at where message_id >= :m", at=plant.now, m=later[0])
    return later


def test_a_resend_that_came_back_proves_nothing_of_earlier_sends(plant: Plant) -> None:
    """It lies where its first try does, if the broker dropped the second: before what was sent since."""
    plant.messages(1)
    plant.send()
    (later, _) = _resent(plant)
    plant.change("update redelivery_attempts set outcome = 'returned', outcome_at = :at where message_id = :m",
                 at=plant.now + MINUTE, m=later)  # fmt: skip
    drain(plant, plant.now + timedelta(days=1))
    assert presume(plant, in_order=["orders"]) == 0


def test_a_resend_may_add_nothing_to_a_depth(plant: Plant) -> None:
    """Two messages lie there before and after two resends: so none has left, if the broker dropped those."""
    plant.messages(1)
    plant.send()
    see_destination(plant, plant.now + MINUTE, depth=2, exact=True)
    plant.now += 2 * MINUTE
    _resent(plant)
    see_destination(plant, plant.now + MINUTE, depth=2, exact=True)
    drain(plant, plant.now + timedelta(days=1))
    assert presume(plant, in_order=["orders"]) == 0


def test_looks_are_rationed_by_those_of_the_same_broker(ledger: Ledger) -> None:
    """A look costs each message of the queue a delivery; elsewhere it costs nothing, and its emptiness is no news."""
    plants = [Plant(ledger, name, system=system) for name, system in ROUTES]
    seen = Observation("orders", "destination", 0, 0, 0, looked_from_at=NOW - MINUTE, looked_to_at=NOW)
    observations.observe(ledger, plants[0].lease, [seen], NOW)
    with ledger.read() as connection:
        counted = [observations.looks(connection, name, "orders", NOW) for name, _ in ROUTES]
        most = [observations.most_looks(connection, name, "orders", NOW - MINUTE) for name, _ in ROUTES]
        long_ago = NOW - timedelta(days=1)
        nothing_older = [observations.nothing_older_than(connection, name, "orders", long_ago) for name, _ in ROUTES]
    assert counted == most == [1, 1, 0]
    assert nothing_older == [NOW - observations.COUNTS_LAG] * 2 + [long_ago]


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        ([], 0),
        ([(0, 0), (1, 1), (2, 2)], 1),
        ([(0, 1), (1, 2), (3, 4)], 2),
        ([(0, 9), (1, 2), (2, 3), (5, 6)], 3),
        ([(4, 4)] * 4, 4),
    ],
    ids=["none", "each-another", "touching", "within", "the-same"],
)
def test_looks_count_at_the_message_that_had_most(ledger: Ledger, spans: list[tuple[int, int]], most: int) -> None:
    plant = Plant(ledger)
    seen = [
        Observation(
            "orders", "destination", 1, 0, 0, looked_from_at=NOW + first * MINUTE, looked_to_at=NOW + last * MINUTE
        )
        for first, last in spans
    ]
    observations.observe(ledger, plant.lease, seen, NOW + 10 * MINUTE)
    with ledger.read() as connection:
        assert observations.most_looks(connection, "orders", "orders", NOW) == most


ROUTES = [("orders", "memory:eu"), ("orders_too", "memory:eu"), ("orders_us", "memory:us")]


def test_a_ledger_from_before_systems_were_known_takes_its_sends_for_the_present_one(sent: Plant) -> None:
    sent.now += timedelta(hours=2)
    leases.release(sent.ledger, sent.lease, status="succeeded", now=sent.now)
    sent.begin(system="memory:eu")
    assert sent.rows("select system from delivery_slices") == [("memory:eu",)]
    see_destination(sent, sent.now)
    drain(sent, sent.now + WINDOW)
    assert presume(sent) == 2


def test_what_was_known_of_queues_is_forgotten_where_the_route_moves(sent: Plant) -> None:
    group = sent.group()
    for number, stage in enumerate(("open", "ramp", "failed")):
        sent.gate(group + number, stage, allowed=100)
    sent.begin(system="memory:eu")
    drain(sent, sent.now)
    sent.begin(system="memory:us")
    assert sent.rows("select * from source_state") == []
    assert sent.rows("select stage, allowed from group_state order by group_id") == [
        ("canary", 0), ("canary", 0), ("failed", 100),
    ]  # fmt: skip
    breakers.open_gates(sent.ledger, sent.lease, first=20, now=sent.now)
    assert sent.rows("select stage, allowed from group_state order by group_id") == [
        ("canary", 20), ("canary", 20), ("failed", 100),
    ]  # fmt: skip
