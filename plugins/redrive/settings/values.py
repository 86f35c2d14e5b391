"""The kinds of values that keys of the configuration have, how each is checked, and what every mapping is made of."""

import re
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from redrive import redaction, selectors
from redrive.brokers import registry
from redrive.errors import SelectorError
from redrive.selectors import Kind, Selector
from redrive.settings.expressions import check_expression
from redrive.settings.words import check_schedule, format_duration, nearest, parse_duration, parse_size, quoted


def _selector(*kinds: Kind) -> BeforeValidator:
    def parse(value: object) -> Selector:
        try:
            selector = value if isinstance(value, Selector) else selectors.parse(value)  # type: ignore[arg-type]
        except SelectorError as error:
            raise ValueError(str(error)) from None
        if selector.kind not in kinds:
            raise ValueError(f"{selector} can't be used here; possible are {', '.join(k.value for k in kinds)}")
        return selector

    return BeforeValidator(parse)


def _auto_or_duration(value: object) -> object:
    return "auto" if value == "auto" else _positive(parse_duration(value))


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("has to be longer than nothing")
    return value


def at_most(longest: timedelta) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        if value > longest:
            raise ValueError(f"{format_duration(value)} is too long; at most {format_duration(longest)}")
        return value

    return AfterValidator(check)


def at_least(shortest: timedelta) -> AfterValidator:
    def check(value: timedelta) -> timedelta:
        if value < shortest:
            raise ValueError(f"{format_duration(value)} is too short; at least {format_duration(shortest)}")
        return value

    return AfterValidator(check)


def _redaction(value: object) -> str:
    try:
        return redaction.check(str(value))
    except SelectorError as error:
        raise ValueError(str(error)) from None


def is_port(text: str | None) -> bool:
    """Whether ``text`` is a port, or there is none."""
    return not text or (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535)


def readable_address(value: str) -> str:
    """An address of which everybody can say which host it names, and which port."""
    try:
        port = urlsplit(value).port
    except ValueError:
        port = 0
    if port == 0:  # the value may hold a token
        raise ValueError("is no address: write scheme://host or scheme://host:port, with a port from 1 to 65535")
    return value


_TO_TEXT = PlainSerializer(str, return_type=str)
Duration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
DurationOrZero = Annotated[timedelta, BeforeValidator(parse_duration)]
AutoOrDuration = Annotated[Literal["auto"] | timedelta, BeforeValidator(_auto_or_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Share = Annotated[float, Field(gt=0, le=1)]
QueueName = Annotated[str, Field(min_length=1, max_length=500)]
#: Of one character or more; ``*`` only at the end.
Origin = Annotated[str, Field(pattern=r"^[^*]*(?:[^*]|\*)$", max_length=500)]
CONNECTION_ID = r"^[A-Za-z0-9_.\-]{1,200}$"


def _connection_id(value: str) -> str:
    if not re.fullmatch(CONNECTION_ID, value):  # the value is not told: an address may hold a password
        raise ValueError(
            "is no Airflow connection id, such as orders of AIRFLOW_CONN_ORDERS: letters, digits, _, . and -; addresses"
            " and secrets belong into the connection"
        )
    return value


ConnectionId = Annotated[str, AfterValidator(_connection_id)]
EvidenceSelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT]
OrderSelector = Annotated[Selector, _selector(Kind.MESSAGE_GROUP, Kind.KEY, Kind.ATTRIBUTE, Kind.BODY), _TO_TEXT]
SearchSelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY, Kind.KEY), _TO_TEXT]
KeySelector = Annotated[Selector, _selector(Kind.ATTRIBUTE, Kind.BODY, Kind.KEY, Kind.BROKER_ID), _TO_TEXT]
Expression = Annotated[
    str, Field(min_length=1, max_length=500), BeforeValidator(lambda v: _checked(v, check_expression))
]
#: For keys that say by a pattern which schemes they take.
Address = Annotated[str, AfterValidator(readable_address)]
Schedule = Annotated[str, BeforeValidator(lambda v: _checked(v, check_schedule))]
Redaction = Annotated[str, BeforeValidator(_redaction)]

#: Redrive leases a copy at most this long while its batch is open.
LONGEST_LEASE = timedelta(hours=12)
#: So many fields at most a route names by which its messages are found.
MOST_SEARCHED = 8
#: Stands for whichever broker where parts of a route are looked at alone; a file can't say it.
ANY_BROKER = "*"


def _a_registered_broker(name: str, info: ValidationInfo) -> str:
    if name == ANY_BROKER and (info.context or {}).get("parts"):
        return name
    if name not in registry.names():
        raise ValueError(f"{quoted(name)} is unknown{nearest(name, registry.names())}; {registry.known()}")
    registry.kind(name)
    return name


BrokerName = Annotated[str, AfterValidator(_a_registered_broker)]


def _checked(value: object, check: Any) -> object:
    return check(value) if isinstance(value, str) else value


def problem(key: str, text: str) -> PydanticCustomError:
    """A problem that only several keys together show, told at the key that is most likely wrong."""
    return PydanticCustomError("together", "{text}", {"key": key, "text": text})


class Part(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,  # YAML's .inf is a number, of which nothing can be counted
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,  # values may hold secrets
    )

    @field_validator("*", mode="before")
    @classmethod
    def _a_word_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """``approvals: yes`` is no 1: who writes it means that there are approvals."""
        if isinstance(value, bool) and info.field_name in _numbers(cls):
            raise ValueError("should be a number; yes, no, on and off are true and false in YAML")
        return value


@cache
def _numbers(part: type[Part]) -> frozenset[str]:
    """The keys of a mapping that have a number as their value, and nothing that is true or false."""
    kinds = {name: _kinds(field.annotation) for name, field in part.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def _kinds(annotation: Any) -> set[type]:
    """Which types a value of such an annotation has."""
    if isinstance(annotation, type):
        return {annotation}
    if get_origin(annotation) is Literal:
        return {type(value) for value in get_args(annotation)}
    # Only of a choice: a list or mapping of numbers is none.
    return set().union(*map(_kinds, get_args(annotation))) if get_origin(annotation) in (Union, UnionType) else set()
