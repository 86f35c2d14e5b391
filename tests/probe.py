"""How tests look into a ledger."""

from typing import Any

from redrive.ledger.engine import Ledger, sql

_COUNTS = ("recorded", "new", "returned", "duplicate", "surplus", "suspected", "staged", "settled", "messages")
_DIFFERENCES = ("copies_difference", "messages_difference", "settled_difference")


def numbers(most: int) -> str:
    """SQL that begins a select, for SQLite: ``n`` has the numbers from 1 to ``most``."""
    return f"with recursive n(n) as (select 1 union all select n + 1 from n where n < {most})"


class Probe:
    """Who has a ledger can be asked what is in it."""

    ledger: Ledger

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        with self.ledger.read() as connection:
            return [tuple(row) for row in connection.execute(sql(statement), values)]

    query = rows

    def value(self, statement: str, **values: Any) -> Any:
        """The only value of the only row."""
        ((value,),) = self.rows(statement, **values)
        return value

    def change(self, statement: str, **values: Any) -> int:
        """Change rows behind the ledger's back, as an accident or a person with SQL would."""
        with self.ledger.write() as connection:
            return int(connection.execute(sql(statement), values).rowcount)

    def states(self) -> dict[str, int]:
        """How many messages are in each state."""
        return dict(self.rows("select state, count(*) from messages group by state"))  # type: ignore[arg-type]

    def balance(self) -> dict[str, int]:
        """What the balance of the only route counts, and that it is one."""
        [row] = self.rows(f"select {', '.join(_COUNTS + _DIFFERENCES)} from message_balance")
        assert row[-3:] == (0, 0, 0)
        return {name: count for name, count in zip(_COUNTS, row, strict=False) if count}
