"""Who looks, and what they may see and decide: the one seam between the page and Airflow.

Whoever may see a route's DAG may read the route; whoever may trigger that DAG may decide about its messages.
The page has no users, passwords or roles of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

_MAX_NAME = 200


class NotLoggedIn(Exception):
    """Nobody is logged in, or the login has expired."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is logged in. ``name`` is what the ledger will hold as ``decided_by``."""

    name: str
    user: Any = field(default=None, repr=False, compare=False)  # the auth manager's own object


class Access(Protocol):
    """What the page asks of the world around it."""

    async def person(self, request: Request) -> Person:
        """Who sent this request; raises :class:`NotLoggedIn`."""

    def readable(self, person: Person, routes: Iterable[str]) -> frozenset[str]:
        """Those of ``routes`` that this person may read."""

    def may_decide(self, person: Person, route: str) -> bool:
        """Whether this person may decide about messages of ``route``; asked in addition to :meth:`readable`."""

    def administers(self, person: Person) -> bool:
        """Whether this person may remove what others left on the page for all."""

    def login_url(self, back: str) -> str | None:
        """Where to log in and come back to the path ``back``; None where that is not known."""


def name_of(raw: str) -> str:
    """``raw`` as a name that fits a column and a page: no control characters, not endless."""
    return "".join(c for c in raw if c.isprintable()).strip()[:_MAX_NAME]


class AirflowAccess:
    """Airflow's own login and its auth manager, whichever that is.

    Airflow is imported when the first request comes, so that the application can be built and tested without it.
    """

    async def person(self, request: Request) -> Person:
        from fastapi import HTTPException  # noqa: PLC0415

        from redrive.airflow import compat  # noqa: PLC0415

        try:
            user = await compat.user_of(request)
        except HTTPException as refusal:
            raise NotLoggedIn(str(refusal.detail)) from refusal
        # A name is what people recognise; an auth manager that knows none has an id.
        name = name_of(str(user.get_name() or "")) or name_of(str(user.get_id() or ""))
        if not name:
            raise NotLoggedIn("the login has neither name nor id, so no decision could be signed with it")
        return Person(name, user)

    def readable(self, person: Person, routes: Iterable[str]) -> frozenset[str]:
        by_dag = {f"redrive_{route}": route for route in routes}
        teams = self._teams(list(by_dag))
        allowed: set[str] = set()
        for team in {teams.get(dag) for dag in by_dag}:
            dags = {dag for dag in by_dag if teams.get(dag) == team}
            allowed |= self._manager().filter_authorized_dag_ids(
                # Airflow 3.1 knows no teams, and then there are none.
                **({"team_name": team} if team is not None else {}),
                dag_ids=dags,
                user=person.user,
                method="GET",
            )
        return frozenset(by_dag[dag] for dag in allowed)

    def may_decide(self, person: Person, route: str) -> bool:
        from airflow.api_fastapi.auth.managers.models.resource_details import (  # noqa: PLC0415
            DagAccessEntity,
            DagDetails,
        )

        dag = f"redrive_{route}"
        # Not is_authorized_custom_view: there some auth managers let a reader write.
        return bool(
            self._manager().is_authorized_dag(
                method="POST",
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=dag, team_name=self._teams([dag]).get(dag)),
                user=person.user,
            )
        )

    def administers(self, person: Person) -> bool:
        # Those who may change Airflow's connections: its operators and administrators, in every auth manager.
        return bool(self._manager().is_authorized_connection(method="PUT", user=person.user))

    def login_url(self, back: str) -> str | None:
        return str(self._manager().get_url_login(next_url=back))

    @staticmethod
    def _manager() -> Any:
        from airflow.api_fastapi.app import get_auth_manager  # noqa: PLC0415

        return get_auth_manager()

    @staticmethod
    def _teams(dags: list[str]) -> dict[str, str | None]:
        from airflow.configuration import conf  # noqa: PLC0415

        if not conf.getboolean("core", "multi_team", fallback=False):
            return {}
        from airflow.models.dag import DagModel  # noqa: PLC0415

        found: dict[str, str | None] = DagModel.get_dag_id_to_team_name_mapping(dags)
        return found
