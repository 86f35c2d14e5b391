"""Starts the Spark job: with which arguments, code and properties, and where.

Without Airflow, :func:`classify` runs the job to its end: in a process of its own (``local``), through
``spark-submit`` (``submit``) or over Spark Connect (``connect``). The DAGs start the same job, with the same arguments,
by Airflow's operators (:mod:`redrive.airflow.spark_operators`). PySpark is imported only where a job runs.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from redrive import settings as configuration
from redrive.connections import storage
from redrive.errors import ClassificationFailed, ExtraMissing, RedriveError, SettingsError, StagingError
from redrive.extras import needing
from redrive.settings import Settings, SparkSettings
from redrive.spark import session_conf

if TYPE_CHECKING:
    from redrive.connections.lookup import Connection
    from redrive.staging.filesystems import Access

_log = logging.getLogger(__name__)

_LAST_LINES = 20
_KEPT_LOGS = 100
_RETRIES = 4  # of a call to Spark Connect, with growing waits: about five seconds
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # one content, one archive: times would change its hash


#: The code is where it is installed, also where ``$REDRIVE_HOME`` puts the state elsewhere.
_LIBRARY = Path(str(files("redrive"))).resolve()
_APPLICATION = _LIBRARY / "spark" / "application.py"


class Code(NamedTuple):
    """Where a cluster finds the job: the script, and a zip of the library that it imports."""

    application: str
    py_files: str


def application() -> Path:
    """The job's script."""
    return _APPLICATION


def arguments(settings: Settings, manifest_uri: str) -> list[str]:
    """What the script is called with."""
    connection = settings.staging_connection
    return ["--manifest", manifest_uri, *(["--connection", connection] if connection else [])]


def properties(spark: SparkSettings) -> dict[str, str]:
    """Spark properties of a submitted job; the configuration's ``spark.conf`` wins.

    A session on this machine is ours; on a cluster everything is as the cluster says.
    """
    ours = {**session_conf.SESSION, **session_conf.LOCAL} if spark.runner == "local" else {}
    return ours | spark.conf


def properties_here(spark: SparkSettings) -> dict[str, str]:
    """:func:`properties`, and what suits the JVM and the Python that this machine starts for a runner ``local``."""
    here = session_conf.here(spark.conf) if spark.runner == "local" else {}
    return here | properties(spark)


def read_manifest(uri: str, access: "Access | None" = None) -> dict[str, Any]:
    """What :func:`redrive.stages.classify.prepare` wrote; raises :class:`StagingError` when it can't be read."""
    from redrive.staging import filesystems  # noqa: PLC0415 - Arrow, which an idle run doesn't need

    try:
        manifest: dict[str, Any] = filesystems.read_json(uri, access)
    except (OSError, ValueError) as error:
        raise StagingError(f"{uri}: can't be read: {error}") from error
    return manifest


def request_name(route: str, manifest_uri: str) -> str:
    """What the job over this manifest is called where a cloud tells requests apart: of small letters, digits and
    hyphens, and short enough for three more and a hyphen. The id of a DAG run has colons, and may be any length."""
    digest = hashlib.sha256(manifest_uri.encode()).hexdigest()[:16]
    return f"redrive-{route.replace('_', '-')[:32]}-{digest}"


def history_page(settings: Settings, manifest_uri: str) -> str | None:
    """The job's page in Spark's History Server; None where none is configured, or before the job began."""
    history = settings.spark.history
    if history is None:
        return None
    from redrive.staging import file_schemas, filesystems  # noqa: PLC0415

    try:
        access = storage.access_of(settings)
        output = str(read_manifest(manifest_uri, access)["output"]).rstrip("/")
        application = filesystems.read_json(f"{output}/{file_schemas.APPLICATION_FILE}", access)["application"]
    except (RedriveError, OSError, ValueError, KeyError):
        return None
    return f"{history.rstrip('/')}/history/{quote(application, safe='')}/" if application else None


# --- the code, as one zip whose name tells its content ------------------------------------------------------


def package() -> Path:
    """The zip of ``redrive``, built into ``var/spark`` unless it is there already.

    Its name carries the hash of its content, so a job never runs with code of another version, and two
    tasks that build it at the same time write the same file.
    """
    files = sorted(_sources())
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    target = configuration.home() / "var" / "spark" / f"redrive-{digest.hexdigest()[:16]}.zip"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=target.parent, suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as out:
            for name, path in files:
                out.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
        Path(unfinished).chmod(0o644)  # mkstemp's 0600 would hide it from a job of another user
        Path(unfinished).replace(target)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return target


