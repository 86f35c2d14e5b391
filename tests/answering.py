"""An HTTP server on loopback that gives the answers it was told, one after the other, and keeps what it was asked."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import NamedTuple


class Answer(NamedTuple):
    """``line`` is what follows the status; empty for the standard's words."""

    status: int
    body: str = ""
    line: str = ""
    location: str = ""  # of a redirect


@contextmanager
def answering(answers: Sequence[Answer]) -> Iterator[tuple[str, list[str]]]:
    """The server's URL, and what it was asked so far: method, path and who asks (the Authorization header)."""
    left, asked = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path} {self.headers['Authorization']}")
            answer = left.pop(0)
            self.send_response(answer.status, answer.line or None)
            if answer.location:
                self.send_header("Location", answer.location)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body.encode())

        do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
