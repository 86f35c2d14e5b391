"""A route's JSON Schema, and how a body is held against it: in a time that whoever corrects a body does not choose.

``pattern`` and ``patternProperties`` run on RE2, and ``uniqueItems`` and ``enum`` compare texts by a set, where
``jsonschema`` itself goes back and tries again, or compares each with each. What has no such way is refused.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from redrive.classification import route_rules

_MAX_SCHEMA: Final = 1024 * 1024
#: A body beyond this is not held against a schema.
MAX_BODY: Final = 4 * 1024 * 1024
_Schema = Mapping[str, Any]
#: What is under these is no schema.
_DATA = frozenset({"const", "default", "enum", "examples"})
#: What is under these is a schema by each name, whatever the name.
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
#: For each item they ask again what was evaluated of all.
_UNBOUNDED = frozenset({"unevaluatedProperties", "unevaluatedItems"})


def problem(schema: _Schema | Path) -> str | None:
    """Why nothing can be checked against ``schema``; None where it is one."""
    try:
        _validator(schema)
    except ValueError as error:
        return str(error)
    return None


def objection(body: str, schema: _Schema | Path) -> str | None:
    """What ``schema`` has against ``body``, which is JSON; None where there is nothing."""
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    if len(body) > MAX_BODY:
        return f"corrected_body has more than {MAX_BODY:,} characters: too many to hold it against body_schema"
    try:
        checks = _validator(schema)
        some = itertools.islice(checks.iter_errors(json.loads(body)), 100)
        found = min(some, key=lambda one: one.json_path, default=None)
    except ValueError as error:
        return str(error)
    except (Unresolvable, RecursionError) as error:
        return f"body_schema can't be used: {str(error)[:200] or 'it refers to itself without an end'}"
    if found is None:
        return None
    # Its own words quote the body, of which a person may not see all.
    if found.validator in ("required", "additionalProperties", "dependentRequired"):
        wanted = found.message
    elif isinstance(found.validator_value, dict | list) and found.validator != "enum":
        wanted = f"{found.validator} does not hold"
    else:
        wanted = f"{found.validator} has to be {json.dumps(found.validator_value)}"
    return f"corrected_body is not what the route's body_schema asks for: {found.json_path}: {wanted[:200]}"


def _validator(schema: _Schema | Path) -> Any:
    """What checks against ``schema``; it asks nobody for what the schema refers to outside of itself. Raises
    ValueError."""
    import jsonschema  # noqa: PLC0415 - takes a quarter of a second, and few edit
    import referencing  # noqa: PLC0415

    if isinstance(schema, Path):
        schema = _read(schema)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=None)  # else Python's re would judge expressions
        expressions, names = set[str](), set[str]()
        # Where it refers to a part that names its draft, jsonschema would go on with its own ways.
        schema = _without_draft(schema, expressions, names)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise ValueError(f"body_schema is no JSON Schema: {str(getattr(error, 'message', error))[:200]}") from None
    for one in sorted(expressions):
        if why := route_rules.problem(_as_re2(one)):
            hint = "; say a length by minLength and maxLength" if "repetition size" in why else ""
            raise ValueError(f"body_schema has the expression {one[:80]!r}, which RE2 does not take: {why[:200]}{hint}")
    for one in sorted(names & _UNBOUNDED & kind.VALIDATORS.keys()):
        raise _unbounded(one)
    return _bounded(kind)(schema, registry=referencing.Registry())


def _bounded(kind: Any) -> Any:
    """The validator with ways of its own for what may take too long."""
    import jsonschema  # noqa: PLC0415

    additional = kind.VALIDATORS["additionalProperties"]

    def pattern(validator: Any, wanted: str, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not _found(instance, wanted):
            yield jsonschema.ValidationError("does not match")

    def pattern_properties(validator: Any, patterns: _Schema, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for wanted, inner in patterns.items():
                for name in _matching(list(instance), wanted):
                    yield from validator.descend(instance[name], inner, path=name, schema_path=wanted)

    def additional_properties(validator: Any, wanted: Any, instance: Any, schema: _Schema) -> Iterator[Any]:
        if validator.is_type(instance, "object") and (patterns := schema.get("patternProperties")):
            names = {name for one in patterns for name in _matching(list(instance), one)}
            properties = {**dict.fromkeys(names, True), **schema.get("properties", {})}
            schema = {**schema, "properties": properties}
            del schema["patternProperties"]
        yield from additional(validator, wanted, instance, schema) or ()

    def unique_items(validator: Any, wanted: bool, instance: Any, _: Any) -> Iterator[Any]:
        if wanted and validator.is_type(instance, "array"):
            found = set(map(_written, instance))
            if len(found) < len(instance):
                yield jsonschema.ValidationError("has an item twice")

    sets: dict[int, tuple[list[Any], frozenset[str]]] = {}

    def enum(_validator: Any, values: list[Any], instance: Any, _: Any) -> Iterator[Any]:
        if id(values) not in sets:  # each is kept, so that no other has its id
            sets[id(values)] = values, frozenset(map(_written, values))
        if _written(instance) not in sets[id(values)][1]:
            yield jsonschema.ValidationError("is none of them")

    def unbounded(name: str) -> Any:
        def refuse(*_: Any) -> Iterator[Any]:
            raise _unbounded(name)  # one that only a reference finds

        return refuse

    ways = {
        "enum": enum,
        **{name: unbounded(name) for name in _UNBOUNDED},
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
        "uniqueItems": unique_items,
    }
    return jsonschema.validators.extend(kind, {name: way for name, way in ways.items() if name in kind.VALIDATORS})


def _unbounded(name: str) -> ValueError:
    instead = "additionalProperties" if name == "unevaluatedProperties" else "items, additionalItems or maxItems"
    return ValueError(f"body_schema has {name}: no time bounds it; write {instead}")


def _as_re2(expression: str) -> str:
    """The expression with characters by their number as RE2 writes them."""

    def written(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        number = ord(json.loads(f'"{found[0]}"'))
        return f"\\x{{{number:x}}}"

    return _ESCAPE.sub(written, expression)


_ESCAPE = re.compile(r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|.)", re.DOTALL)


def _found(text: str, expression: str) -> bool:
    """Whether the expression is found in the text."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return bool(pc.match_substring_regex(pa.scalar(_readable(text)), _as_re2(expression)).as_py())


