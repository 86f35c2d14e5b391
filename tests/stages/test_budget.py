"""The budget spares a slow consumer: a small version of ``benchmarks/redelivery.py``."""

from benchmarks import redelivery


def test_the_destination_stays_under_its_bound_and_no_lease_runs_out_where_all_at_once_drowns_the_consumer() -> None:
    blind, ours = redelivery.simulate(2_000)
    assert ours.deepest <= redelivery.BOUND
    assert (ours.expired, ours.twice, ours.dead) == (0, 0, 0)
    assert ours.worked == 2_000
    assert blind.deepest == 2_000
    assert blind.expired > 0
    assert blind.twice + blind.dead > 0
    assert ours.minutes <= 1.2 * 2_000 / redelivery.PER_SECOND / 60, "and the consumer hardly ever has to wait"
