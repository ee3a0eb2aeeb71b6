"""A socket under TLS, read without waiting."""

from __future__ import annotations

import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.test_server import _OPENSSL
from penstock.backend.client_socket import ClientSocket
from penstock.errors import ConnectionFailure

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")


class Client:
    """TLS in memory, so that its bytes can be sent in any pieces."""

    def __init__(self, sock: socket.socket) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.socket = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing)

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self.outgoing.read())
                self.incoming.write(self.socket.recv(65536))
        self.socket.sendall(self.outgoing.read())

    def sealed(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ClientSocket, Client]]:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = [*_OPENSSL, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as outside,
    ):
        accepted, _ = listener.accept()
        inside, client = ClientSocket(accepted, write_timeout_s=5), Client(outside)
        thread = threading.Thread(target=client.shake_hands)
        thread.start()
        inside.start_tls(context, 20)
        thread.join(20)
        yield inside, client
        inside.close()


def test_half_a_record_is_nothing_yet(pair: tuple[ClientSocket, Client]) -> None:
    inside, client = pair
    sealed = client.sealed(b"x" * 1000)
    client.socket.sendall(sealed[:400])
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert inside.receive(0.0) is None
    assert inside.receive(0.05) is None
    client.socket.sendall(sealed[400:])
    assert inside.receive(20) == b"x" * 1000
    assert inside.receive(0.0) is None


def test_while_a_client_takes_nothing_it_is_heard(pair: tuple[ClientSocket, Client]) -> None:
    inside, client = pair
    data = b"".join(b"%07d\n" % number for number in range(1 << 20))
    heard: list[bytes] = []
    got = bytearray()

    def read() -> None:
        while len(got) < len(data):
            client.incoming.write(client.socket.recv(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                while part := client.tls.read(1 << 16):
                    got.extend(part)

    reader = threading.Thread(target=read)

    def waiting() -> None:
        heard.append(inside.receive(0.0) or b"")
        if len(heard) == 1:
            client.socket.sendall(client.sealed(b"here"))
        if b"here" in heard and not reader.is_alive():
            reader.start()

    inside.send(data, waiting)
    reader.join(20)
    assert bytes(got) == data
    assert b"".join(heard) == b"here"


def test_nothing_follows_what_was_cut_off(pair: tuple[ClientSocket, Client]) -> None:
    inside, _ = pair

    def give_up() -> None:
        raise ConnectionFailure("too long")

    with pytest.raises(ConnectionFailure, match="too long"):
        inside.send(bytes(64 << 20), give_up)
    with pytest.raises(ConnectionFailure, match="connection to client lost"):
        inside.send(b"x")


def test_a_closed_socket_is_a_broken_connection(pair: tuple[ClientSocket, Client]) -> None:
    inside, _ = pair
    inside.close()
    with pytest.raises(ConnectionFailure):
        inside.send(b"x")
    with pytest.raises(ConnectionFailure):
        inside.receive(0.0)


def test_a_client_that_leaves_in_the_handshake_leaves_nothing_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for sent in (b"", b"\x16\x03\x01", b"GET / HTTP/1.0\r\n\r\n") * 10:
            outside = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
            inside = ClientSocket(accepted, write_timeout_s=5)
            del accepted
            outside.sendall(sent)
            outside.close()
            with pytest.raises(ConnectionFailure, match="could not accept SSL connection"):
                inside.start_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), 20)
            inside.close()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
