"""docker-compose.yml without Docker: the same services from the same settings, each in namespaces of its own.

Each has its own network, with the names and ports of the file, and its own mounts, with the paths of the image; nothing
of it can be reached from outside. What Docker would fetch comes from this machine: PostgreSQL and ElasticMQ are the
tests' own, and the image is what ``test_image`` put together. Limits of memory are not applied.
"""

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from tests.elasticmq_server import ElasticMq
from tests.servers import GUARD, ROOT, Postgres, ServerMissing

TEXT = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PATIENCE = 900.0  # seconds; a quarter of it where nothing else runs

#: What Docker's `init: true` puts before a command.
INIT = """trap 'kill -TERM $child' TERM; "$@" & child=$!
while :; do wait $child; code=$?; kill -0 $child 2>&- || exit $code; done"""


class Image(NamedTuple):
    """What Dockerfile copies from its first stage."""

    venv: Path
    java: Path

    @staticmethod
    def environment() -> dict[str, str]:
        """What Dockerfile says with ENV, and what Docker adds."""
        told = re.search(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
        assert told
        return {"HOME": "/opt/airflow"} | dict(word.split("=", 1) for word in shlex.split(told[1].replace("\\\n", "")))


class Service:
    """A service of the file: how to start it, and the process that it is."""

    def __init__(self, name: str, told: Mapping[str, Any], number: int) -> None:
        self.name = name
        self.told = told
        self.address = f"10.77.0.{number}"
        self.hostname = told.get("hostname") or secrets.token_hex(6)
        self.ours = str(told["image"]).startswith("redrive:")
        self.process: subprocess.Popen[bytes] | None = None

    def inside(self) -> psutil.Process:
        """Its first process, beside which others are started."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children()[0]

    def ended(self) -> int | None:
        return None if self.process is None else self.process.poll()


class Composition:
    """The services of docker-compose.yml: ``with Composition(folder, image) as it``."""

    def __init__(self, folder: Path, image: Image) -> None:
        if os.geteuid() or shutil.which("ip") is None:
            raise ServerMissing("namespaces need root and `ip` (Debian: iproute2)")
        self.folder, self.image = folder, image
        self.secrets = self._env()
        told = yaml.safe_load(re.sub(r"(?<!\$)\$\{([A-Z0-9_]+)(?::[?-][^}]*)?\}", self._value, TEXT).replace("$$", "$"))
        self.services = {
            name: Service(name, one, number) for number, (name, one) in enumerate(told["services"].items(), 2)
        }
        self._prefix = f"redrive{os.getpid()}-"
        hosts = [f"{one.address} {one.hostname} {one.name}" for one in self.services.values()]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        passwd = Path("/etc/passwd").read_text() + "airflow:x:50000:0::/opt/airflow:/bin/sh\n"
        (folder / "passwd").write_text(passwd)
        for volume in told["volumes"]:
            self._made(folder / volume)

    def _env(self) -> dict[str, str]:
        """What `make env` writes."""
        (self.folder / "docker").mkdir()
        shutil.copy(ROOT / "docker" / "make_env", self.folder / "docker")
        shutil.copy(ROOT / ".env.example", self.folder)
        subprocess.run([self.folder / "docker" / "make_env"], check=True, capture_output=True)
        return dict(re.findall(r"^([A-Z_]+)=(.+)$", (self.folder / ".env").read_text(), re.MULTILINE))

    def _value(self, found: re.Match[str]) -> str:
        return self.secrets[found[1]]

    @staticmethod
    def _made(path: Path) -> Path:
        """A folder as the image makes it, for a volume to take on."""
        path.mkdir(exist_ok=True)
        os.chown(path, 50000, 0)
        path.chmod(0o2775)
        return path

    def __enter__(self) -> "Composition":
        try:
            self._network()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _network(self) -> None:
        """A network for each service, and one between them."""
        between = ("-n", self._prefix + "switch")
        self._ip("netns", "add", self._prefix + "switch")
        self._ip(*between, "link", "add", "bridge0", "type", "bridge")
        self._ip(*between, "link", "set", "bridge0", "up")
        for number, one in enumerate(self.services.values()):
            space = self._prefix + one.name
            self._ip("netns", "add", space)
            ends = ("type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip(*between, "link", "add", f"to{number}", *ends)
            self._ip(*between, "link", "set", f"to{number}", "master", "bridge0", "up")
            self._ip("-n", space, "addr", "add", f"{one.address}/24", "dev", "eth0")
            self._ip("-n", space, "link", "set", "eth0", "up")
            self._ip("-n", space, "link", "set", "lo", "up")

    def __exit__(self, *_: object) -> None:
        for one in self.services.values():
            if one.process is not None and one.process.poll() is None:
                os.killpg(one.process.pid, 9)
                one.process.wait()
                GUARD.forget(one.process.pid)
        for name in (*self.services, "switch"):
            subprocess.run(["ip", "netns", "del", self._prefix + name], check=False, capture_output=True)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    # --- what the file says, done ---------------------------------------------------------------------------------

    def up(self, *names: str) -> None:
        """Start these, each as soon as what it depends on is as the file wants it, and wait until all are healthy."""
        wanted = {"service_healthy": self.healthy, "service_completed_successfully": self.completed}
        waiting = [self.services[name] for name in names]

        def all_started() -> bool:
            for one in list(waiting):
                needed = one.told.get("depends_on", {})
                if all(wanted[how["condition"]](self.services[name]) for name, how in needed.items()):
                    self.start(one)
                    waiting.remove(one)
            return not waiting

        self.until(all_started, "what services wait for is there")
        for name in names:
            one = self.services[name]
            ready = self.healthy if "healthcheck" in one.told else self.completed
            self.until(lambda: ready(one), f"{name} is up")  # noqa: B023

    def until(self, held: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not held():
            for one in self.services.values():
                assert not one.ended(), f"{one.name} failed: {self.log(one.name)}"
            assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}; see {self.folder}"
            time.sleep(1)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4_000:]

    def healthy(self, one: Service) -> bool:
        """What its own check of health says now."""
        if one.process is None:
            return False
        kind, *words = one.told["healthcheck"]["test"]
        return self.done(one.name, *(words if kind == "CMD" else ("/bin/sh", "-c", *words))).returncode == 0

    def completed(self, one: Service) -> bool:
        assert not one.ended(), f"{one.name} failed: {self.log(one.name)}"
        return one.ended() == 0

    def done(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command inside of a service, as `docker compose exec`."""
        one = self.services[name]
        try:
            within = ["nsenter", "--target", str(one.inside().pid), "--mount", "--net", "--uts", "--pid", "--"]
        except (psutil.NoSuchProcess, IndexError):
            return subprocess.CompletedProcess(words, 1, "", "not there yet")
        return subprocess.run(
            [*within, *self._as(one), *words], capture_output=True, text=True, check=False, errors="replace"
        )

    def stop(self, name: str) -> bool:
        """Ask it to end, as `docker compose stop`; whether it did within its time."""
        one = self.services[name]
        grace = re.fullmatch(r"(\d+)(s|m)", one.told.get("stop_grace_period", "10s"))
        assert grace
        assert one.process
        one.inside().terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(int(grace[1]) * (60 if grace[2] == "m" else 1))
        return one.process.poll() is not None

    def start(self, one: Service) -> None:
        spaces = ["nsenter", f"--net=/run/netns/{self._prefix}{one.name}", "--"]
        spaces += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = self.folder / f"{one.name}.sh"
        script.write_text("\n".join(["set -e", f"hostname {one.hostname}", *self._mounts(one), self._command(one)]))
        with (self.folder / f"{one.name}.log").open("ab") as log:
            one.process = subprocess.Popen(
                [*spaces, "bash", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        GUARD.watch(one.process.pid)

    def _as(self, one: Service) -> list[str]:
        """Who it is, and what it is told by its environment."""
        told = {name: str(value) for name, value in one.told.get("environment", {}).items()}
        told |= {"HOSTNAME": one.hostname}
        if not one.ours:
            return ["env", *(f"{name}={value}" for name, value in told.items())]
        user, _, group = one.told["user"].partition(":")
        told = self.image.environment() | told
        drop = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
        return [*drop, "env", "-i", *(f"{name}={value}" for name, value in told.items())]

    def _mounts(self, one: Service) -> Iterator[str]:
        yield f"mount --bind {self.folder}/hosts /etc/hosts"
        if not one.ours:
            return
        yield f"mount --bind {self.folder}/passwd /etc/passwd"
        yield "mount -t tmpfs -o mode=755 none /opt"
        yield "install -d -o 50000 -g 0 -m 2775 /opt/redrive /opt/redrive/var /opt/redrive/state /opt/airflow/logs"
        yield "chown 50000:0 /opt/airflow"
        given = [(str(self.image.venv), "/opt/venv"), (str(self.image.java), "/opt/java")]
        given += [(str(ROOT / name), f"/opt/redrive/{name}") for name in ("dags", "sql")]
        for volume in one.told.get("volumes", []):
            source, target, *_ = volume.split(":")
            given.append((str(ROOT / source if source.startswith(".") else self.folder / source), target))
        for source, target in given:
            yield f"mkdir -p {target} && mount --bind {source} {target}"
        # The base image's Python is this machine's, wherever it is: also in a home that only its owner enters.
        base = (self.image.venv / "bin" / "python").resolve().parents[1]
        hidden = next((path for path in reversed(base.parents) if not path.stat().st_mode & 0o001), None)
        if hidden:
            yield f"mount --bind {base} /mnt && mount -t tmpfs -o mode=755 none {hidden}"
            yield f"mkdir -p {base} && mount --move /mnt {base}"
        yield f"mount --bind {self._made(self.folder / f'tmp-{one.name}')} /tmp"
        yield "cd /opt/redrive"

    def _command(self, one: Service) -> str:
        if one.name == "postgres":
            return self._postgres(one)
        if one.name == "sqs":
            java, *options = ElasticMq(self.folder).command()
            kept = [word for word in options if not word.startswith("-Dconfig")]
            return shlex.join(["exec", java, f"-Dconfig.file={ROOT}/docker/elasticmq.conf", *kept])
        assert one.ours, f"no stand-in for {one.told['image']}"
        command = one.told["command"]
        entry = one.told.get("entrypoint")
        if entry is None:
            told = re.search(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
            assert told
            entry = json.loads(told[1])
        words: Sequence[str] = [*entry, *([command] if isinstance(command, str) else command)]
        if one.told.get("init"):
            words = ["/bin/sh", "-c", INIT, "init", *words]
        return shlex.join(["exec", *self._as(one), *words])

    def _postgres(self, one: Service) -> str:
        """What the entry point of PostgreSQL's image does: with an empty volume, the databases and their users."""
        data, run = (self._made(self.folder / name) for name in ("postgres-data", "postgres-run"))
        data.chmod(0o700)
        for path in (data, run):
            shutil.chown(path, "postgres")
        binaries = Path(Postgres._binary("initdb")).resolve().parent
        (script,) = (ROOT / told.split(":")[0] for told in one.told["volumes"] if "docker-entrypoint-initdb.d" in told)
        # Where `postgres` may enter, unlike a folder of the tests.
        return f"""
export PATH={binaries}:$PATH
as_postgres="setpriv --reuid=postgres --regid=postgres --clear-groups"
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/data /mnt/run
mount --bind {data} /mnt/data
mount --bind {run} /mnt/run
cd /mnt/run
install -o postgres -m 600 /dev/stdin password <<< {one.told["environment"]["POSTGRES_PASSWORD"]}
$as_postgres initdb -D /mnt/data -U postgres -E UTF8 --auth-local=trust --auth-host=scram-sha-256 --pwfile=password
echo 'host all all all scram-sha-256' >> /mnt/data/pg_hba.conf
$as_postgres pg_ctl -D /mnt/data -w -o "-c listen_addresses='' -k /mnt/run" start
{shlex.join(self._as(one))} PGHOST=/mnt/run POSTGRES_USER=postgres {script}
$as_postgres pg_ctl -D /mnt/data -w -m fast stop
exec $as_postgres postgres -D /mnt/data -h '*' -p 5432 -k /mnt/run
"""
