"""What an installed package has to hold to: it reads nothing above itself, and tells Airflow what it brings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import ROOT

from redrive.errors import PermissionRefused

SOURCES = sorted(ROOT.glob("plugins/redrive*/**/*.py"))


def told_by(code: str, folder: Path, **environment: str) -> str:
    """The last line that ``code`` prints in a fresh interpreter with an Airflow of its own below ``folder``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"AIRFLOW_HOME": str(folder), "PYTHONPATH": str(ROOT / "plugins")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def only_installed(folder: Path) -> str:
    """Python that hides what is installed of redrive elsewhere than in ``folder``: the tests' own installation."""
    return f"""
import importlib.metadata, importlib_metadata  # Airflow asks the one or the other
def alone(known, every):
    known.distributions = lambda **which: (
        one for one in every(**which)
        if one.metadata['Name'] != 'redrive' or str(one.locate_file('')).startswith({str(folder)!r})
    )
for known in (importlib.metadata, importlib_metadata):
    alone(known, known.distributions)
"""


def test_no_module_climbs_out_of_its_package() -> None:
    climbs = re.compile(r"__file__\).*(parents\[|\.parent\.parent)")
    assert [path.relative_to(ROOT) for path in SOURCES if climbs.search(path.read_text())] == []


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False])
def test_the_page_is_registered_once(tmp_path: Path, installed: bool) -> None:
    """Airflow takes a second plugin of the same name for an error, and shows it."""
    found = tmp_path / "redrive-0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: redrive\nVersion: 0\n")
    (found / "entry_points.txt").write_text(
        "[airflow.plugins]\nredrive = redrive_ui.plugin:RedrivePlugin\n" if installed else ""
    )
    ask = only_installed(tmp_path) + (
        "from airflow import plugins_manager as found; plugins, errors = found._get_plugins();"
        "print([p.source.__class__.__name__ for p in plugins if p.name == 'redrive'], errors)"
    )
    told = told_by(
        ask,
        tmp_path,
        AIRFLOW__CORE__PLUGINS_FOLDER=str(ROOT / "plugins"),
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT / 'plugins'}",
    )
    kind = "EntryPointSource" if installed else "PluginsDirectorySource"
    assert told == f"['{kind}'] {{}}"


@pytest.mark.airflow
@pytest.mark.slow
def test_airflow_takes_what_the_package_says_of_itself(tmp_path: Path) -> None:
    """The description as a provider fits its schema, and each connection type has its form."""
    ask = (
        "import json, jsonschema; from importlib.resources import files; from redrive.airflow import provider;"
        "from importlib import import_module;"
        "info = provider.get_provider_info();"
        "jsonschema.validate(info, json.loads((files('airflow') / 'provider_info.schema.json').read_text()));"
        "names = [one['hook-class-name'].rpartition('.') for one in info['connection-types']];"
        "hooks = [getattr(import_module(module), name) for module, _, name in names];"
        "print([(hook.conn_type, hook.hook_name, hook.get_ui_field_behaviour()['placeholders']['schema'])"
        " for hook in hooks])"
    )
    expected = "[('pulsar', 'Pulsar', 'public/default'), ('amqp', 'RabbitMQ', '/')]"
    assert told_by(ask, tmp_path) == expected


@pytest.mark.airflow
@pytest.mark.slow
def test_a_connection_is_tested_by_asking_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.airflow import hooks  # noqa: PLC0415  imports Airflow
    from redrive.brokers.memory import ManualClock, MemoryBroker, MemoryWorld  # noqa: PLC0415

    world = MemoryWorld(clock=ManualClock())
    monkeypatch.setattr(hooks.registry, "open_broker", lambda _kind, _connection: MemoryBroker(world))
    well, words = hooks.rabbitmq("rabbit").test_connection()
    assert well, words

    def refuse(_kind: str, _connection: str) -> None:
        raise PermissionRefused("connection rabbit: login refused")

    monkeypatch.setattr(hooks.registry, "open_broker", refuse)
    assert hooks.rabbitmq("rabbit").test_connection() == (False, "connection rabbit: login refused")
    with pytest.raises(AttributeError):
        _ = hooks.amazon_sqs
