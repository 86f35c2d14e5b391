"""Ask the consumer's own records whether messages were processed already.

The route's query is run with the keys bound as parameters, in batches, through an Airflow connection. A check that
fails or takes too long raises :class:`~redrive.errors.CheckFailed`; callers then hold the messages.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from redrive import connections
from redrive.errors import CheckFailed, RedriveError
from redrive.settings import ProcessedCheck

BATCH = 500


class Checker:
    """Runs one route's ``processed_check``. Close it when done; it holds a database connection."""

    def __init__(self, check: ProcessedCheck) -> None:
        self._check = check
        self._query = sa.text(check.query).bindparams(sa.bindparam("keys", expanding=True))
        self._engine: sa.Engine | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="processed-check")

    def processed(self, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` that were processed."""
        wanted = list(dict.fromkeys(keys))
        found: set[str] = set()
        for start in range(0, len(wanted), BATCH):
            found |= self._ask(wanted[start : start + BATCH])
        return found

    def close(self) -> None:
        """Give the database connection back."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        if self._engine is not None:
            self._engine.dispose()

    def _ask(self, keys: Sequence[str]) -> set[str]:
        where = f"processed_check through connection {self._check.connection}"
        try:
            # A thread, because no option limits the time of a query on every database.
            return self._worker.submit(self._run, keys).result(timeout=self._check.timeout.total_seconds())
        except TimeoutError as error:
            raise CheckFailed(f"{where}: no answer within {self._check.timeout}") from error
        except (sa.exc.SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
            raise CheckFailed(f"{where}: {reason}") from error
        except RedriveError as error:
            raise CheckFailed(f"{where}: {error}") from error

    def _run(self, keys: Sequence[str]) -> set[str]:
        if self._engine is None:
            url = connections.sqlalchemy_url(connections.get(self._check.connection))
            arguments = {"check_same_thread": False} if url.get_backend_name() == "sqlite" else {}
            self._engine = sa.create_engine(url, connect_args=arguments, pool_pre_ping=True)
        with self._engine.connect() as connection:
            return {str(row[0]) for row in connection.execute(self._query, {"keys": list(keys)})}
