"""Output plugins with callbacks of streaming, and slow ones: the sequence of the chapter "Streaming
of Large Transactions for Logical Decoding", with messages of its block; when the client gets what a
slow plugin writes, and when its slot is free."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import wait_until
from publishing.lake_node import LakeNode
from publishing.recvlogical import recvlogical

_CODE = """
from penstock.decoding import OutputPlugin


class Streams(OutputPlugin):
    def _say(self, ctx, what):
        ctx.prepare_write()
        ctx.out.append(what)
        ctx.write()

    def begin(self, ctx, txn):
        self._say(ctx, "begin")

    def change(self, ctx, txn, relation, change):
        self._say(ctx, "change")

    def commit(self, ctx, txn, commit_lsn):
        self._say(ctx, "commit")

    def message(self, ctx, txn, lsn, transactional, prefix, message):
        self._say(ctx, f"message({prefix})")

    def stream_start(self, ctx, txn):
        self._say(ctx, "stream_start")

    def stream_stop(self, ctx, txn):
        self._say(ctx, "stream_stop")

    def stream_abort(self, ctx, txn, abort_lsn):
        self._say(ctx, "stream_abort")

    def stream_commit(self, ctx, txn, commit_lsn):
        self._say(ctx, "stream_commit")

    def stream_change(self, ctx, txn, relation, change):
        self._say(ctx, "stream_change")

    def stream_message(self, ctx, txn, lsn, transactional, prefix, message):
        self._say(ctx, f"stream_message({prefix})")
"""

_SLOW = """

import time


class Slow(OutputPlugin):
    def startup(self, ctx, options, is_init):
        ctx.warning("this is slow")
        if ctx.options:
            raise ValueError("no options")

    def begin(self, ctx, txn):
        pass

    def change(self, ctx, txn, relation, change):
        time.sleep(1)
        ctx.prepare_write()
        ctx.out.append("change")
        ctx.write()
        ctx.warning("this takes time")

    def commit(self, ctx, txn, commit_lsn):
        pass
"""
_ROWS = 3000
_ACTIVE = "SELECT active FROM pg_replication_slots WHERE slot_name = 'slow'"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeNode]:
    packages = tmp_path / "packages"
    info = packages / "streams-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "streams.py").write_text(_CODE + _SLOW)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: streams\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[penstock.output_plugins]\nstreams = streams:Streams\nslow = streams:Slow\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    plugins = ["streams", "slow"]
    settings = {"output_plugin_libraries": plugins, "logical_decoding_work_mem": "64kB"}
    with LakeNode(tmp_path / "node", None, **settings) as started:
        yield started


def test_the_sequence_of_callbacks(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)",
        "SELECT 1 FROM pg_create_logical_replication_slot('s', 'streams')",
        "INSERT INTO t VALUES (-1, 'small')",
    )
    digits = random.Random(1)
    rows = ", ".join(f"({number}, '{digits.getrandbits(256):064x}')" for number in range(_ROWS))
    with lake.connect() as session:
        for statement in (
            "BEGIN",
            "SELECT pg_logical_emit_message(true, 'first', '')",
            f"INSERT INTO t VALUES {rows}",
            "SELECT pg_logical_emit_message(true, 'last', '')",
            "COMMIT",
        ):
            session.execute(statement)
    lake.execute("INSERT INTO t VALUES (-2, 'small')")
    found = lake.rows("SELECT xid, data FROM pg_logical_slot_get_changes('s', NULL, NULL)")
    small = ["begin", "change", "commit"]
    assert [data for _, data in found[:3]] == small
    assert [data for _, data in found[-3:]] == small
    large = [data for _, data in found[3:-3]]
    assert len({xid for xid, _ in found[3:-3]}) == 1
    inside = r"(stream_message\(\w+\) |stream_change )+"
    blocks = rf"(stream_start {inside}stream_stop ){{2,}}stream_commit "
    assert re.fullmatch(blocks, "".join(f"{data} " for data in large))
    assert large[1] == "stream_message(first)"
    assert large[-3] == "stream_message(last)"
    assert large.count("stream_change") == _ROWS


def test_warnings_of_the_startup(lake: LakeNode) -> None:
    """A server sends them before the answer, and before the error."""
    with psycopg.connect(f"{lake.conninfo()} replication=database", autocommit=True) as session:
        told: list[str | None] = []
        session.add_notice_handler(lambda notice: told.append(notice.message_primary))
        session.execute("CREATE_REPLICATION_SLOT a LOGICAL slow")
        session.execute("SELECT pg_create_logical_replication_slot('b', 'slow')")
        session.execute("SELECT pg_copy_logical_replication_slot('b', 'c', false, 'slow')")
        assert told == ["this is slow"] * 3
        with pytest.raises(psycopg.Error, match="no options"):
            session.execute("START_REPLICATION SLOT a LOGICAL 0/0 (x '1')")
        assert told == ["this is slow"] * 4


def test_a_slow_plugin_is_sent_as_it_writes(lake: LakeNode) -> None:
    """Its client may leave at any time."""
    lake.execute(
        "CREATE TABLE slow (id integer PRIMARY KEY)",
        "SELECT 1 FROM pg_create_logical_replication_slot('slow', 'slow')",
        f"INSERT INTO slow VALUES {', '.join(f'({number})' for number in range(60))}",
    )
    began = time.monotonic()
    with recvlogical(lake, "lake", "--slot", "slow", "--start", "-f", "-") as client:
        assert client.stdout is not None and client.stderr is not None
        assert [client.stdout.readline() for _ in range(2)] == ["change\n"] * 2
        told = [client.stderr.readline() for _ in range(2)]
        assert told == ["WARNING:  this is slow\n", "WARNING:  this takes time\n"]
        assert lake.rows(_ACTIVE) == [(True,)]
    assert time.monotonic() - began < 20
    wait_until(lambda: lake.rows(_ACTIVE) == [(False,)], "the slot", 5)
