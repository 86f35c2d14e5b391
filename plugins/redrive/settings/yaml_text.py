"""From a file's text to its keys and values: YAML that can't be a bomb, with the environment's values put in."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from redrive.errors import SettingsError
from redrive.settings.problems import Key, Problem, dotted
from redrive.settings.words import format_size

_MAX_DEPTH = 30
_MAX_NODES = 400_000  # as many as such a file can say; a page of nested aliases must not become a billion
_MAX_FILE_BYTES = 4 << 20
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$\{")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read(file: Path, otherwise: str) -> str:
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


def keys_and_values(
    text: str, env: Mapping[str, str], file: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any], list[Problem]]:
    """The keys and values of the YAML ``text`` of ``file``, as they are and with the environment's values in them;
    and what is wrong with them so far."""
    problems: list[Problem] = []
    where = f"{file}: " if file else ""
    try:
        node = yaml.compose(text, Loader=_Loader)
        problems += [Problem(key, f"{dotted(key)}: is there twice") for key in _duplicates(node)]
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


def dump(values: Mapping[str, Any], where: str) -> str:
    """``values`` in one spelling, which :func:`keys_and_values` reads; SettingsError says ``where`` it is too much."""
    text: str = yaml.dump(values, Dumper=_Dumper, allow_unicode=True, sort_keys=True)
    if len(text) > _MAX_FILE_BYTES:  # a file may say one long word often by naming it once
        raise SettingsError(f"{where}: larger than {format_size(_MAX_FILE_BYTES)}; this is not a configuration")
    return text


class _Expansion:
    """Puts the environment's values into strings, noting what is missing."""

    def __init__(self, env: Mapping[str, str], problems: list[Problem]) -> None:
        self.env, self.problems, self.nodes = env, problems, 0

    def of(self, value: Any, key: Key) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES or len(key) > _MAX_DEPTH:
            raise SettingsError(f"{dotted(key[:5])}: too large or nested too deeply for a configuration")
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

    def _note(self, key: Key, text: str) -> None:
        self.problems.append(Problem(key, f"{dotted(key)}: {text}"))

    def _text(self, text: str, key: Key) -> str:
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


def _duplicates(root: yaml.Node | None) -> Iterator[Key]:
    """Keys that a mapping has twice; YAML loaders keep the last without a word."""
    seen: set[int] = set()
    pending: list[tuple[yaml.Node | None, Key]] = [(root, ())]
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
