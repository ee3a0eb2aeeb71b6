"""Bytes that clients may send: a session survives them or ends, and the server goes on.

First the state machine alone, then a running server, whose threads, sessions and memory are the
same afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from faults.fuzzing import SECONDS, SEED, Campaign
from fix_lake import LakeServer
from penstock.embedded import wait_until
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pg_catalog import CatalogDatabase, reads_catalog_only
from penstock.protocol.answers import Description, Rows
from penstock.protocol.frontend_messages import CopyDone, Query, Sync
from penstock.protocol.scram import NONCE_SIZE, ScramExchange, mock_verifier
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Phase
from penstock.protocol.startup import SslRequest, StartupMessage, read_startup
from penstock.sql.grammar.parsenodes import SelectStmt
from pg_catalog import objects

pytestmark = pytest.mark.faults

SHARE: Final = 0.1
"""Of PENSTOCK_FUZZ_SECONDS, for each of the three."""
KINDS: Final = b"QPBDECSHFdcfXp"
WARM_UP: Final = 600
_numbers = itertools.count()
GROWTH: Final = 32 << 20
"""Bytes by which the process may be larger at the end; DuckDB's and malloc's arenas go up and down
by half of it, however long it runs."""
TEXTS: Final = [
    b"SELECT 1", b"SHOW server_version", b"BEGIN", b"COMMIT", b"SET x = 'y'", b"", b";", b"\xff",
    b"IDENTIFY_SYSTEM", b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1')", b"SELECT $1",
    b"CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput", b"COPY t TO STDOUT", b"'",
    b"DISCARD ALL",
    b"DROP_REPLICATION_SLOT s", b"TIMELINE_HISTORY 1", b"CREATE PUBLICATION p", b"(" * 2000,
]  # fmt: skip


def packed(kind: bytes, payload: bytes, random: Random) -> bytes:
    """A message whose length is right mostly."""
    length = len(payload) + 4
    if random.random() < 0.08:
        length = random.choice(
            (0, 3, 4, length - 1, length + 1, length + 7, 1 << 24, 0x7FFFFFFF, 0xFFFFFFFF)
        )
    return kind + struct.pack("!I", length & 0xFFFFFFFF) + payload


def startup(random: Random) -> bytes:
    match random.randrange(10):
        case 0:
            return packed(b"", struct.pack("!I", 80877103), random)
        case 1:
            return packed(b"", struct.pack("!I", 80877104), random)
        case 2:
            key = random.randbytes(random.choice((0, 4, 32, 300)))
            return packed(b"", struct.pack("!Ii", 80877102, random.randrange(-5, 50)) + key, random)
        case 3:
            return random.randbytes(random.choice((1, 4, 8, 100, 9000)))
    version = random.choice((196608, 196608, 196608, 196610, 131072, 0x00030063, 0x04D20000))
    pairs = [b"user", random.choice((b"repl", b"nobody", b"", b"\xff", b"u" * 100))]
    if random.random() < 0.8:
        pairs[1] = b"repl"
        pairs += [b"database", b"lake"]
    for _ in range(random.choice((0, 0, 1, 3))):
        pairs += random.choice(
            (
                [b"replication", random.choice((b"database", b"true", b"x", b"off"))],
                [b"options", random.choice((b"-c a.b=c", b"--x", b"-c", b"\\", b"-q"))],
                [b"client_encoding", random.choice((b"LATIN1", b"utf8", b"x", b"SQL_ASCII"))],
                [b"_pq_.x", b"1"],
                [b"application_name", "é\x07".encode()],
                [b"", b""],
            )
        )
    body = struct.pack("!I", version) + b"".join(p + b"\0" for p in pairs)
    return packed(b"", body + random.choice((b"\0", b"\0", b"\0", b"", b"x")), random)


def message(random: Random) -> bytes:
    kind = bytes([random.choice(KINDS)]) if random.random() < 0.95 else random.randbytes(1)
    text = random.choice(TEXTS)
    number = struct.pack("!H", random.choice((0, 0, 1, 2, 0xFFFF)))
    size = struct.pack("!i", random.choice((-1, 0, 1, -2, 0x7FFFFFFF)))
    payload = {
        b"Q": text + b"\0",
        b"P": b"s\0" + text + b"\0" + number,
        b"B": b"\0s\0" + number + number + size + number,
        b"D": random.choice((b"S", b"P", b"x")) + b"s\0",
        b"E": b"\0" + struct.pack("!i", random.choice((0, 0, 5, -1))),
        b"C": random.choice((b"S", b"P", b"x")) + b"s\0",
        b"d": random.choice((b"r" + bytes(33), b"r", b"h" + bytes(24), b"z", b"")),
        b"f": b"why\0",
        b"p": random.choice((b"SCRAM-SHA-256\0" + size + b"n,,n=,r=abc", b"secret\0", b"")),
    }.get(kind, b"")
    if random.random() < 0.1:
        at = random.randrange(len(payload) + 1)
        payload = payload[:at] + random.randbytes(random.choice((0, 1, 3))) + payload[at + 1 :]
    return packed(kind, payload, random)


def conversation(random: Random) -> bytes:
    """What one client says, from its first byte to the last that arrives."""
    out = b"".join(startup(random) for _ in range(random.choice((1, 1, 1, 2))))
    out += b"".join(message(random) for _ in range(random.choice((0, 1, 2, 5, 20))))
    if random.random() < 0.2:
        out = out[: random.randrange(len(out) + 1)]
    if random.random() < 0.05:
        out += random.randbytes(random.choice((1, 100, 70_000)))
    return out


def answer(session: ServerSession, event: object, random: Random) -> None:
    """Move on as a walsender might, also to where it should not."""
    match event:
        case SslRequest():
            session.refuse_encryption()
        case StartupMessage():
            session.negotiate(event)
            parameters = read_startup(event)
            session.client_encoding = parameters.client_encoding()
            session.walsender = random.random() < 0.3
            if random.random() < 0.3:
                session.request_sasl(["SCRAM-SHA-256"])
                return
            session.authentication_ok()
            session.ready_for_query()
        case Query():
            kind = random.randrange(4)
            if kind == 0:
                session.copy_both_response()
            elif kind == 1:
                session.copy_in_response(1)
            else:
                session.command_complete("SELECT 0")
                session.ready_for_query()
        case Sync():
            session.ready_for_query()
        case CopyDone() if session.phase is Phase.BUSY:
            session.command_complete("COPY 0")
            session.ready_for_query()
        case _:
            if session.phase is Phase.ENCRYPTION:
                session.refuse_encryption()
            elif session.phase in (Phase.BUSY, Phase.STARTING):
                raise PenstockError("not understood")


def converse(raw: bytes, random: Random) -> None:
    """The state machine takes the bytes in any pieces; it never holds more than its limits."""
    session = ServerSession()
    at = 0
    while at < len(raw) and not session.closed:
        size = random.choice((1, 3, 50, 5000))
        session.feed(raw[at : at + size])
        at += size
        while not session.closed:
            try:
                event = session.next_event()
                if event is None:
                    break
                answer(session, event, random)
            except PenstockError as error:
                assert len(error.sqlstate) == 5
                before = session.phase
                assert session.fail(error) or session.closed, before
    with contextlib.suppress(PenstockError):
        session.end_of_input()
    assert session.closed


def test_the_state_machine_takes_any_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign("state machine")

    def check(seed: str) -> None:
        random = Random(seed)
        converse(conversation(random), random)

    campaign.run(SECONDS * SHARE, lambda random: str(random.random()), check)
    with capsys.disabled():
        print(f"\n{campaign.report()}", end="")
    campaign.verify()


def scram(seed: str) -> None:
    random = Random(seed)
    exchange = ScramExchange("u", mock_verifier("u", b"s"), random.randbytes(NONCE_SIZE))
    first = b"n,,n=,r=rOprNGfwEbeRWgbNEkqO"
    for _ in range(3):
        words = random.choice(
            (first, b"y,,n=x,r=", b"c=biws,r=abc,p=AAAA", b"c=biws", b"p=tls-unique,,n=,r=x",
             b"", b"n,a=b,n=\xff,r=x", b"n,,m=1,n=,r=x", b"c=!,r=x,p=!", b"n,,n=,r=a,r=b", b",,,,")
        )  # fmt: skip
        if random.random() < 0.5:
            at = random.randrange(len(words) + 1)
            words = words[:at] + random.randbytes(random.choice((0, 1, 2))) + words[at + 1 :]
        exchange.respond(words)
        assert not exchange.finished


def test_a_login_takes_any_words(capsys: pytest.CaptureFixture[str]) -> None:
    campaign = Campaign("SCRAM exchange")
    campaign.run(SECONDS * SHARE / 4, lambda random: str(random.random()), scram)
    with capsys.disabled():
        print(f"\n{campaign.report()}", end="")
    campaign.verify()


class Refusing:
    """In place of Spark: refuses whatever comes so far."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: object) -> Any:
        raise FeatureNotSupported("there is no lake here")


