"""How a header is found in the JSON that headers are stored as; what both databases say of it alike."""

import json
from collections.abc import Callable

#: How brokers call the type of a header that is text: headers of these are found without their JSON being taken apart.
_TEXT_TYPES = ("String", "longstr")


def header_condition(
    holds: Callable[[str], str], name: str, value: str, apart: str, values: dict[str, str]
) -> tuple[str, dict[str, str]]:
    """The condition of :meth:`Dialect.some_header <redrive.ledger.dialects.base.Dialect.some_header>`, and its
    parameters.

    Most rows are passed over, and most others taken, by looking for what the header is written as: ``holds`` makes SQL
    of whether the headers' text has what a bind says. The JSON of the rest is taken ``apart``, a condition with the
    parameters ``values``.
    """
    named, valued = json.dumps(name), json.dumps(value)
    # Where a quote closes a string, a comma or a bracket follows. So what begins like this is a header's beginning and
    # no text inside of one, but for such names.
    types = () if name.startswith((",", "]")) else _TEXT_TYPES
    written = {f"header_{number}": f'[{named}, "{kind}", {valued}]' for number, kind in enumerate(types)}
    either = " or ".join([*(holds(f":{bind}") for bind in written), apart])
    return f"({holds(':header_value')} and ({either}))", {**values, **written, "header_value": f"{valued}]"}