def publish(settings: Settings) -> Code:
    """Copy the job's code to ``spark.batch_bucket``, where the cloud runners read it; returns the addresses.

    The names carry a hash of the content, so a running job never has its code changed under it and what is
    there already isn't sent again.
    """
    bucket = settings.spark.batch_bucket
    if bucket is None:
        raise SettingsError(f"spark.batch_bucket: is required with runner {settings.spark.runner}")
    script, archive = application(), package()
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:16]
    place = f"{bucket.rstrip('/')}/code"
    access = storage.access_of(settings)
    return Code(
        _upload(script, f"{place}/redrive-job-{digest}.py", access), _upload(archive, f"{place}/{archive.name}", access)
    )


def _sources() -> Iterator[tuple[str, Path]]:
    """(name in the archive, file) of our library."""
    for path in _LIBRARY.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(_LIBRARY.parent).as_posix(), path


def _upload(source: Path, uri: str, access: "Access | None") -> str:
    from pyarrow import ArrowException, fs  # noqa: PLC0415

    from redrive.staging import filesystems  # noqa: PLC0415

    try:
        target, path = filesystems.locate(uri, access)
        if target.get_file_info(path).type == fs.FileType.NotFound:
            with target.open_output_stream(path) as stream:
                stream.write(source.read_bytes())
    except (OSError, ArrowException) as error:
        raise StagingError(f"can't write the job's code to {uri}: {error}") from error
    return uri


# --- running it without Airflow's operators -----------------------------------------------------------------


def classify(settings: Settings, manifest_uri: str) -> None:
    """Run the job over one manifest and wait for its end.

    Raises :class:`ClassificationFailed` with the log's path and its last lines when the job fails or takes
    longer than ``spark.timeout``, and :class:`SettingsError` for the cloud runners: only Airflow starts those.
    """
    match settings.spark.runner:
        case "local" | "submit":
            _run(submit_command(settings, manifest_uri), settings)
        case "connect":
            classify_over_connect(settings, manifest_uri)
        case runner:
            raise SettingsError(
                f"spark.runner: {runner} is started by Airflow only; run the DAG instead, "
                "or use local, submit or connect for the command line"
            )


def submit_command(settings: Settings, manifest_uri: str) -> list[str]:
    """The ``spark-submit`` call, on this machine or to a cluster: the master is said, never assumed."""
    master, deploy_mode = settings.spark.master, None
    if settings.spark.runner == "submit" and settings.spark.connection is not None:
        from redrive.connections import lookup  # noqa: PLC0415

        connection = lookup.get(settings.spark.connection)
        master, deploy_mode = master_of(connection), connection.extra.get("deploy-mode")
    command = [str(spark_submit())]
    command += ["--master", master, "--name", session_conf.APPLICATION_NAME, "--py-files", str(package())]
    if deploy_mode:
        command += ["--deploy-mode", str(deploy_mode)]
    for key, value in properties_here(settings.spark).items():
        command += ["--conf", f"{key}={value}"]
    return [*command, str(application()), *arguments(settings, manifest_uri)]


def spark_submit() -> Path:
    """Spark's program: the one that was installed beside this Python, else the one on the PATH.

    Raises :class:`~redrive.errors.ExtraMissing` where there is none.
    """
    beside = Path(sysconfig.get_path("scripts")) / "spark-submit"
    found = beside if beside.exists() else shutil.which("spark-submit")
    if not found:
        raise ExtraMissing(
            "spark.runner: local and submit need spark-submit, which is neither installed with this Python nor on the"
            " PATH: pip install 'redrive[spark]', or choose connect"
        )
    return Path(found)


def master_of(connection: "Connection") -> str:
    """The master's URL that a Spark connection means, by the rules of Airflow's provider."""
    if not connection.host:
        # The provider would build "yarn://" or "spark://" of this and fail where nobody looks for the reason.
        if connection.conn_type in ("yarn", "local"):
            return connection.conn_type
        raise SettingsError(f"connection {connection.conn_id}: its host has to name Spark's master")
    whole = connection.conn_type == "spark" and ("://" in connection.host or connection.port is None)
    master = connection.host if whole else f"{connection.conn_type}://{connection.host}"
    return f"{master}:{connection.port}" if connection.port else master


