"""The whole loop on the broker in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redrive.message import DeadLetter
from tests.stages.loop_contract import LoopContract
from tests.workshop import REFUSED, Workshop


class TestLoop(LoopContract):
    @pytest.fixture
    def shop(self, tmp_path: Path) -> Iterator[Workshop]:
        shop = Workshop(tmp_path)
        yield shop
        shop.ledger.close()

    def fail(self, shop: Workshop, *orders: str) -> None:
        shop.die(*orders)

    def work(self, shop: Workshop, fails: Callable[[str], bool] = lambda _: False) -> list[str]:
        done: list[str] = []

        def verdict(letter: DeadLetter) -> str | None:
            if fails(letter.body.decode()):
                return REFUSED
            done.append(letter.body.decode())
            return None

        shop.consume(verdict)
        return sorted(done)

    def restart(self, shop: Workshop, held: int) -> None:
        shop.advance(minutes=10)
