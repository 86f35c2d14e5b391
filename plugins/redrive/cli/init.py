"""What ``redrive init`` writes: a configuration with a first route, and the DAG file; or says, of one more route."""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from redrive import settings
from redrive.airflow import DAG_FILE
from redrive.brokers import registry
from redrive.connections.lookup import variable_of
from redrive.errors import ExtraMissing, SettingsError, UsageError
from redrive.settings import places

CONFIG_NAME = Path("config", "redrive.yaml")
DAG_NAME = Path("dags", "redrive_dags.py")

_CONFIG = """\
# Every key that may stand here, with its default: docs/configuration.md. `redrive doctor` checks this file against your
# broker. Secrets stay out: connections are named by their Airflow id, values may be ${{VAR}} or ${{VAR:-default}}.

database: ${{REDRIVE_DATABASE_URL:-sqlite:///var/redrive.db}}   # the ledger; postgresql://… in production
staging: ${{REDRIVE_STAGING_URI:-var/staging}}                  # payloads as Parquet; or s3://bucket/prefix, gs://…
spark:                                                        # runner: local, submit, connect, emr_serverless, …
  runner: ${{REDRIVE_SPARK_RUNNER:-local}}
  remote: ${{REDRIVE_SPARK_REMOTE:-sc://localhost:15002}}       # of connect

defaults:                                                     # anything that a route may say
  schedule: "*/10 * * * *"

routes:
"""
_ROUTE = """\
  {route}:                                                    # the DAG will be redrive_{route}
    broker: {broker}
    connection: {connection}                                  # {variable}, a secrets backend, or Airflow's UI
    sources:
{sources}
{destination}
    # evidence: ["attribute:error", "body:$.error.message"]   # where your consumer leaves its failure text
    # processed_check: …                                      # asks your records what was done already
"""


class Answers(NamedTuple):
    """What a first route is made of."""

    route: str
    broker: str
    connection: str
    sources: Sequence[str]
    destination: str | None  # None: back to where each message came from


def brokers() -> tuple[str, ...]:
    """What may be answered for the broker."""
    return tuple(name for name in registry.names() if registry.kind(name).needs_connection)


def route_of(queue: str) -> str:
    """A name for the route of a dead-letter queue: ``shop_orders`` for ``shop.orders-dlq``."""
    words = [word for word in re.findall(r"[a-z0-9]+", queue.lower()) if word not in _DEAD]
    return "_".join(words[-3:])[:40].strip("_") or "first"


#: What says of a queue only that it is one of dead letters.
_DEAD = frozenset({"dlq", "dlx", "dead", "letter", "letters", "deadletter", "queue", "deadletterqueue", "fifo"})


def write(folder: Path, answers: Answers) -> list[Path]:
    """Write both files below ``folder`` and return their paths.

    Raises :class:`~redrive.errors.UsageError` where one is there already, and for answers that make no valid
    configuration; nothing is written then.
    """
    text = config(answers)
    _refuse_impossible(text, folder)
    files = {folder / CONFIG_NAME: text, folder / DAG_NAME: DAG_FILE}
    if taken := [str(path) for path in files if path.exists() or path.is_symlink()]:
        raise UsageError(f"{' and '.join(taken)}: there already, and not overwritten; choose another folder")
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as stream:  # never over what came in between
                stream.write(content)
        except OSError as error:
            raise UsageError(f"{path}: can't be written ({error.strerror})") from error
    return list(files)


def to_add(folder: Path, answers: Answers) -> str | None:
    """Where there is a configuration already, how the route gets into it; None where there is none.

    Raises :class:`~redrive.errors.UsageError` for answers that make no valid route.
    """
    path = folder / CONFIG_NAME
    if not (path.exists() or path.is_symlink()):
        return None
    _refuse_impossible(config(answers), folder)
    name = answers.route
    steps = (
        f"redrive doctor {name}\n  redrive run {name} --limit 20\n  airflow dags unpause redrive_{name}   # in Airflow"
    )
    return (
        f"{path} is there already, and stays as it is. Add this under `routes:`\n\n{section(answers)}\nThen:\n  {steps}"
    )


def _refuse_impossible(text: str, folder: Path) -> None:
    try:
        settings.parse(text, env={}, root=folder)
    except SettingsError as error:
        raise UsageError(f"these answers make no configuration:\n{error}") from error


def config(answers: Answers) -> str:
    """The text of the configuration."""
    return _CONFIG.format() + section(answers)


def section(answers: Answers) -> str:
    """The text of the route, as it belongs under ``routes:``."""
    destination = (
        f"    destination: {{queue: {_scalar(answers.destination)}}}"
        if answers.destination
        else "    # destination: {queue: …}                              # left out: back to where it came from"
    )
    return _ROUTE.format(
        route=answers.route,
        broker=answers.broker,
        connection=_scalar(answers.connection),
        variable=variable_of(answers.connection),
        sources="\n".join(f"      - {{queue: {_scalar(queue)}}}" for queue in answers.sources),
        destination=destination,
    )


def next_steps(folder: Path, answers: Answers, env: Mapping[str, str] = os.environ) -> list[str]:
    """What to do now in a shell with this environment, a line each."""
    steps = [
        *_unset(folder, env),
        f"export REDRIVE_HOME={shlex.quote(str(folder))}",
        f"export {variable_of(answers.connection)}='…'   # docs/brokers/{answers.broker}.md says what belongs there",
    ]
    try:
        registry.adapter(answers.broker)
    except ExtraMissing as missing:
        steps.insert(0, str(missing).rpartition(": ")[2])
    return [
        *steps,
        "redrive db upgrade",
        f"redrive doctor {answers.route}",
        f"redrive run {answers.route} --limit 100",
    ]


def _unset(folder: Path, env: Mapping[str, str]) -> list[str]:
    """What is set, maybe for a demo, and would lead commands away from what was written."""
    steps = []
    if settings.config_path({**env, "REDRIVE_HOME": str(folder)}) != folder / CONFIG_NAME:
        steps.append("unset REDRIVE_CONFIG   # it is set here, and names another file than the one just written")
    for key, variable in places.PLACES.items():
        if env.get(variable):
            steps.append(
                f"unset {variable}   # it is set here; keep it only if that is to be the {key} of this one too"
            )
    return steps


def _scalar(text: str) -> str:
    """``text`` as YAML reads it back, in quotes where it has to be."""
    plain = re.fullmatch(r"[A-Za-z][\w./-]*", text) and yaml.safe_load(text) == text
    if plain:
        return text
    quoted = json.dumps(text.replace("${", "$${"), ensure_ascii=False)
    # YAML has line breaks that JSON hasn't.
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)
