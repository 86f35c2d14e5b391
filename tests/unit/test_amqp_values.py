"""AMQP values: read as the SDK writes them, and written as they were read."""

from decimal import Decimal

import pytest
from azure.servicebus._pyamqp._encode import encode_value

from redrive.brokers.service_bus import amqp_values
from redrive.brokers.service_bus.amqp_values import Typed, Unreadable
from redrive.message import Header

SIMPLE = {
    "null": Header("x", "null", ""),
    "true": Header("x", "boolean", "true"),
    "false": Header("x", "boolean", "false"),
    "ubyte": Header("x", "ubyte", "255"),
    "ushort": Header("x", "ushort", "65535"),
    "uint": Header("x", "uint", "4294967295"),
    "uint-small": Header("x", "uint", "7"),
    "uint-zero": Header("x", "uint", "0"),
    "ulong": Header("x", "ulong", "18446744073709551615"),
    "ulong-zero": Header("x", "ulong", "0"),
    "byte": Header("x", "byte", "-128"),
    "short": Header("x", "short", "-32768"),
    "int": Header("x", "int", "-2147483648"),
    "int-small": Header("x", "int", "-1"),
    "long": Header("x", "long", "-9223372036854775808"),
    "float": Header("x", "float", "0.5"),
    "double": Header("x", "double", "0.1"),
    "timestamp": Header("x", "timestamp", "1760000000123"),
    "uuid": Header("x", "uuid", "0f8fad5b-d9cb-469f-a165-70867728950e"),
    "decimal": Header("x", "decimal128", "-12.50"),
    "string": Header("x", "String", "Größe 🙂"),
    "string-empty": Header("x", "String", ""),
    "string-long": Header("x", "String", "y" * 300),
    "symbol": Header("x", "symbol", "amqp:thing"),
    "binary": Header("x", "binary", b"\x00\xff" * 200),
    "timespan": Header("x", "com.microsoft:timespan/long", "36000000000"),
    "uri": Header("x", "com.microsoft:uri/String", "https://example.org/"),
}


def encoded(typed: Typed) -> bytes:
    output = bytearray()
    encode_value(output, amqp_values.for_sdk(typed))
    return bytes(output)


@pytest.mark.parametrize("header", SIMPLE.values(), ids=SIMPLE)
def test_a_simple_value_survives_with_its_type(header: Header) -> None:
    raw = encoded(amqp_values.from_header(header))
    typed, end = amqp_values.read(raw)

    assert end == len(raw)
    assert amqp_values.to_header("x", typed) == header


@pytest.mark.parametrize(
    ("header", "typed"),
    [
        (Header("x", "Number", "17"), Typed("long", 17)),
        (Header("x", "Number", "12.50"), Typed("double", 12.5)),
        (Header("x", "Number.int", "-7"), Typed("long", -7)),
        (Header("x", "Binary.png", b"\x89"), Typed("binary", b"\x89")),
        (Header("x", "whatever", "text"), Typed("String", "text")),
    ],
)
def test_types_of_other_brokers_become_the_nearest(header: Header, typed: Typed) -> None:
    assert amqp_values.from_header(header) == typed


@pytest.mark.parametrize(
    "header",
    [
        Header("n", "long", "many"),
        Header("n", "Number", "1,5"),
        Header("n", "boolean", "yes"),
        Header("n", "uuid", "1"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused_by_name(header: Header) -> None:
    with pytest.raises(ValueError, match=f"property n: '{header.value!s}' is no {header.type}"):
        amqp_values.from_header(header)


def test_containers_are_read_to_their_end() -> None:
    output = bytearray()
    encode_value(output, {"a": [1, "two", None], "b": {"c": Decimal("1.5")}})
    typed, end = amqp_values.read(bytes(output) + b"\x40")

    assert end == len(output)
    assert typed.type == "map"
    assert typed.value[0][1] == Typed("list", [Typed("int", 1), Typed("String", "two"), Typed("null", None)])


def test_what_is_cut_off_is_told_wherever_it_is_cut() -> None:
    output = bytearray()
    encode_value(output, {"a": [1, "two", 3.5], "b": "x" * 300})
    for length in range(len(output)):
        with pytest.raises(Unreadable):
            amqp_values.read(bytes(output[:length]))


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc0\x02\x01" * 1000 + b"\x40",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00" * 5000,
        b"\x0f",
        b"\xa1\x02\xff\xfe",
        b"\xc0\x01\x08" * 28 + b"\x40" * 197,
    ],
    ids=["deep", "huge-count", "descriptors", "unknown", "not-utf8", "longer than its list says, at each level"],
)
def test_hostile_bytes_are_unreadable_and_nothing_worse(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        amqp_values.read(raw)
