"""An object store of fixed answers, for what a real one says seldom: refusals, conflicts.

In: a function of method, path and body. Out: the URL of a server on this machine that answers so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

S3_ERROR: Final = '<?xml version="1.0"?><Error><Code>{}</Code><Message>no</Message></Error>'


@dataclass(frozen=True)
class Answer:
    """``body`` is not sent to HEAD."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def error(status: int, code: str) -> Answer:
    """As S3 and Azure word errors."""
    headers = {"Content-Type": "application/xml", "x-ms-error-code": code}
    return Answer(status, S3_ERROR.format(code).encode(), headers)


def found(content: bytes) -> Answer:
    """An object, or that it was put."""
    return Answer(200, content, {"ETag": '"x"', "Last-Modified": "Sun, 01 Nov 2026 15:00:00 GMT"})


@contextlib.contextmanager
def answering(answer: Callable[[str, str, bytes], Answer]) -> Iterator[str]:
    """The server runs inside the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Not to the test's output."""

        def _answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = answer(self.command, self.path.partition("?")[0], sent)
            body = b"" if self.command == "HEAD" else given.body
            self.send_response(given.status)
            for name, value in given.headers.items():
                # Azure's client parses whatever calls itself XML, also where there is nothing
                if body or name != "Content-Type":
                    self.send_header(name, value)
            self.send_header(
                "Content-Length", str(len(given.body if given.status == 200 else body))
            )
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
