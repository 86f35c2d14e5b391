"""A route's ``processed_check``: how to find out whether a message was processed."""

import json
import re
from datetime import timedelta
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from redrive.settings.values import ConnectionId, Duration, DurationOrZero, KeySelector, Part, problem

_NOT_A_BIND = re.compile(r"'[^']*'|--[^\n]*|/\*.*?\*/|::", re.DOTALL)
_BIND = re.compile(r":([A-Za-z_][A-Za-z0-9_]*)")


def _repeats(value: Any) -> bool:
    """Whether ``"{key}"`` stands within a list of one thing."""
    if isinstance(value, list) and len(value) == 1 and '"{key}"' in json.dumps(value):
        return True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_repeats(one) for one in inner)


class CheckAnswer(Part):
    """Where an HTTP endpoint's answer says which keys were processed. Places are names with dots between them."""

    items: str = Field(description="The place of a list.", min_length=1, max_length=500)
    key: str = Field(default="", max_length=500, description="The key's place in an item. Empty: the item is the key.")
    when: dict[str, str | int | bool] = Field(
        default={},
        description="Only items with these values at these places were processed. Each key needs its item, and each "
        "item a value at these places. Empty: whatever is listed was processed.",
    )
    empty: tuple[str, ...] = Field(
        default=(),
        description="Places at which the answer may have nothing, or something empty: there it says which keys it "
        "left out.",
    )


class ProcessedCheck(Part):
    """How to find out whether a message was processed although it is here."""

    connection: ConnectionId = Field(
        description="Airflow connection id: of the consumer's database with `query`, of type `http` with `path`."
    )
    query: str | None = Field(
        default=None,
        max_length=10_000,
        description="Returns those of the list `:keys` that were processed: `select message_id from processed where "
        "message_id in :keys`. Either this or `path` is required.",
    )
    path: str | None = Field(
        default=None,
        max_length=2_000,
        pattern=r"^/[!-~]*$",
        description='Path of an HTTP endpoint. It gets `POST {"keys": [...]}` and answers `200 {"processed": '
        "[...]}`. On any other answer the messages are held.",
    )
    request: dict[str, Any] | None = Field(
        default=None,
        description='With `path`: the JSON that is sent instead. `"{keys}"` in it becomes the list of keys. Or a list '
        'of one thing that holds `"{key}"` becomes a list of such things, one per key.',
    )
    answer: CheckAnswer | None = Field(
        default=None, description="With `path`: where the answer says which keys were processed."
    )
    batch: int = Field(default=500, ge=1, le=500, description="How many keys are asked about at once.")
    key: KeySelector = Field(
        description="The key in a message: `attribute:NAME`, `body:$.path`, `key` or `broker_id` (all ids that it "
        "ever had). `broker_id` is refused where a dead letter has another id than the message that its consumer saw."
    )
    settle_after: DurationOrZero = Field(
        default=timedelta(minutes=5),
        description="Not asked earlier after dead-lettering, because a commit may be under way.",
    )
    timeout: Duration = Field(
        default=timedelta(seconds=10),
        description="A check that takes longer has failed, and its messages are held.",
    )

    @model_validator(mode="after")
    def _one_way_of_asking(self) -> Self:
        if self.query is None and self.path is None:
            raise problem("query", "is required, or path for an HTTP endpoint")
        if self.query is not None and self.path is not None:
            raise problem("path", "is not for a check with a query: write one of both")
        if self.path is None and (self.request is not None or self.answer is not None):
            raise problem("request", "is for a check with a path, and so is answer")
        return self

    @field_validator("request")
    @classmethod
    def _request_has_the_keys(cls, request: dict[str, Any] | None) -> dict[str, Any] | None:
        if request is None:
            return None
        told = json.dumps(request)
        if told.count('"{keys}"') + told.count('"{key}"') != 1:
            raise ValueError('has to hold "{keys}", or "{key}" within a list of one thing, exactly once')
        if '"{key}"' in told and not _repeats(request):
            raise ValueError('"{key}" has to stand within a list of one thing, which is repeated for each key')
        return request

    @field_validator("query")
    @classmethod
    def _query_binds_the_keys(cls, query: str | None) -> str | None:
        if query is None:
            return None
        bare = _NOT_A_BIND.sub(" ", query)
        binds = _BIND.findall(bare)
        if binds != ["keys"]:
            raise ValueError(
                "has to name :keys exactly once and no other parameter, as in … where message_id in :keys"
                + (f"; found {', '.join(f':{bind}' for bind in binds)}" if binds else "; found none")
            )
        if not re.match(r"\s*(select|with)\b", bare, re.IGNORECASE) or ";" in bare.rstrip().rstrip(";"):
            raise ValueError("has to be one select statement")
        return query
