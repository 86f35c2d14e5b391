"""The whole loop on a broker, written once: what died is drained, classified, sent back, and known when it returns.

A broker's class says how its shop is set up and how its consumer fails; what holds for that broker only is tested in
its own file.
"""

from collections.abc import Callable
from typing import Any

import pytest

from redrive.stages import pipeline
from tests.workshop import Workshop


class Killed(BaseException):
    """The process dies here."""


def killed_in_drain(shop: Workshop, monkeypatch: pytest.MonkeyPatch, *, settled: bool) -> None:
    """A run that dies as it settles its batch, before that has taken effect or after."""
    settle = shop.broker.settle

    def dying(*arguments: Any, **options: Any) -> None:
        if settled:
            settle(*arguments, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shop.broker, "settle", dying)
        run = shop.begin()
        with pytest.raises(Killed):
            for _ in shop.stages(run):
                pass
    pipeline.finish(shop.settings, run, "failed", shop.now)


class LoopContract:
    """Supply what the first section names; the tests below are the contract."""

    # --- what a broker's tests supply ------------------------------------------------------------------

    @pytest.fixture
    def shop(self) -> Workshop:
        """A workshop on this broker, whose route sends at once what has died."""
        raise NotImplementedError

    def fail(self, shop: Any, *orders: str) -> None:
        """These orders are bought, and their consumer fails until they lie in the dead-letter queue."""
        raise NotImplementedError

    def work(self, shop: Any, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        """The consumer works off its queue; the orders that it got done. What fails lies in the dead-letter queue."""
        raise NotImplementedError

    def restart(self, shop: Any, held: int) -> None:
        """A new process of ours begins when the broker gives again what the old one held, so many messages."""
        raise NotImplementedError

    # --- the loop --------------------------------------------------------------------------------------

    def test_what_died_goes_back_and_is_known_when_it_returns(self, shop: Any) -> None:
        self.fail(shop, "a", "b", "c")
        report = shop.cycle()
        assert (report["drained"], report["new"], report["redelivered"], report["suspected"]) == (3, 3, 3, 0)

        assert self.work(shop, fails=lambda order: order == "b") == ["a", "c"]
        report = shop.cycle()
        assert (report["drained"], report["new"], report["returned"], report["redelivered"]) == (1, 0, 1, 1)
        assert self.work(shop) == ["b"]

        assert shop.query("select outcome, count(*) from redelivery_attempts group by outcome order by 2") == [
            ("returned", 1),
            (None, 3),
        ]
        assert shop.query("select attempts, count(*) from messages group by attempts order by 1") == [(1, 2), (2, 1)]
        assert shop.balance() == {"recorded": 4, "new": 3, "returned": 1, "settled": 4, "messages": 3}
        assert shop.audit() == []

    @pytest.mark.parametrize("settled", [False, True], ids=["before-settling", "after-settling"])
    def test_a_drain_that_dies_loses_and_doubles_nothing(
        self, shop: Any, monkeypatch: pytest.MonkeyPatch, settled: bool
    ) -> None:
        self.fail(shop, "a", "b", "c")
        killed_in_drain(shop, monkeypatch, settled=settled)
        again = 0 if settled else 3
        self.restart(shop, again)
        report = shop.cycle()

        assert (report["drained"], report["new"], report["duplicates"], report["redelivered"]) == (again, 3, again, 3)
        assert self.work(shop) == ["a", "b", "c"]
        assert shop.audit() == []
