"""Reading the file: defaults go below routes, and the whole is checked, with every problem at the path of its key."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from redrive.brokers import registry
from redrive.errors import SettingsError
from redrive.settings.models import Broken, Settings
from redrive.settings.places import PLACES, config_path, home, path_under, sqlite_under
from redrive.settings.problems import Problem, dotted, first_causes, found_at, line_of, lines
from redrive.settings.route import Queues, Route
from redrive.settings.values import ANY_BROKER
from redrive.settings.words import nearest
from redrive.settings.yaml_text import dump, keys_and_values, read

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


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Read, expand and check the configuration. A route that is wrong is left out of it: ``Settings.broken``.

    ``path`` goes before ``$REDRIVE_CONFIG``. What is wrong outside of the routes, or with all of them, raises
    :class:`~redrive.errors.SettingsError` with every problem of the file, a line each, beginning with the path of the
    key.
    """
    file = path or config_path(env)
    text = read(file, "`redrive init` writes one; or set REDRIVE_CONFIG")
    return parse(text, env=env, root=home(env), file=file, without_broken=True)


def written(settings: Settings, route: str) -> Written | None:
    """What the file said of ``route``, and of what all routes share; None where ``settings`` come from no file.

    The environment's values stay out of it: where the file says ``${VAR}``, so does the text. So does the ledger's
    address, which may hold a password; nothing of another route, no comment and no blank changes the hash.
    """
    given = settings.given
    routes = given.get("routes")
    if not isinstance(routes, dict) or route not in routes:
        return None
    kept = {key: value for key, value in given.items() if key != "database"} | {"routes": {route: routes[route]}}
    text = dump(kept, f"routes.{route}")
    return Written(hashlib.sha256(text.encode()).hexdigest(), text)


def load_policy(path: Path, route: Route, env: Mapping[str, str] = os.environ) -> Route:
    """``route`` with the policy of the YAML file ``path``: any of :data:`POLICY_KEYS`; the rest stays as it is.

    Problems are told as by :func:`load`.
    """
    _, given, wrong = keys_and_values(read(path, "name a file with the keys of a policy"), env, path)
    if wrong:
        raise SettingsError(lines(wrong))
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
            line_of(("defaults", *detail["loc"]), detail).removeprefix("defaults.") for detail in first_causes(error)
        ]
    if other is None or problems:
        raise SettingsError(f"{path}:\n" + "\n".join(problems))
    return route.model_copy(update={key: getattr(other, key) for key in POLICY_KEYS})


def parse(
    text: str, *, env: Mapping[str, str], root: Path, file: Path | None = None, without_broken: bool = False
) -> Settings:
    """The settings that the YAML ``text`` means, :data:`PLACES` of ``env`` first; relative paths count from ``root``.

    Raises :class:`~redrive.errors.SettingsError` for what is wrong; ``without_broken`` leaves out a route that is, as
    long as another one is right. No I/O.
    """
    given, expanded, problems = keys_and_values(text, env, file)
    wrong = {problem.route for problem in problems}
    if problems and (not without_broken or None in wrong):
        raise SettingsError(lines(problems))
    expanded |= {key: env[variable] for key, variable in PLACES.items() if env.get(variable)}
    defaults = expanded.get("defaults")
    routes = expanded.get("routes")
    merged = dict(expanded)
    merged["database"] = sqlite_under(root, expanded.get("database", Settings.model_fields["database"].default))
    merged["staging"] = path_under(root, expanded.get("staging", Settings.model_fields["staging"].default))
    if isinstance(defaults, dict):
        problems += [Problem(("defaults",), line) for line in _problems_of_defaults(defaults)]
        if isinstance(routes, dict):
            merged["routes"] = {
                name: _merge(defaults, route) if isinstance(route, dict) else route for name, route in routes.items()
            }
    if isinstance(merged.get("routes"), dict):
        merged["routes"] = {
            name: route | {"body_schema": path_under(root, route["body_schema"])}
            if isinstance(route, dict) and route.get("body_schema") and isinstance(route["body_schema"], str)
            else route
            for name, route in merged["routes"].items()
        }
    settings, found = _validated(merged, wrong)
    for detail in found:
        line = line_of(found_at(detail, expanded), detail)
        key, _, said = line.partition(": ")
        if env.get(PLACES.get(key, "")):
            line = f"{PLACES[key]}: {said}"
        problems.append(Problem(detail["loc"], line))
    wrong = {problem.route for problem in problems}
    if settings is None and without_broken and None not in wrong:
        settings, _ = _validated(merged, wrong)
    if settings is not None and (shared := list(_drained_twice(settings))):
        problems += shared
        settings, _ = _validated(merged, wrong := wrong | {problem.route for problem in shared})
    if settings is None or (problems and (not without_broken or None in wrong or not settings.routes)):
        raise SettingsError(lines(problems))
    broken: dict[str, Broken] = {}
    for name in dict.fromkeys(problem.route or "" for problem in problems):
        mine = [problem for problem in problems if problem.route == name]
        remains = _remains(merged["routes"].get(name), {problem.key[2] for problem in mine if len(problem.key) > 2})
        broken[name] = Broken(lines(mine), remains)
    return settings.read_from(given, broken)


