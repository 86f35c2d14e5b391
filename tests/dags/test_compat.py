"""What holds on an Airflow that is older than that of the tests, as far as it can be pretended."""

import asyncio
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest
from tests.servers import ROOT

from redrive.errors import BrokerUnavailable, QueueMissing

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_an_airflow_that_is_too_old_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").write_text('__version__ = "3.0.6"')
    done = subprocess.run(
        [sys.executable, "-c", "from redrive.airflow import dags; dags()"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == (
        "redrive.errors.UsageError: Redrive needs Airflow 3.1 or newer, and this is 3.0.6"
    )


def test_what_is_hopeless_is_not_tried_again_also_without_retry_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowFailException  # noqa: PLC0415  imports Airflow

    from redrive.airflow import compat, definitions, failures  # noqa: PLC0415

    assert "retry_policy" in definitions.default_args()
    monkeypatch.setattr(compat, "ExceptionRetryPolicy", None)
    told = definitions.default_args()
    assert "retry_policy" not in told
    assert told["retry_exponential_backoff"] is True, "its schema knows no number"

    def refuse(error: Exception) -> None:
        raise error

    with pytest.raises(AirflowFailException, match="QueueMissing: no queue q"):
        failures.telling(refuse)(QueueMissing("no queue q"))
    with pytest.raises(BrokerUnavailable):
        failures.telling(refuse)(BrokerUnavailable("later"))


def test_with_retry_policies_an_error_stays_what_it_is() -> None:
    from redrive.airflow import failures  # noqa: PLC0415

    def refuse(error: Exception) -> None:
        raise error

    with pytest.raises(QueueMissing):
        failures.telling(refuse)(QueueMissing("no queue q"))


def test_no_kind_of_run_is_allowed_that_this_airflow_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.api.datamodels import _generated  # noqa: PLC0415  imports Airflow

    from redrive.airflow import compat  # noqa: PLC0415

    plain = compat.no_backfill()["allowed_run_types"]
    assert {"scheduled", "manual", "asset_triggered"} <= set(plain)
    assert "backfill" not in plain
    older = Enum("DagRunType", {"A": "scheduled", "B": "backfill"})  # Airflow 3.2 has no operator_triggered
    monkeypatch.setattr(_generated, "DagRunType", older)
    assert compat.no_backfill() == {"allowed_run_types": ["scheduled"]}


@pytest.mark.parametrize(
    ("headers", "cookies", "expected"),
    [
        ({"Authorization": "Bearer told"}, {"_token": "kept"}, "told"),
        ({}, {"_token": "kept"}, "kept"),
        ({"Authorization": "Basic told"}, {}, None),
        ({}, {}, None),
    ],
)
def test_whoever_is_logged_in_is_known_where_airflow_reads_no_cookie(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], cookies: dict[str, str], expected: str | None
) -> None:
    from airflow.api_fastapi.core_api import security  # noqa: PLC0415  imports Airflow
    from starlette.requests import Request  # noqa: PLC0415

    from redrive.airflow import compat  # noqa: PLC0415

    async def get_user(oauth_token: str | None, bearer_credentials: object) -> object:
        """As of Airflow 3.1.0."""
        raise AssertionError("it would ask the header alone")

    async def resolve(token: str | None) -> str | None:
        return token

    monkeypatch.setattr(security, "get_user", get_user)
    monkeypatch.setattr(security, "resolve_user_from_token", resolve)
    told = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    told += [(b"cookie", f"{name}={value}".encode()) for name, value in cookies.items()]
    request = Request({"type": "http", "headers": told})
    assert asyncio.run(compat.user_of(request)) == expected
