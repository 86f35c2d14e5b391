"""Reading the file: YAML, the environment's values, defaults, and every problem with the path of its key."""

import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from redrive.classification.causes import Cause
from redrive.errors import SettingsError
from redrive.settings.models import Broken, Settings, known_keys
from redrive.settings.route import Route
from redrive.settings.values import ANY_BROKER
from redrive.settings.words import format_size, nearest, quoted

_MAX_DEPTH = 30
_MAX_NODES = 400_000  # as many as such a file can say; a page of nested aliases must not become a billion
_MAX_FILE_BYTES = 4 << 20
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$\{")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_Key = tuple[str | int, ...]

#: Where the environment says where state is, it goes before the file, whether that has the key or not: who names a
#: ledger must not get the demo's.
PLACES: Mapping[str, str] = {"database": "REDRIVE_DATABASE_URL", "staging": "REDRIVE_STAGING_URI"}
#: What of a route says who is sent when, and how often: what ``redrive simulate`` takes.
POLICY_KEYS = ("requeue_attempts", "delay_attempts", "backoff", "canary", "causes")
#: What every route needs, for a look at parts of one.
_LEAST = {"broker": ANY_BROKER, "sources": [{"queue": "any"}]}
#: Says that a look at parts it is.
_PARTS = {"parts": True}


class Written(NamedTuple):
    """What the file says of one route, in one spelling, and the hash that names it."""

    hash: str  # SHA-256, as hexadecimal digits
    text: str  # YAML that :func:`parse` reads; the environment's values are not in it


class _Problem(NamedTuple):
    """What is wrong at a key, for people."""

    key: _Key
    line: str

    @property
    def route(self) -> str | None:
        """The route that alone has it; None where it is everybody's."""
        return str(self.key[1]) if self.key[:1] == ("routes",) and len(self.key) > 1 else None


def home(env: Mapping[str, str] = os.environ) -> Path:
    """The folder from which relative paths count, and below which ``config/redrive.yaml`` and ``var/`` are.

    ``$REDRIVE_HOME``. Else a checkout is its own home. An installed package has none: then the folder of
    ``$REDRIVE_CONFIG`` (the one above it, where that is called ``config``), else ``$AIRFLOW_HOME``, else the folder in
    which we were started.
    """
    if given := env.get("REDRIVE_HOME"):
        return Path(given).absolute()
    if found := checkout():
        return found
    if (file := Path(env.get("REDRIVE_CONFIG") or "")).is_absolute():
        return file.parent.parent if file.parent.name == "config" else file.parent
    return Path(env.get("AIRFLOW_HOME") or "").expanduser().absolute()


@functools.cache
def checkout() -> Path | None:
    """The root of the checkout that this code runs from; None where it is installed as a package."""
    plugins = Path(str(files("redrive"))).resolve().parent
    return plugins.parent if plugins.name == "plugins" and (plugins.parent / "pyproject.toml").is_file() else None


def config_path(env: Mapping[str, str] = os.environ) -> Path:
    """What :func:`load` reads: ``$REDRIVE_CONFIG``, by default ``config/redrive.yaml``, counted from home."""
    return home(env) / (env.get("REDRIVE_CONFIG") or "config/redrive.yaml")


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read, expand and check the configuration. A route that is wrong is left out of it: ``Settings.broken``.

    ``path`` goes before ``$REDRIVE_CONFIG``. What is wrong outside of the routes, or with all of them, raises
    :class:`~redrive.errors.SettingsError` with every problem of the file, a line each, beginning with the path of the
    key.
    """
    file = path or config_path(env)
    text = _read(file, "`redrive init` writes one; or set REDRIVE_CONFIG")
    return parse(text, env=env, root=home(env), file=file, without_broken=True)


def written(settings: Settings, route: str) -> Written | None:
    """What the file said of ``route``, and of what all routes share; None where ``settings`` come from no file.

    The environment's values stay out of it: where the file says ``${VAR}``, so does the text. So does the ledger's
    address, which may hold a password; nothing of another route, no comment and no blank changes the hash.
    """
    given = settings._given
    routes = given.get("routes")
    if not isinstance(routes, dict) or route not in routes:
        return None
    kept = {key: value for key, value in given.items() if key != "database"} | {"routes": {route: routes[route]}}
    text: str = yaml.dump(kept, Dumper=_Dumper, allow_unicode=True, sort_keys=True)
    if len(text) > _MAX_FILE_BYTES:  # a file may say one long word often by naming it once
        raise SettingsError(f"routes.{route}: larger than {format_size(_MAX_FILE_BYTES)}; this is not a configuration")
    return Written(hashlib.sha256(text.encode()).hexdigest(), text)


def load_policy(path: Path, route: Route, env: Mapping[str, str] = os.environ) -> Route:
    """``route`` with the policy of the YAML file ``path``: any of :data:`POLICY_KEYS`; the rest stays as it is.

    Problems are told as by :func:`load`.
    """
    _, given, wrong = _mapping(_read(path, "name a file with the keys of a policy"), env, path)
    if wrong:
        raise SettingsError(_lines(wrong))
    problems = [
        f"{key}: is no part of a policy{nearest(key, POLICY_KEYS)}; known: {', '.join(POLICY_KEYS)}"
        for key in given
        if key not in POLICY_KEYS
    ]
    now = route.model_dump(by_alias=True, include=set(POLICY_KEYS))
    now["canary"] = now["canary"] or "off"
    merged = {key: _merge(value, given[key]) if key in given else value for key, value in now.items()}
    other = None
    try:
        other = Route.model_validate({**_LEAST, **merged}, context=_PARTS)
    except ValidationError as error:
        # Lines are made with the keys below a route in mind.
        problems += [
            _line(("defaults", *detail["loc"]), detail).removeprefix("defaults.") for detail in _first_causes(error)
        ]
    if other is None or problems:
        raise SettingsError(f"{path}:\n" + "\n".join(problems))
    return route.model_copy(update={key: getattr(other, key) for key in POLICY_KEYS})


def _read(file: Path, otherwise: str) -> str:
    """The text of a file; SettingsError names it and says what to do ``otherwise``."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise SettingsError(f"{file}: larger than {format_size(_MAX_FILE_BYTES)}; this is not a configuration")
        return raw.decode("utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: can't be read ({error.strerror}); {otherwise}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{file}: is not UTF-8 text") from error


def _mapping(
    text: str, env: Mapping[str, str], file: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any], list[_Problem]]:
    """The keys and values of the YAML ``text`` of ``file``, as they are and with the environment's values in them;
    and what is wrong with them so far."""
    problems: list[_Problem] = []
    where = f"{file}: " if file else ""
    try:
        node = yaml.compose(text, Loader=_Loader)
        problems += [_Problem(key, f"{_dotted(key)}: is there twice") for key in _duplicates(node)]
        given = yaml.load(text, Loader=_Loader)  # noqa: S506  a safe loader, C or not
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"{where}not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise SettingsError(f"{where}not a configuration: nested too deeply") from None
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise SettingsError(f"{where}not a configuration: the file has to hold keys and values")
    expanded: dict[str, Any] = _Expansion(env, problems).of(given, ())
    return given, expanded, problems