def _validated(merged: dict[str, Any], without: Collection[str | None]) -> tuple[Settings | None, list[ErrorDetails]]:
    """The settings without these routes; None, and what is wrong, where they are not right."""
    routes = merged.get("routes")
    if without and isinstance(routes, dict):
        merged = merged | {"routes": {name: route for name, route in routes.items() if name not in without}}
    try:
        return Settings.model_validate(merged), []
    except ValidationError as error:
        return None, first_causes(error)


def _drained_twice(settings: Settings) -> Iterator[Problem]:
    """Sources that a route above in the file drains too. What comes back of one route's sends would be the other's, and
    never count as a return: it would be presumed that they all stayed away."""
    # By system: which route a queue belongs to, and apart from these those that stand for several.
    drained, of_many = dict[str, Queues](), defaultdict[str, dict[str, str]](dict)
    written = defaultdict[str, dict[str, str]](dict)
    for name, route in settings.routes.items():
        kind = registry.kind(route.broker)
        known = drained.setdefault(route.system, Queues(kind))
        every, several = written[route.system], of_many[route.system]
        found = []
        for position, source in enumerate(route.sources):
            among = every if kind.many(source.queue) else several
            own = source.queue
            one = known.find(own)
            other = (
                one.of
                if one
                else next(
                    (of for queue, of in among.items() if kind.covers(queue, own) or kind.covers(own, queue)), None
                )
            )
            if other is not None:
                also = known.as_written(own, one.name) if one else ""
                key = ("routes", name, "sources", position, "queue")
                said = (
                    f"{own!r} is a source of route {other} too{also}: each would take what comes back to the other,"
                    " and messages that fail again would count as having stayed away. One route drains it; its runs may"
                    " be of a part"
                )
                found.append(Problem(key, f"{dotted(key)}: {said}"))
        if not found:
            own_ones = {source.queue: name for source in route.sources}
            for queue in own_ones:
                known.add(queue, name)
            every.update(own_ones)
            several.update({queue: name for queue in own_ones if kind.many(queue)})
        yield from found


def _remains(given: Any, wrong: Collection[str | int]) -> Route:
    """A broken route as far as it can be read; without a schedule, where that can't."""
    sound = {key: value for key, value in given.items() if key not in wrong} if isinstance(given, dict) else {}
    no_schedule = {**_LEAST, "schedule": None}
    try:
        return Route.model_validate((no_schedule if "schedule" in wrong else _LEAST) | sound, context=_PARTS)
    except ValidationError:
        return Route.model_validate(no_schedule, context=_PARTS)


def _merge(below: Any, above: Any) -> Any:
    """``above`` over ``below``: mappings key by key, everything else as a whole."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merge(below.get(name), item) for name, item in above.items()}}
    return above


def _problems_of_defaults(defaults: dict[str, Any]) -> Iterator[str]:
    """Wrong keys and values of ``defaults``, also where no route is there to inherit them."""
    try:
        Route.model_validate({**_LEAST, **defaults}, context=_PARTS)
    except ValidationError as error:
        for detail in first_causes(error):
            # What only a whole route can get right, or complete, is told at the routes.
            if detail["loc"] and detail["type"] != "missing":
                yield line_of(("defaults", *detail["loc"]), detail)
