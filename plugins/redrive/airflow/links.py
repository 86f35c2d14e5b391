"""Links from a task to what it worked on: the review page, under the address that Airflow itself has."""

from typing import Any, Final
from urllib.parse import quote

import attrs
from airflow.sdk import BaseOperatorLink

#: Below Airflow's address; the plugin puts the page there.
PAGE: Final = "/redrive"


@attrs.define
class _PageLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow has no types for mypy
    """A link to the review page; Airflow's worker asks for it where the task ends, whatever became of it."""

    path: str

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address."""
        from airflow.configuration import conf  # noqa: PLC0415  not at every parse

        del operator, ti_key
        return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}{PAGE}{self.path}"


@attrs.define
class RouteLink(_PageLink):
    """To the page of a route."""

    name = "Route"


@attrs.define
class ReviewLink(_PageLink):
    """To what waits for a decision on a route."""

    name = "Review"


def route(name: str) -> RouteLink:
    """Where the route stands."""
    return RouteLink(f"/routes/{quote(name)}")


def review(name: str) -> ReviewLink:
    """The groups of the route that people are asked about."""
    return ReviewLink(f"/groups?route={quote(name)}")


def to(task: Any, *links: BaseOperatorLink) -> Any:
    """``task``, the answer of a decorated function, with these buttons on its page."""
    task.operator.operator_extra_links = links
    return task


@attrs.define
class SparkLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow has no types for mypy
    """To the application in Spark's History Server, once the job has told which one it was."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address; empty where the configuration names no server or no job ran."""
        del ti_key
        return str(getattr(operator, SPARK_PAGE, ""))


#: The attribute of a task under which it notes the page of what it started.
SPARK_PAGE: Final = "redrive_spark_page"