def parse(
    text: str, *, env: Mapping[str, str], root: Path, file: Path | None = None, without_broken: bool = False
) -> Settings:
    """The settings that the YAML ``text`` means, :data:`PLACES` of ``env`` first; relative paths count from ``root``.

    Raises :class:`~redrive.errors.SettingsError` for what is wrong; ``without_broken`` leaves out a route that is, as
    long as another one is right. No I/O.
    """
    given, expanded, problems = _mapping(text, env, file)
    wrong = {problem.route for problem in problems}
    if problems and (not without_broken or None in wrong):
        raise SettingsError(_lines(problems))
    expanded |= {key: env[variable] for key, variable in PLACES.items() if env.get(variable)}
    defaults = expanded.get("defaults")
    routes = expanded.get("routes")
    merged = dict(expanded)
    merged["database"] = _sqlite_under(root, expanded.get("database", Settings.model_fields["database"].default))
    merged["staging"] = _path_under(root, expanded.get("staging", Settings.model_fields["staging"].default))
    if isinstance(defaults, dict):
        problems += [_Problem(("defaults",), line) for line in _problems_of_defaults(defaults)]
        if isinstance(routes, dict):
            merged["routes"] = {
                name: _merge(defaults, route) if isinstance(route, dict) else route for name, route in routes.items()
            }
    if isinstance(merged.get("routes"), dict):
        merged["routes"] = {
            name: route | {"body_schema": _path_under(root, route["body_schema"])}
            if isinstance(route, dict) and route.get("body_schema") and isinstance(route["body_schema"], str)
            else route
            for name, route in merged["routes"].items()
        }
    settings, found = _validated(merged, wrong)
    for detail in found:
        line = _line(_where(detail, expanded), detail)
        key, _, said = line.partition(": ")
        if env.get(PLACES.get(key, "")):
            line = f"{PLACES[key]}: {said}"
        problems.append(_Problem(detail["loc"], line))
    wrong = {problem.route for problem in problems}
    if settings is None and without_broken and None not in wrong:
        settings, _ = _validated(merged, wrong)
    if settings is None or (problems and (not without_broken or None in wrong or not settings.routes)):
        raise SettingsError(_lines(problems))
    settings._given = given
    for name in dict.fromkeys(problem.route or "" for problem in problems):
        mine = [problem for problem in problems if problem.route == name]
        remains = _remains(merged["routes"].get(name), {problem.key[2] for problem in mine if len(problem.key) > 2})
        settings._broken[name] = Broken(_lines(mine), remains)
    return settings


