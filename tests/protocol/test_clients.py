"""PostgreSQL 18's own programs against the session machine: psql and pg_recvlogical."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.embedded.installation import clients
from penstock.errors import ConfigurationError
from penstock.lsn import Lsn
from penstock.protocol.copy_both import StandbyStatusUpdate
from protocol.tiny_server import Settings, TinyServer, tiny_server


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server(Settings(chunk=5)) as running:
        yield running


@pytest.fixture
def programs() -> Path:
    try:
        return clients().program("psql").parent
    except ConfigurationError as error:
        pytest.skip(error.message)


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "LC_ALL": "C"},
    )


def test_psql(programs: Path, server: TinyServer) -> None:
    script = ["-c", "SELECT 1", "-c", "ECHO said", "-c", "NO", "-c", "COPY OUT text"]
    done = run(programs / "psql", "-X", "-A", "-t", server.conninfo(), *script)
    assert done.stdout == "1|a\tb\n|c\\d\n\n3|\nECHO\n" + "1\ta\\tb\n\\N\tc\\\\d\\n\n3\t\n"
    assert done.stderr == "NOTICE:  said\nERROR:  no\nDETAIL:  d\nHINT:  h\n"


def test_psql_with_a_wrong_password(programs: Path, server: TinyServer) -> None:
    done = run(programs / "psql", "-X", server.conninfo(password="guess"), "-c", "SELECT 1")
    assert done.returncode == 2
    assert 'FATAL:  password authentication failed for user "ada"' in done.stderr


def test_pg_recvlogical(programs: Path) -> None:
    """Streams to its end position, tells how far it is, ends the stream and leaves."""
    with tiny_server(Settings(chunk=5)) as server:
        done = run(
            programs / "pg_recvlogical",
            *("-d", server.conninfo(), "-S", "s", "-P", "pgoutput", "--start", "-f", "-"),
            *("--endpos", str(Lsn(140)), "--no-loop", "-o", "proto_version=4"),
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "B\nR\nC\n"
    (connection,) = server.connections
    updates = [event for event in connection.heard if isinstance(event, StandbyStatusUpdate)]
    assert updates[-1].flush == 140
    assert connection.session.closed
