"""The configuration file: one class per mapping, one attribute per key.

``description`` and default of every field become docs/configuration.md, so they are written for its readers.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, Self, get_args

from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from redrive.errors import SettingsError
from redrive.settings.route import Route
from redrive.settings.spark import SparkSettings
from redrive.settings.values import Address, ConnectionId, Part, is_port, problem, readable_address
from redrive.settings.words import nearest, quoted

#: What comes behind ``postgresql://``, as SQLAlchemy takes it apart.
_POSTGRES = re.compile(r"(?:[^:/]*(?::[^@]*)?@)?(?:\[[^/?]+\]|[^/:?]+)?(?::(?P<port>[^/?]*))?(?:[/?].*)?", re.DOTALL)


class Broken(NamedTuple):
    """A route of the file that is wrong, and so is left out."""

    problem: str  # a line for each wrong key
    remains: Route  # what can be read of it, to show it by; never to run it


#: No route is called so: the DAGs ``redrive_review`` and ``redrive_audit`` serve all routes.
TAKEN: Final = ("review", "audit")


def _not_taken(name: str) -> str:
    if name in TAKEN:
        raise ValueError(f"a route can't be called so: the DAG redrive_{name} serves all routes")
    return name


RouteName = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}$"), AfterValidator(_not_taken)]


class Settings(Part):
    """The whole file."""

    database: str = Field(
        default="sqlite:///var/redrive.db",
        repr=False,  # holds a password
        description="The ledger: `sqlite:///path` or `postgresql://user:password@host/name`. "
        "`$REDRIVE_DATABASE_URL` overrides it; passwords belong there.",
    )
    staging: str = Field(
        default="var/staging",
        description="Payloads, as Parquet: a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or "
        "`abfs://container@account.dfs.core.windows.net/prefix`. `$REDRIVE_STAGING_URI` overrides it.",
    )
    staging_connection: ConnectionId | None = Field(
        default=None,
        description="For an object store: Airflow connection id of AWS, Google Cloud or Azure. Default: the "
        "credentials of each machine's environment.",
    )
    page: Address | None = Field(
        default=None,
        pattern=r"^https?://[^\s?#]{1,500}$",
        description="Airflow's address for browsers, `https://airflow.example.org`, with which notifications link to "
        "the review page.",
    )
    spark: SparkSettings = Field(default=SparkSettings(), description="Where the job that finds causes runs.")
    defaults: dict[str, Any] = Field(
        default={}, description="Anything that a route may say. A route's own keys override it."
    )
    routes: dict[RouteName, Route] = Field(
        default={},
        description="The routes by name: at most 40 lower-case letters, digits and underscores; not `review`, not "
        "`audit`.",
    )

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _broken: dict[str, Broken] = PrivateAttr(default_factory=dict)

    @field_validator("page")
    @classmethod
    def _page_is_a_beginning(cls, address: str | None) -> str | None:
        return address.rstrip("/") if address else None

    @field_validator("database")
    @classmethod
    def _database_is_one_that_we_know(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        dialect, _, driver = scheme.partition("+")
        if not separator or dialect not in ("sqlite", "postgresql", "postgres") or driver not in ("", "psycopg"):
            raise ValueError("has to be sqlite:///path or postgresql://user:password@host/name")
        if dialect == "sqlite" and rest.split("?")[0] in ("", "/", "/:memory:"):
            raise ValueError("has to name a file: a ledger in memory forgets what was sent")
        place = _POSTGRES.fullmatch(rest)
        if dialect != "sqlite" and (place is None or not is_port(place["port"])):  # no more of it: it may be a password
            raise ValueError("its port is no number from 1 to 65535")
        return url if dialect == "sqlite" else f"postgresql+psycopg://{rest}"

    @field_validator("staging")
    @classmethod
    def _staging_is_where_arrow_can_write(cls, place: str) -> str:
        scheme, separator, rest = place.partition("://")
        if separator and (scheme not in ("s3", "gs", "abfs", "abfss", "file") or not rest.strip("/")):
            shown = f"{scheme}://…" if "@" in place or "?" in place else place  # a password may stand there
            raise ValueError(
                f"{quoted(shown)}: write a folder, s3://bucket/prefix, gs://bucket/prefix or "
                "abfs://container@account.dfs.core.windows.net/prefix"
            )
        if separator:
            readable_address(place)
        if not place.strip():
            raise ValueError("names no place")
        return place if place == "/" else place.rstrip("/")

    @model_validator(mode="after")
    def _clouds_can_reach_staging(self) -> Self:
        scheme = {"emr_serverless": "s3://", "dataproc_serverless": "gs://"}.get(self.spark.runner)
        if scheme and not self.staging.startswith(scheme):
            raise problem("staging", f"has to be {scheme}…, where runner {self.spark.runner} can read it")
        return self

    def read_from(self, given: dict[str, Any], broken: dict[str, Broken]) -> Self:
        """Note what the file says, and which of its routes are left out; these settings."""
        self._given, self._broken = given, broken
        return self

    @property
    def given(self) -> Mapping[str, Any]:
        """What the file says, without the environment's values and without what is inherited; {} without a file."""
        return self._given

    @property
    def broken(self) -> Mapping[str, Broken]:
        """The routes that are left out, because something in their own section is wrong."""
        return self._broken

    def route(self, name: str) -> Route:
        """The route of that name; the error says what is wrong with it, or lists those there are."""
        try:
            return self.routes[name]
        except KeyError:
            if name in self.broken:
                raise SettingsError(self.broken[name].problem) from None
            known = ", ".join(sorted(self.routes)) or "none"
            hint = nearest(name, self.routes)
            raise SettingsError(f"routes.{name}: there is no such route{hint}; there are: {known}") from None


def known_keys(key: tuple[str | int, ...]) -> list[str]:
    """The keys that the mapping at ``key`` may have, as they are written in the file."""
    if key[:1] == ("defaults",):
        key = ("routes", "any", *key[1:])
    kind: Any = Settings
    for step in key:
        models = list(parts_of(kind))
        if models:
            kind = next((f.annotation for n, f in models[0].model_fields.items() if (f.alias or n) == step), None)
        else:
            kind = get_args(kind)[-1] if get_args(kind) and get_args(kind)[-1] is not ... else get_args(kind)[0]
    found = next(parts_of(kind), None)
    return [field.alias or name for name, field in found.model_fields.items()] if found else []


def parts_of(kind: Any) -> Iterator[type[Part]]:
    if isinstance(kind, type) and issubclass(kind, Part):
        yield kind
    elif getattr(kind, "__origin__", None) not in (dict, tuple):
        for part in get_args(kind):
            yield from parts_of(part)