def _lines(problems: Iterable[_Problem]) -> str:
    return "\n".join(dict.fromkeys(problem.line for problem in problems))


def _validated(merged: dict[str, Any], without: Collection[str | None]) -> tuple[Settings | None, list[ErrorDetails]]:
    """The settings without these routes; None, and what is wrong, where they are not right."""
    routes = merged.get("routes")
    if without and isinstance(routes, dict):
        merged = merged | {"routes": {name: route for name, route in routes.items() if name not in without}}
    try:
        return Settings.model_validate(merged), []
    except ValidationError as error:
        return None, _first_causes(error)


def _remains(given: Any, wrong: Collection[str | int]) -> Route:
    """A broken route as far as it can be read; without a schedule, where that can't."""
    sound = {key: value for key, value in given.items() if key not in wrong} if isinstance(given, dict) else {}
    no_schedule = {**_LEAST, "schedule": None}
    try:
        return Route.model_validate((no_schedule if "schedule" in wrong else _LEAST) | sound, context=_PARTS)
    except ValidationError:
        return Route.model_validate(no_schedule, context=_PARTS)


class _Expansion:
    """Puts the environment's values into strings, noting what is missing."""

    def __init__(self, env: Mapping[str, str], problems: list[_Problem]) -> None:
        self.env, self.problems, self.nodes = env, problems, 0

    def of(self, value: Any, key: _Key) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES or len(key) > _MAX_DEPTH:
            raise SettingsError(f"{_dotted(key[:5])}: too large or nested too deeply for a configuration")
        match value:
            case str():
                return self._text(value, key)
            case dict():
                for name in value:
                    if not isinstance(name, str):
                        self._note((*key, str(name)), "keys are text; put it in quotes")
                return {str(name): self.of(item, (*key, str(name))) for name, item in value.items()}
            case list():
                return [self.of(item, (*key, position)) for position, item in enumerate(value)]
        return value

    def _note(self, key: _Key, text: str) -> None:
        self.problems.append(_Problem(key, f"{_dotted(key)}: {text}"))

    def _text(self, text: str, key: _Key) -> str:
        def put(match: re.Match[str]) -> str:
            name, has_default, default = match.groups()
            if match[0] == "$${":
                return "${"
            if name is None:
                self._note(key, "write ${VAR} or ${VAR:-default} (and $${ for a plain ${)")
                return ""
            found = self.env.get(name)
            if has_default:
                return found or default  # as in a shell: :- also replaces an empty value
            if found is None:
                self._note(key, f"the environment variable {name} is not set and has no default")
                return ""
            return str(found)

        return _VARIABLE.sub(put, text)


