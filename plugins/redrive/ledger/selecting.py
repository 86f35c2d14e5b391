"""Which messages a run may touch, as a WHERE clause over table ``messages``."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Selection:
    """What a run is limited to; empty means everything.

    ``since`` and ``until`` select by dead-lettered time, and by first enqueue where the broker doesn't tell.
    ``limit`` bounds what is drained and what is sent, each.
    """

    limit: int | None = None
    causes: Sequence[str] = field(default=())
    groups: Sequence[int] = field(default=())
    since: datetime | None = None
    until: datetime | None = None

    def where(self, table: str = "messages") -> tuple[str, dict[str, Any]]:
        """A condition and its parameters."""
        parts = ["1 = 1"]
        values: dict[str, Any] = {}
        if self.causes:
            names = [f"cause_{i}" for i in range(len(self.causes))]
            parts.append(f"{table}.cause in ({', '.join(':' + n for n in names)})")
            values.update(zip(names, self.causes, strict=True))
        if self.groups:
            parts.append(f"{table}.group_id in ({', '.join(str(int(group)) for group in self.groups)})")
        moment = f"coalesce({table}.dead_lettered_at, {table}.first_enqueued_at)"
        if self.since:
            parts.append(f"{moment} >= :since_at")
            values["since_at"] = self.since
        if self.until:
            parts.append(f"{moment} < :until_at")
            values["until_at"] = self.until
        return " and ".join(parts), values

    def to_json(self) -> dict[str, Any]:
        """A form that travels through XCom; :meth:`from_json` reads it."""
        return {
            "limit": self.limit,
            "causes": list(self.causes),
            "groups": list(self.groups),
            "since": self.since.isoformat() if self.since else None,
            "until": self.until.isoformat() if self.until else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Selection":
        """The inverse of :meth:`to_json`."""
        return cls(
            limit=data.get("limit"),
            causes=tuple(data.get("causes") or ()),
            groups=tuple(data.get("groups") or ()),
            since=datetime.fromisoformat(data["since"]) if data.get("since") else None,
            until=datetime.fromisoformat(data["until"]) if data.get("until") else None,
        )