class Catalogs:
    """Catalog queries, answered from a made-up snapshot."""

    reads_catalog_only = staticmethod(reads_catalog_only)

    def describe(self, query: SelectStmt, _: object, said: Sequence[int]) -> Description:
        database = CatalogDatabase(objects.snapshot(), objects.session())
        return database.describe(query)

    def query(
        self,
        query: SelectStmt,
        parameters: Sequence[bytes | None],
        _: object,
        said: Sequence[int] = (),
    ) -> Rows:
        with contextlib.closing(CatalogDatabase(objects.snapshot(), objects.session())) as database:
            fields, rows = database.query(query, parameters)
        return Rows(fields, rows)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LakeServer]:
    nobody = Refusing()
    started = LakeServer(tmp_path, lake=nobody, run_command=nobody, catalog_queries=Catalogs())
    yield started
    started.close()


def talk(port: int, raw: bytes, random: Random) -> None:
    """Say it, in pieces, and leave in one way or another."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 20) as sock:
        if random.random() < 0.2:
            linger = struct.pack("ii", 1, 0)  # a reset in place of an end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        half = random.randrange(len(raw) + 1)
        sock.sendall(raw[:half])
        sock.sendall(raw[half:])
        if random.random() < 0.5:
            return
        sock.settimeout(20)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def resident() -> int:
    """Bytes of this process in memory, less what malloc keeps of what was given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