def _duplicates(root: yaml.Node | None) -> Iterator[_Key]:
    """Keys that a mapping has twice; YAML loaders keep the last without a word."""
    seen: set[int] = set()
    pending: list[tuple[yaml.Node | None, _Key]] = [(root, ())]
    while pending:
        node, key = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for name_node, value_node in node.value:
                name = str(name_node.value)
                if isinstance(name_node, yaml.ScalarNode) and name in names and name != "<<":
                    yield (*key, name)
                names.add(name)
                pending.append((value_node, (*key, name)))
        elif isinstance(node, yaml.SequenceNode):
            pending += [(item, (*key, position)) for position, item in enumerate(node.value)]


def _merge(below: Any, above: Any) -> Any:
    """``above`` over ``below``: mappings key by key, everything else as a whole."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merge(below.get(name), item) for name, item in above.items()}}
    return above


def _path_under(root: Path, place: Any) -> Any:
    if not isinstance(place, str) or "://" in place or not place.strip():
        return place
    return str(root / Path(place).expanduser())


def _sqlite_under(root: Path, url: Any) -> Any:
    match = re.fullmatch(r"(sqlite(?:\+\w+)?:///)([^/:?][^?]*)(\?.*)?", url) if isinstance(url, str) else None
    return f"{match[1]}{root / match[2]}{match[3] or ''}" if match else url


def _problems_of_defaults(defaults: dict[str, Any]) -> Iterator[str]:
    """Wrong keys and values of ``defaults``, also where no route is there to inherit them."""
    try:
        Route.model_validate({**_LEAST, **defaults}, context=_PARTS)
    except ValidationError as error:
        for detail in _first_causes(error):
            # What only a whole route can get right, or complete, is told at the routes.
            if detail["loc"] and detail["type"] != "missing":
                yield _line(("defaults", *detail["loc"]), detail)


def _first_causes(error: ValidationError) -> list[ErrorDetails]:
    """Its problems, without those that only follow: a list whose items are wrong also counts as too short."""
    details = error.errors()
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(
            len(other["loc"]) > len(detail["loc"]) and other["loc"][: len(detail["loc"])] == detail["loc"]
            for other in details
        )
    ]


def _where(detail: ErrorDetails, given: dict[str, Any]) -> _Key:
    """The key at which a person finds the problem: a value that a route inherits is wrong in ``defaults``."""
    loc: _Key = detail["loc"]
    if len(loc) > 2 and loc[0] == "routes" and not _has(given, loc) and _has(given, ("defaults", *loc[2:])):
        return ("defaults", *loc[2:])
    return loc


def _has(value: Any, key: _Key) -> bool:
    for step in key:
        if step == "[key]":
            continue
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _line(key: _Key, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    is_name = bool(key) and key[-1] == "[key]"
    key = tuple(step for step in key if step != "[key]")
    match detail["type"]:
        case "missing":
            text = "is required"
        case "extra_forbidden":
            known = known_keys(key[:-1])
            text = f"unknown key{nearest(str(key[-1]), known)}; known: {', '.join(known)}"
        case "together":
            key, text = (*key, *str(context["key"]).split(".")), str(context["text"])
        case "enum" if is_name:
            causes = [cause.value for cause in Cause]
            text = f"is not a cause{nearest(str(key[-1]), causes)}; known: {', '.join(causes)}"
        case "string_pattern_mismatch" if is_name:
            text = "a route's name has 1 to 40 lower-case letters, digits and underscores"
        case "value_error":
            text = str(context["error"])
        case _:
            text = detail["msg"].replace("Input should be", "should be")
            given = detail["input"]
            # A database's address and Spark's properties may hold secrets, so they are not repeated.
            if isinstance(given, str | int | float) and key[:1] != ("database",) and key[:2] != ("spark", "conf"):
                text += f", not {quoted(given)}"
            choices = str(context.get("expected", "")).replace("'", "").replace(" or ", ", ").split(", ")
            if isinstance(given, str) and len(choices) > 1:
                text += nearest(given, choices)
    return f"{_dotted(key)}: {text}"


def _dotted(key: _Key) -> str:
    return ".".join(str(step) for step in key) or "the file"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
