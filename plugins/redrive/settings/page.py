"""docs/configuration.md, written from the models so that it can't tell anything else than the code."""

from datetime import timedelta
from typing import Any, Final, Literal, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from redrive.brokers import registry
from redrive.classification.causes import Cause, Verdict
from redrive.selectors import Selector
from redrive.settings.models import Settings, parts_of
from redrive.settings.values import Part, Size
from redrive.settings.words import format_duration, format_size

_PAGE_HEAD = """\
# Configuration

<!-- Written by `python -m redrive.settings > docs/configuration.md`; a test holds it to the code. -->

Redrive reads `config/redrive.yaml`, or the file that `$REDRIVE_CONFIG` names. An unknown key or a bad value is refused
with its path.

- `${VAR}` is the value of an environment variable, which has to be there; `${VAR:-default}` has a default for one that
  is unset or empty. `$${` is a plain `${`.
- Relative paths, also that of `config/redrive.yaml`, count from `$REDRIVE_HOME`. Without it they count, in a checkout,
  from its root; in an installed package from the folder of `$REDRIVE_CONFIG` (or the one above it, where that is called
  `config`), else from `$AIRFLOW_HOME`, else from the working directory.
- Durations: `500ms`, `30s`, `5m`, `6h`, `4d`, `1w`, `1h30m`, or ISO 8601 such as `PT5M`. Sizes: `64MiB`, `5MB`, or a
  number of bytes.
- Selectors: `attribute:NAME` (a header), `body:$.a.b[0].c` (a place in a JSON body), `key` and `message_group` (the
  ordering key), `broker_id`.
- A connection is named by its [Airflow connection id](brokers.md#connection). Write no secret into this file.
- `defaults` is merged into every route: mappings key by key, everything else as a whole.

The second column has the kind of value and its default, or *required*.
"""


def configuration_page() -> str:
    """The text of docs/configuration.md."""
    sections: list[str] = [_PAGE_HEAD]
    pending: list[tuple[str, type[Part], str]] = [("", Settings, "")]
    while pending:
        prefix, model, said = pending.pop(0)
        rows = [f"## `{prefix}`" if prefix else "## The file", ""]
        if (purpose := (model.__doc__ or "").strip()) != said:  # where its key stands, it may be said already
            rows += [purpose, ""]
        rows += ["| key | value | |", "|---|---|---|"]
        for name, field in model.model_fields.items():
            key = field.alias or name
            of_brokers = registry.words(f"{prefix}.{key}".lstrip(".").removeprefix("routes.NAME."))
            description = " ".join(filter(None, (field.description, of_brokers))).replace("|", "\\|")
            value, default = _field_kind(key, field), _default_text(field)
            if default:
                value += (
                    f"; default {default}"
                    if value.startswith("`") and field.default is not PydanticUndefined
                    else f", {default}"
                )
            rows.append(f"| `{key}` | {value} | {description} |")
            for part in parts_of(_inner(field.annotation)):
                step = {"routes": "routes.NAME", "causes": "causes.CAUSE"}.get(key, key)
                is_list = getattr(field.annotation, "__origin__", None) is tuple
                pending.append(
                    (f"{prefix}.{step}".lstrip(".") + ("[]" if is_list else ""), part, field.description or "")
                )
        sections.append("\n".join(rows) + "\n")
    return "\n".join(sections)


def _inner(kind: Any) -> Any:
    if getattr(kind, "__origin__", None) in (dict, tuple):
        arguments = [argument for argument in get_args(kind) if argument is not ...]
        return arguments[-1]
    return kind


_PLAIN: Final[dict[Any, str]] = {
    str: "text",
    int: "number",
    float: "number",
    bool: "true, false",
    timedelta: "duration",
    Selector: "selector",
    Cause: "a cause",
    Verdict: ", ".join(f"`{verdict.value}`" for verdict in Verdict),
}
_SIZE_MARK: Final = get_args(Size)[1]


def _field_kind(key: str, field: FieldInfo) -> str:
    if key == "broker":
        return ", ".join(f"`{name}`" for name in registry.ours())
    # A size is a plain number to Python; only its parser tells.
    return "size" if _SIZE_MARK in field.metadata else _kind_text(field.annotation)


def _kind_text(kind: Any) -> str:
    """What a value is, in a reader's words."""
    origin, arguments = getattr(kind, "__origin__", None), get_args(kind)
    if kind in _PLAIN:
        text = _PLAIN[kind]
    elif origin is dict or (isinstance(kind, type) and issubclass(kind, Part)):
        text = "mapping"
    elif origin is tuple:
        text = f"list of {_kind_text(arguments[0])}"
    elif origin is Literal:
        text = ", ".join(f"`{argument}`" for argument in arguments)
    elif hasattr(kind, "__metadata__"):
        text = _kind_text(arguments[0])
    else:
        text = ", ".join(_kind_text(argument) for argument in arguments if argument is not type(None))
    return text


def _default_text(field: FieldInfo) -> str:
    """A default as it would be written in the file; empty where there is none, or where it is a mapping's own."""
    default: Any = field.default
    match default:
        case timedelta():
            text = format_duration(default)
        case bool():
            text = str(default).lower()
        case int() if _SIZE_MARK in field.metadata:
            text = format_size(default)
        case float():
            text = f"{default:g}"
        case _:
            text = str(default)
    words = {PydanticUndefined: "*required*", None: "", (): "", "": ""}
    return "" if default == {} or isinstance(default, Part) else words.get(default, f"`{text}`")
