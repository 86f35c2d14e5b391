"""The application as Airflow mounts it: pages, what they write, and what is answered when something is wrong."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DBAPIError, IntegrityError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from redrive.errors import LedgerBusy, LedgerError, RedriveError, SchemaOutdated, SettingsError
from redrive.settings import Settings
from redrive.stages.context import utc_now
from redrive_ui import decision_api, group_rulings, pages
from redrive_ui.filters import BadFilter
from redrive_ui.identity import Access, NotLoggedIn
from redrive_ui.protection import ProtectiveHeaders, Refused
from redrive_ui.rendering import Templates
from redrive_ui.request_context import AppState, Configuration

_log = logging.getLogger(__name__)


def create_app(
    access: Access, *, load: Callable[[], Settings] | None = None, clock: Callable[[], datetime] = utc_now
) -> FastAPI:
    """The application, to be mounted anywhere; it opens nothing before the first request.

    ``load`` gives the settings of this moment; by default the configuration file, read again when it has changed.
    """
    app = FastAPI(title="Redrive", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.redrive = AppState(access, load or Configuration().load, clock)
    app.add_middleware(ProtectiveHeaders, broken=_unforeseen)
    app.include_router(pages.router)
    app.include_router(decision_api.router)
    app.include_router(group_rulings.router)
    for kind, handler in _PROBLEMS.items():
        app.add_exception_handler(kind, handler)
    return app


def _answer(request: Request, status: int, why: str, login: str | None = None) -> Response:
    if "/api/" in request.url.path:
        return JSONResponse({"detail": why}, status_code=status)
    templates: Templates = request.app.state.redrive.templates
    return templates.problem(request, status, why, login=login)


def _nobody(request: Request, error: Exception) -> Response:
    back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    login = request.app.state.redrive.access.login_url(back)
    return _answer(request, 401, f"Please log in to Airflow first ({error}).", login=login)


def _refused(request: Request, error: Any) -> Response:
    return _answer(request, error.status, error.why)


def _bad_filter(request: Request, error: Exception) -> Response:
    return _answer(request, 400, str(error))


def _bad_request(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    return _answer(request, 400, f"{first['loc'][-1]}: {first['msg']}")


def _http(request: Request, error: Any) -> Response:
    return _answer(request, error.status_code, str(error.detail))


def _misconfigured(request: Request, error: Exception) -> Response:
    # What is wrong names routes and their settings, and nothing says yet what this person may read.
    _log.error("the review page can't be shown: %s", error)
    return _answer(request, 500, "The configuration can't be used: `redrive doctor` and Airflow's log say why.")


def _broken(request: Request, error: Exception) -> Response:
    if isinstance(error, LedgerBusy):
        return _answer(
            request, 503, "Somebody else is changing the same, and has not ended. Nothing was done: try again."
        )
    if isinstance(error, LedgerError) and not isinstance(error, SchemaOutdated):
        # Where the database is and what it said is for those who run it.
        _log.error("the review page can't ask the ledger: %s", error)
        return _answer(request, 503, "The ledger can't be asked now; Airflow's log says why.")
    return _answer(request, 503 if isinstance(error, LedgerError) else 500, str(error))


def _unforeseen(request: Request, error: Exception) -> Response:
    _log.error("the review page failed at %s", request.url.path, exc_info=error)
    return _answer(request, 500, "This did not work; Airflow's log says why.")


def _database(request: Request, error: Any) -> Response:
    said = str(error.orig).strip().splitlines()[0] if error.orig else ""
    # Our triggers refuse what came too late, and say why in words for people: nothing else does.
    if isinstance(error, IntegrityError) or getattr(error.orig, "sqlstate", None) == "P0001":
        return _answer(request, 409, f"the ledger refused: {said}")
    _log.error("the review page can't ask the ledger: %s", error)
    return _answer(request, 503, "The ledger can't be asked now, or it took too long; Airflow's log says why.")


_PROBLEMS: dict[type[Exception], Callable[[Request, Any], Response]] = {
    NotLoggedIn: _nobody,
    Refused: _refused,
    BadFilter: _bad_filter,
    RequestValidationError: _bad_request,
    HTTPException: _http,
    SettingsError: _misconfigured,
    RedriveError: _broken,
    DBAPIError: _database,
}
