"""What every process of the local Airflow is told: its settings, and the password and secrets that are made for it.

All of it is under one folder (``var/airflow``), and secrets are readable by their owner only.
"""

import json
import os
import secrets
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from redrive import settings as configuration
from redrive.airflow import DAG_FILE

USER = "admin"
HOST = "127.0.0.1"


def airflow_home(home: Path) -> Path:
    """Where the local Airflow keeps everything, below the project's ``home``."""
    return home / "var" / "airflow"


def environment(
    home: Path, port: int, *, base: Mapping[str, str] | None = None, viewers: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of every local Airflow process; makes the folder, the password and the secrets.

    ``home`` is where ``var/`` is (``$REDRIVE_HOME``), ``port`` the api-server's. ``base`` is what to start
    from (default: this process's environment), so connections such as ``AIRFLOW_CONN_SQS_DEMO`` pass through;
    settings of another Airflow (``AIRFLOW__…``) do not, or they would point this one at that one's database.
    ``viewers`` are users beside :data:`USER` who may look and change nothing.
    Repeated calls give the same passwords and secrets. Port 0 is for runs without a server
    (:func:`redrive.dev.unscheduled_run.dags_test`).
    """
    state = airflow_home(home)
    _private_folder(state)
    given = os.environ if base is None else base
    kept = {key: value for key, value in given.items() if not key.startswith(("AIRFLOW__", "AIRFLOW_CONFIG"))}
    # Airflow's parts talk to each other over loopback; a proxy of the user's must not be asked for that.
    direct = ",".join(filter(None, [kept.get("no_proxy") or kept.get("NO_PROXY"), f"{HOST},localhost"]))
    scripts = sysconfig.get_path("scripts")
    # The code is where it is installed, also where ``$REDRIVE_HOME`` puts the state elsewhere.
    code = configuration.checkout()
    dags, plugins = (code or state) / "dags", (code or state) / "plugins"
    if code is None:  # and the package's entry point brings the page
        dags.mkdir(exist_ok=True)
        (dags / "redrive_dags.py").write_text(DAG_FILE)
    url = f"http://{HOST}:{port}"
    passwords = state / "simple_auth_manager_passwords.json"
    known = json.loads(passwords.read_text(encoding="utf-8")) if passwords.exists() else {}
    missing = {name: secrets.token_urlsafe(12) for name in (USER, *viewers) if name not in known}
    if missing:
        _write_private(passwords, json.dumps(known | missing))
    return kept | {
        "PATH": os.pathsep.join([scripts, kept.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(plugins) if code else "", kept.get("PYTHONPATH", "")])),
        "NO_PROXY": direct,
        "no_proxy": direct,
        "REDRIVE_HOME": str(home),
        "AIRFLOW_HOME": str(state),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(max(2, os.cpu_count() or 2)),
        "AIRFLOW__CORE__FERNET_KEY": _secret(state / "fernet_key", _fernet_key),
        "AIRFLOW__CORE__AUTH_MANAGER": (
            "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            [f"{USER}:admin", *(f"{name}:viewer" for name in viewers)]
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": _secret(state / "api_secret", secrets.token_hex),
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(state / "jwt_secret", secrets.token_hex),
        # SQLite's writers wait for each other, on a busy machine longer than the driver's 5 s; then a request to
        # the API would be answered with 500.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{state / 'airflow.db'}?timeout=60",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(state / "logs"),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",  # would listen on every interface
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    }


def password(env: Mapping[str, str], user: str = USER) -> str:
    """The generated password of ``user``."""
    file = Path(env["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
    return str(json.loads(file.read_text(encoding="utf-8"))[user])


def _private_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, never readable by others in between."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)
        file.write(text)


def _secret(path: Path, make: Callable[[], str]) -> str:
    if not path.exists():
        _write_private(path, make())
    return path.read_text(encoding="utf-8")


def _fernet_key() -> str:
    return urlsafe_b64encode(secrets.token_bytes(32)).decode()
