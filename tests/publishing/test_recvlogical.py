"""pg_recvlogical creates a slot, streams up to an LSN, drops it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.embedded.installation import clients
from penstock.pgoutput.decoder import Decoder
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def recvlogical(lake: LakeNode) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = [
            str(clients().program("pg_recvlogical")),
            *("-h", "127.0.0.1", "-p", str(lake.port), "-U", "lake", "-d", "lake"),
            *arguments,
        ]
        return subprocess.run(
            command,
            env={**os.environ, "PGPASSWORD": PASSWORD},
            capture_output=True,
            timeout=60,
            check=False,
        )

    return run


def test_a_slot_from_its_creation_to_its_end(
    lake: LakeNode,
    recvlogical: Callable[..., subprocess.CompletedProcess[bytes]],
    tmp_path: Path,
) -> None:
    lake.execute(
        "CREATE TABLE recv (id integer PRIMARY KEY, v text)",
        "CREATE PUBLICATION recv FOR TABLE recv",
    )
    made = recvlogical("--slot", "recv", "-P", "pgoutput", "--create-slot")
    assert made.returncode == 0, made.stderr
    again = recvlogical("--slot", "recv", "-P", "pgoutput", "--create-slot")
    assert b'replication slot "recv" already exists' in again.stderr
    lake.execute("INSERT INTO recv VALUES (1, 'one')", "UPDATE recv SET v = 'uno'")
    end = lake.node.serving.sequencer.position().lsn  # type: ignore[union-attr]
    lake.execute("INSERT INTO recv VALUES (2, 'two')")
    output = tmp_path / "out"
    streamed = recvlogical(
        *("--slot", "recv", "--start", "-f", str(output), "--endpos", str(end), "--no-loop"),
        *("-o", "proto_version=1", "-o", "publication_names=recv"),
    )
    assert streamed.returncode == 0, streamed.stderr
    assert kinds(output.read_bytes()) == [
        *("Begin", "RelationMessage", "Insert", "Commit"),
        *("Begin", "Update", "Commit"),
    ]
    dropped = recvlogical("--slot", "recv", "--drop-slot")
    assert dropped.returncode == 0, dropped.stderr
    assert lake.rows("SELECT slot_name FROM pg_replication_slots") == []


def test_a_slot_of_test_decoding(
    lake: LakeNode,
    recvlogical: Callable[..., subprocess.CompletedProcess[bytes]],
    tmp_path: Path,
) -> None:
    lake.execute("CREATE TABLE plugged (id integer PRIMARY KEY, v text)")
    made = recvlogical("--slot", "plugged", "-P", "test_decoding", "--create-slot")
    assert made.returncode == 0, made.stderr
    lake.execute("INSERT INTO plugged SELECT * FROM (VALUES (1, 'one'), (2, 'two'), (3, NULL)) v")
    end = lake.node.serving.sequencer.position().lsn  # type: ignore[union-attr]
    lake.execute("DELETE FROM plugged WHERE id = 2")
    refused = recvlogical("--slot", "plugged", "--start", "-f", "-", "-o", "nothing=1", "--no-loop")
    assert b'option "nothing" = "1" is unknown' in refused.stderr
    output = tmp_path / "out"
    start = ("--slot", "plugged", "--start", "-f", str(output), "--no-loop", "-o", "include-xids=0")
    streamed = recvlogical(*start, "--endpos", str(end))
    assert streamed.returncode == 0, streamed.stderr
    assert output.read_text() == (
        "BEGIN\n"
        "table public.plugged: INSERT: id[integer]:1 v[text]:'one'\n"
        "table public.plugged: INSERT: id[integer]:2 v[text]:'two'\n"
        "table public.plugged: INSERT: id[integer]:3 v[text]:null\n"
        "COMMIT\n"
    )
    end = lake.node.serving.sequencer.position().lsn  # type: ignore[union-attr]
    output.unlink()
    streamed = recvlogical(*start, "--endpos", str(end))  # from where it was confirmed
    assert output.read_text() == ("BEGIN\ntable public.plugged: DELETE: id[integer]:2\nCOMMIT\n")
    assert recvlogical("--slot", "plugged", "--drop-slot").returncode == 0


def kinds(output: bytes) -> list[str]:
    """Names of the messages; pg_recvlogical ends each with a newline."""
    found, decoder, start, at = [], Decoder(1), 0, 0
    while (at := output.find(b"\n", at)) >= 0:
        try:
            message = decoder.decode(output[start:at])
        except Exception:  # a newline inside a message
            at += 1
            continue
        found.append(type(message).__name__)
        start = at = at + 1
    assert start == len(output)
    return found
