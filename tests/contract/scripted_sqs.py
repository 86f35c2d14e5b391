"""A server that speaks SQS's JSON protocol and says what a test tells it to say.

For what an SQS-compatible server can't be made to do: throttle, fail entries, lose an answer, drop a
connection, refuse permission. It keeps no messages; it records what it was asked.
"""

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Refuse:
    """Answer with an error of AWS's kind."""

    code: str
    status: int = 400
    message: str = "said the script"


@dataclass(frozen=True)
class Proxy:
    """Answer as something in front of SQS does: no error of AWS's kind. SQS may have taken the request."""

    status: int
    text: str = "upstream connect error or disconnect/reset before headers"


@dataclass(frozen=True)
class Hang:
    """Read the request and say nothing until the client has gone."""


@dataclass(frozen=True)
class Drop:
    """Read the request and close the connection."""


Answer = dict[str, Any] | Refuse | Proxy | Hang | Drop | Callable[[dict[str, Any]], dict[str, Any]]


def all_sent(request: dict[str, Any]) -> dict[str, Any]:
    """Every message of a send or delete request went well."""
    return {
        "Successful": [
            {"Id": e["Id"], "MessageId": f"m-{e['Id']}", "MD5OfMessageBody": "0" * 32} for e in request["Entries"]
        ],
        "Failed": [],
    }


class ScriptedSqs:
    """``with ScriptedSqs() as sqs``: ``sqs.then(operation, answer, ...)`` are the next answers of an operation.

    After those ``sqs.always[operation]`` counts. ``sqs.asked`` is what was asked: (operation, request).
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.next: dict[str, deque[Answer]] = defaultdict(deque)
        self.always: dict[str, Answer] = {
            "GetQueueUrl": lambda request: {"QueueUrl": f"{self.url}/000000000000/{request['QueueName']}"},
            "SendMessageBatch": all_sent,
            "DeleteMessageBatch": all_sent,
            "ChangeMessageVisibilityBatch": all_sent,
            "ReceiveMessage": {},
            "GetQueueAttributes": {"Attributes": {}},
        }
        self._lock = threading.Lock()
        self._stop = threading.Event()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = script._answer(operation, request)
                if isinstance(answer, Hang):
                    script._stop.wait(30)
                if isinstance(answer, Hang | Drop):
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, body = 200, answer
                if isinstance(answer, Refuse):
                    status = answer.status
                    body = {"__type": f"com.amazonaws.sqs#{answer.code}", "message": answer.message}
                data = json.dumps(body).encode() if not isinstance(answer, Proxy) else answer.text.encode()
                self.send_response(answer.status if isinstance(answer, Proxy) else status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Tests read the record instead."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def then(self, operation: str, *answers: Answer) -> Self:
        """The next answers of ``operation``, in order."""
        self.next[operation].extend(answers)
        return self

    def requests(self, operation: str) -> list[dict[str, Any]]:
        """What was asked of ``operation``, in order."""
        return [request for name, request in self.asked if name == operation]

    def _answer(self, operation: str, request: dict[str, Any]) -> Any:
        with self._lock:
            self.asked.append((operation, request))
            answers = self.next[operation]
            answer = answers.popleft() if answers else self.always.get(operation, Refuse("InvalidAction"))
        return answer(request) if callable(answer) else answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
