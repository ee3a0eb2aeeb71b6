"""What a client learns by failing to log in, what the log keeps of it, and how long it may take."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.test_server import PASSWORD, Node, connected
from fix_lake import LakeServer
from penstock.embedded import wait_until
from penstock.errors import SqlSyntaxError
from penstock.protocol.framing import frame
from penstock.protocol.scram import ITERATIONS, SALT_SIZE

_NONCE = b"rOprNGfwEbeRWgbNEkqO"


@pytest.fixture
def node() -> Iterator[Node]:
    started = Node()
    started.start()
    yield started
    assert started.server is not None
    started.server.stop()


class Raw:
    """A client that speaks byte by byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)

    def start(self, user: str, **parameters: str) -> Raw:
        pairs = {"user": user, "database": "lake", **parameters}
        body = struct.pack("!I", 196608)
        body += b"".join(f"{name}\0{value}\0".encode() for name, value in pairs.items()) + b"\0"
        self.socket.sendall(struct.pack("!I", len(body) + 4) + body)
        return self

    def message(self) -> tuple[bytes, bytes]:
        head = self._exactly(5)
        return head[:1], self._exactly(int.from_bytes(head[1:], "big") - 4)

    def _exactly(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            more = self.socket.recv(size - len(out))
            if not more:
                raise EOFError(out)
            out += more
        return out

    def first(self) -> None:
        words = b"n,,n=,r=" + _NONCE
        payload = b"SCRAM-SHA-256\0" + struct.pack("!I", len(words)) + words
        self.socket.sendall(frame(b"p", payload))

    def challenge(self, user: str) -> dict[str, str]:
        """Server-first-message of a SCRAM exchange."""
        self.start(user)
        kind, payload = self.message()
        assert (kind, payload) == (b"R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0")
        self.first()
        kind, payload = self.message()
        assert (kind, payload[:4]) == (b"R", struct.pack("!I", 11))
        return dict(part.split("=", 1) for part in payload[4:].decode().split(","))

    def refused(self, proof: bytes) -> dict[str, str]:
        """Fields of the error that a proof brings."""
        binding = b"c=biws,r=" + self.nonce + b",p=" + base64.b64encode(proof)
        self.socket.sendall(frame(b"p", binding))
        kind, payload = self.message()
        assert kind == b"E"
        fields = payload.decode().rstrip("\0").split("\0")
        return {field[:1]: field[1:] for field in fields}

    nonce = b""


def test_an_unknown_role_looks_like_a_known_one(node: Node) -> None:
    seen: dict[str, dict[str, str]] = {}
    for user in ("reader", "nobody", "blank", "late"):
        shapes = []
        for guessed in (False, True):
            raw = Raw(node.port)
            with raw.socket:
                found = raw.challenge(user)
                raw.nonce = found["r"].encode()
                assert raw.nonce.startswith(_NONCE) and len(raw.nonce) > len(_NONCE) + 20
                assert found["i"] == str(ITERATIONS)
                assert len(base64.b64decode(found["s"])) == SALT_SIZE
                shapes.append((found["s"], len(found["r"]), list(found)))
                if not guessed:
                    continue
                began = time.monotonic()
                error = raw.refused(hashlib.sha256(b"guess").digest())
                assert time.monotonic() - began >= 0.5, "a pause, whoever it is"
                assert error.pop("M") == f'password authentication failed for user "{user}"'
                seen[user] = error
        assert shapes[0] == shapes[1], "the salt of a role does not change, nor a made-up one"
    assert all(error == seen["reader"] for error in seen.values())
    assert seen["reader"]["C"] == "28P01" and seen["reader"]["S"] == "FATAL"


@pytest.mark.parametrize("said", ["nothing", "half a packet", "startup", "first", "SSLRequest"])
def test_no_session_is_held_beyond_the_timeout(said: str) -> None:
    node = Node()
    node.start(authentication_timeout_s=0.4)
    assert node.server is not None
    try:
        raw = Raw(node.port)
        with raw.socket:
            if said == "half a packet":
                raw.socket.sendall(b"\0\0\0\x20\0\x03")
            elif said == "startup":
                raw.start("reader")
            elif said == "first":
                raw.challenge("reader")
            elif said == "SSLRequest":
                raw.socket.sendall(struct.pack("!II", 8, 80877103))
            raw.socket.settimeout(20)
            everything = b""
            while more := raw.socket.recv(4096):
                everything += more
            assert b"canceling authentication due to timeout" in everything
            wait_until(
                lambda: node.server is not None and node.server.sessions == 0,
                "the end of the sessions",
                20,
            )
    finally:
        node.server.stop()


def test_words_that_drip_do_not_prolong_the_timeout() -> None:
    node = Node()
    node.start(authentication_timeout_s=0.5)
    assert node.server is not None
    try:
        raw = Raw(node.port)
        began = time.monotonic()
        with raw.socket:
            raw.socket.sendall(b"\0\0\x20\0")
            with contextlib.suppress(OSError):
                while node.server.sessions or time.monotonic() - began < 0.1:
                    raw.socket.sendall(b"x")
                    time.sleep(0.02)
                    assert time.monotonic() - began < 15
            wait_until(
                lambda: node.server is not None and node.server.sessions == 0,
                "the end of the sessions",
                20,
            )
    finally:
        node.server.stop()


def test_a_tls_handshake_that_stalls_ends_with_the_timeout() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    node = Node()
    node.start(tls=context, authentication_timeout_s=0.3)
    assert node.server is not None
    try:
        raw = Raw(node.port)
        with raw.socket:
            raw.socket.sendall(struct.pack("!II", 8, 80877103))
            assert raw.socket.recv(1) == b"S"
            wait_until(
                lambda: node.server is not None and node.server.sessions == 0,
                "the end of the sessions",
                20,
            )
    finally:
        node.server.stop()


def secrets(node: Node) -> list[str]:
    verifier = node.roles["reader"].verifier or ""
    parts = re.split(r"[$:]", verifier)
    return [PASSWORD, "gu3ssed", verifier, *parts[3:]]


def test_no_record_of_the_log_holds_a_secret(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    node.refused(password="gu3ssed")
    node.refused("nobody", password="gu3ssed")
    with connected(node) as connection, pytest.raises(psycopg.Error):
        connection.execute("BROKEN 'gu3ssed'")
    wait_until(
        lambda: node.server is not None and node.server.sessions == 0, "the end of the sessions", 20
    )
    assert "password authentication failed" in caplog.text
    for secret in secrets(node)[:1] + secrets(node)[2:]:
        assert secret not in caplog.text
    for runner in node.runners:
        shown = repr(runner.context)
        assert not any(secret in shown for secret in secrets(node))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROLE r LOGIN PASSWORD s3kret",
        "CREATE ROLE r LOGIN PASSWORD 'x' 's3kret'",
        "ALTER ROLE r PASSWORD E's3kret",
        "CREATE USER r WITH PASWORD 's3kret'",
        "CREATE SUBSCRIPTION s CONNECTION 'host=h' 's3kret' PUBLICATION p",
        "SELECT 'postgresql://u:s3kret@h/d' FROM FROM 's3kret'",
    ],
)
@pytest.mark.parametrize("extended", [False, True])
def test_a_mistake_in_a_statement_with_a_password_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str, extended: bool
) -> None:
    caplog.set_level("DEBUG")
    server = LakeServer(tmp_path, run_command=_refused, lake=None)
    try:
        options: dict[str, Any] = {"prepare": True} if extended else {}
        with server.connect("false") as connection:
            cursor = psycopg.Cursor(connection) if extended else connection.cursor()
            with pytest.raises(psycopg.Error):
                cursor.execute(statement, **options)
        wait_until(lambda: server.server.sessions == 0, "the end of the sessions")
    finally:
        server.close()
    assert caplog.records
    assert "s3kret" not in caplog.text


def _refused(*_: object) -> Any:
    raise SqlSyntaxError("syntax error")
