"""Selectors of the configuration as Columns; the meaning is :meth:`redrive.selectors.Selector.evaluate`'s."""

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from redrive.selectors import MAX_BODY_BYTES, Kind, Selector

#: So many headers of a message are looked at one by one; a message with more takes the way with lambdas.
FEW = 12


def header_text(header: Column) -> Column:
    """The text of one header; undecodable bytes become U+FFFD, as in Python."""
    return F.coalesce(header["text"], F.make_valid_utf8(header["data"].cast("string")))


def body_text(limit: int) -> Column:
    """The body as text where it is UTF-8 and not above ``limit`` bytes, else null: a poison body costs nothing."""
    return F.when(F.octet_length("body") <= limit, F.try_validate_utf8(F.col("body").cast("string")))


def _last_named(name: str) -> Column:
    """The last header of that name, or null; without a lambda, which Spark interprets, where there are few."""
    named = F.filter("headers", lambda header: header["name"] == name)
    position = F.when(F.size("headers") > FEW, -1)
    for n in reversed(range(FEW)):
        position = position.when(F.get("headers", F.lit(n))["name"] == name, n)
    return F.when(position == -1, F.try_element_at(named, F.lit(-1))).otherwise(F.get("headers", position))


def selected(selector: Selector) -> Column:
    """The value of ``selector`` as text; null where it is absent or empty."""
    match selector.kind:
        case Kind.ATTRIBUTE:
            value = header_text(_last_named(selector.name))
        case Kind.BODY:
            value = F.get_json_object(body_text(MAX_BODY_BYTES), selector.json_path)
        case Kind.KEY | Kind.MESSAGE_GROUP:
            value = F.col("ordering_key")
        case Kind.BROKER_ID:
            value = F.col("broker_message_id")
    value = F.replace(value, F.lit("\0"), F.lit("\ufffd"))
    return F.when(value != "", value)
