"""The servers of ``redrive demo --broker …``, as it starts them: a program of the tests, in a process of its own."""

import os
import signal
import socket
from pathlib import Path

import pytest

from redrive.dev.demo import play, workspace
from redrive.dev.demo.workspace import Workspace
from redrive.errors import UsageError

pytestmark = pytest.mark.server


def answers(served: play.Served) -> bool:
    host, _, port = served.connection["extra"]["endpoint"].partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("keep", [False, True], ids=["ends-with-the-demo", "kept"])
def test_a_server_says_what_it_is_and_ends_with_the_demo_unless_it_is_kept(tmp_path: Path, keep: bool) -> None:
    place = Workspace(tmp_path)
    place.claim(fresh=True)
    with play.serving("pubsub", workspace.root(), place, keep=keep) as served:
        assert "stand-in" in served.about
        assert answers(served)
    assert answers(served) is keep
    if keep:
        assert served.pid is not None
        os.kill(served.pid, signal.SIGTERM)  # what the demo tells its user to do
        os.waitpid(served.pid, 0)
        assert not answers(served)


def test_a_server_that_is_not_installed_is_told_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = Workspace(tmp_path)
    place.claim(fresh=True)
    with (
        pytest.raises(UsageError, match=r"Apache Pulsar is not in .*make brokers"),
        play.serving("pulsar", workspace.root(), place, keep=False),
    ):
        pass


def test_a_broker_without_a_story_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="there are sqs, rabbitmq, pubsub, service_bus, pulsar"):
        play.find("kafka")
