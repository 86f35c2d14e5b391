"""Templates and files of the page, and what every page has."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from redrive.classification.causes import Cause
from redrive.policy import gates
from redrive_ui import charts, filters, formatting

if TYPE_CHECKING:
    from redrive_ui.request_context import RequestContext

PREFIX = "/redrive"
_HERE = Path(__file__).parent
FILE_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


class Templates:
    """Templates and files, read once."""

    def __init__(self) -> None:
        self.files = {
            path.name: path.read_bytes() for path in (_HERE / "static").iterdir() if path.suffix in FILE_TYPES
        }
        self._env = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("visible", "brief", "gist", "number", "share", "duration", "moment", "iso", "words"):
            self._env.filters[name] = getattr(formatting, name)
        self._env.globals["causes"] = [cause.value for cause in Cause]
        self._env.globals["statuses"] = list(filters.STATUSES)
        self._env.globals["limited_stages"] = gates.LIMITED
        self._env.globals["sparkline"] = charts.sparkline

    def render(self, name: str, at: "RequestContext", **context: Any) -> Response:
        """The template with what every page has: where links lead, who looks, what time it is."""
        root = at.root
        airflow = root.removesuffix(PREFIX)

        def dag_run(where: tuple[str, str]) -> str:
            return f"{airflow}/dags/{quote(where[0], safe='')}/runs/{quote(where[1], safe='')}"

        return HTMLResponse(
            self._env.get_template(name).render(
                url=lambda path, **query: f"{root}{path}" + (f"?{urlencode(query)}" if query else ""),
                asset=lambda file: f"{root}/static/{file}?v={_hash(self.files[file])}",
                dag_run_url=dag_run,
                dag_url=lambda dag: f"{airflow}/dags/{quote(dag, safe='')}",
                person=at.person,
                now=at.now,
                ago=lambda value: formatting.ago(value, at.now),
                readable=sorted(at.readable),
                settings_of=at.settings.routes.get,
                mask=at.mask,
                opening=at.opening,
                here=at.request.url.path.removeprefix(root),
                **context,
            )
        )

    def problem(self, request: Request, status: int, why: str, login: str | None = None) -> Response:
        """A page that says what is wrong, without anything that needs a login or the ledger."""
        root = request.scope.get("root_path", "")
        text = self._env.get_template("problem.html").render(
            status=status,
            why=why,
            login=login,
            root=root,
            asset=lambda file: f"{root}/static/{file}?v={_hash(self.files[file])}",
        )
        return HTMLResponse(text, status_code=status)


@lru_cache(maxsize=16)
def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