def classify_over_connect(settings: Settings, manifest_uri: str) -> None:
    """Run the job in this process against a Spark Connect server, which does the work.

    Raises :class:`ClassificationFailed`, with the server's address but never its token, when the server isn't there
    (after a few seconds), refuses the token, fails, or takes longer than ``spark.timeout``.
    """
    remote = settings.spark.remote
    if remote is None:
        raise SettingsError("spark.remote: is required with runner connect")
    run = _job_function()
    access = storage.access_of(settings)
    manifest = read_manifest(manifest_uri, access)
    with _remote_session(remote, settings.spark.timeout) as session:
        session.addArtifacts(str(package()), pyfile=True)  # the server's Python runs our code
        run(manifest, session, access)


@contextmanager
def _remote_session(remote: str, timeout: timedelta) -> Iterator[Any]:
    """A new session on the server, stopped after ``timeout``; its errors become :class:`ClassificationFailed`."""
    with needing("connect", "spark.runner: connect"):
        from pyspark.sql import SparkSession  # noqa: PLC0415
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    place = f"Spark Connect at {remote.partition(';')[0]} (spark.remote)"  # what follows may be a token
    late = threading.Event()
    try:
        # create(), because getOrCreate() would give a session of whatever server this process talked to before.
        session = SparkSession.builder.remote(remote).create()
    except Exception as error:
        raise ClassificationFailed(f"{place}: {_reason(error)}") from error

    def stop() -> None:
        late.set()
        with suppress(Exception):  # the server is gone: then the query ends with an error of its own
            session.interruptAll()

    alarm = threading.Timer(timeout.total_seconds(), stop)
    alarm.daemon = True
    alarm.start()
    try:
        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error says it
        # PySpark would ask a server that isn't there for ten minutes; Airflow tries the task again anyway.
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        yield session
    except Exception as error:
        session.client.set_retry_policies([DefaultPolicy(max_retries=0)])  # the farewell below isn't worth a wait
        if late.is_set():
            raise ClassificationFailed(f"{place}: stopped after spark.timeout ({timeout})") from error
        raise ClassificationFailed(f"{place}: {_reason(error)}") from error
    finally:
        alarm.cancel()
        session.stop()


def _reason(error: BaseException) -> str:
    """The first line that says something: of gRPC's own error, where that is behind it."""
    seen: BaseException | None = error
    while seen is not None:
        code, details = getattr(seen, "code", None), getattr(seen, "details", None)
        if callable(code) and callable(details):
            return _first_line(f"{getattr(code(), 'name', code())}: {details()}")
        seen = seen.__cause__ or seen.__context__
    return _first_line(str(error)) or type(error).__name__


def _job_function() -> Callable[[Mapping[str, Any], Any, Any], object]:
    """``run(manifest, spark, access)`` of the job, which needs PySpark."""
    with needing("connect", "spark.runner: connect"):
        from redrive.spark.job import run  # noqa: PLC0415

    return run


def java_missing() -> str | None:
    """Why Spark can't start here for want of Java; None where a Java is found."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return None
    if home:
        return f"JAVA_HOME is {home}, where there is no bin/java"
    return None if shutil.which("java") else "Spark needs Java 17 or newer; there is no java on the PATH"


def _run(command: list[str], settings: Settings) -> None:
    spark = settings.spark
    if trouble := java_missing():
        raise ClassificationFailed(trouble)
    log = _new_log()
    # The same Python here and in the job; a cluster's executors have their own.
    ours = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if spark.runner == "local":
        ours |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    began = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603  our own script, with our own Python or Spark
            command,
            env=os.environ | ours | storage.for_job(settings),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(spark.timeout.total_seconds())
        except subprocess.TimeoutExpired:
            raise ClassificationFailed(
                f"the Spark job was stopped after spark.timeout ({spark.timeout}); log: {log}\n{tail(log)}"
            ) from None
        finally:
            _stop(process)
    _log.info("the Spark job ended with %d after %.1f s; log: %s", code, time.monotonic() - began, log)
    if code:
        raise ClassificationFailed(f"the Spark job ended with {code}; log: {log}\n{tail(log)}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the job if it still runs."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _new_log() -> Path:
    folder = configuration.home() / "var" / "spark" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("classify-*.log"))[:-_KEPT_LOGS]:
        old.unlink(missing_ok=True)
    stamp = f"{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=f"classify-{stamp}-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def tail(log: Path) -> str:
    """The last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")