def settled(server: LakeServer, threads: int) -> None:
    """Wait until the sessions and their threads have ended."""
    wait_until(
        lambda: not server.server.sessions and threading.active_count() <= threads,
        "the end of the sessions",
        30,
        state=lambda: [thread.name for thread in threading.enumerate()],
        pause=0.01,
    )


def crowd(server: LakeServer, seconds: float, least: int) -> int:
    """Four bad clients at a time, and a good one after another; how many bad ones there were."""
    end = time.monotonic() + seconds
    done: list[int] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while time.monotonic() < end or len(done) < least:
                random = Random(f"{SEED}/server/{next(_numbers)}")
                talk(server.server.port, conversation(random), random)
                done.append(1)
        except BaseException as error:
            failures.append(error)

    clients = [threading.Thread(target=run) for _ in range(4)]
    for thread in clients:
        thread.start()
    while any(thread.is_alive() for thread in clients):
        good_client(server)
        time.sleep(0.05)
    assert not failures
    return len(done)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures the process's memory")
def test_a_server_outlives_its_clients(
    server: LakeServer, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "penstock")  # other records would be the growth
    threads = threading.active_count()
    crowd(server, SECONDS * SHARE / 3, WARM_UP)
    settled(server, threads)
    before = resident()
    clients = crowd(server, max(SECONDS * SHARE * 2 / 3, 1.0), 1)
    settled(server, threads)
    good_client(server)
    settled(server, threads)
    assert not caplog.records, caplog.text[:5000]
    grown = resident() - before
    with capsys.disabled():
        print(f"\n{'server':<28} {clients:>9} clients, {grown >> 10} KiB grown", end="")
    assert grown < GROWTH


def good_client(server: LakeServer) -> None:
    with server.connect() as connection:
        assert connection.execute("SHOW server_version").fetchall() == [("18.0",)]
        assert connection.execute("SELECT count(*) > 0 FROM pg_class").fetchone() == (True,)