def _matching(texts: list[str], expression: str) -> list[str]:
    """Those in which the expression is found."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    matches = pc.match_substring_regex(pa.array(map(_readable, texts), pa.string()), _as_re2(expression)).to_pylist()
    return [one for one, is_match in zip(texts, matches, strict=True) if is_match]


def _readable(text: str) -> str:
    """The text with a question mark for each half of a character, which RE2 can't read."""
    return text.encode("utf-8", "replace").decode()


def _written(value: Any) -> str:
    """``value`` as all that are equal to it are written."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    """``value`` with numbers that are equal written alike."""
    match value:
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _without_draft(schema: Any, expressions: set[str], names: set[str]) -> Any:
    """A schema without what its parts say of their draft; its keywords, and what it has to match, are collected."""
    if isinstance(schema, list):
        return [_without_draft(one, expressions, names) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    names.update(schema)  # keywords; names of fields are in maps of their own
    if isinstance(wanted := schema.get("pattern"), str):
        expressions.add(wanted)
    if isinstance(patterns := schema.get("patternProperties"), Mapping):
        expressions.update(patterns)

    def within(name: str, one: Any) -> Any:
        if name in _DATA:
            return one
        if name in _BY_NAME and isinstance(one, Mapping):
            return {each: _without_draft(inner, expressions, names) for each, inner in one.items()}
        return _without_draft(one, expressions, names)

    return {name: within(name, one) for name, one in schema.items() if not (name == "$schema" and isinstance(one, str))}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_SCHEMA + 1)
        if len(content) > _MAX_SCHEMA:
            raise ValueError(f"larger than {_MAX_SCHEMA:,} bytes")
        found = json.loads(content)
    except OSError as error:
        raise ValueError(f"body_schema {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"body_schema {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"body_schema {path}: not an object")
    return found
