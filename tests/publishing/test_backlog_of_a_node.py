"""What waits in a slot of a node, fetched as a subscription fetches it when it is far behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from penstock.embedded import wait_until
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver import backlog as backlog_module
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.stream import ReplicationStream, open_backlog
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("wal", [100, 1000, 1 << 30])
def test_it_brings_what_a_stream_brings(
    wal: int, lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", wal)
    monkeypatch.setattr(backlog_module, "SMALLEST_WAL", wal)
    monkeypatch.setattr(backlog_module, "_PAGES", 1)
    name, slot = f"behind_{wal}", f"behind_slot_{wal}"
    lake.execute(
        f"CREATE TABLE {name} (id integer PRIMARY KEY, v text)",
        f"CREATE PUBLICATION {name} FOR TABLE {name}",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        f"SELECT pg_create_logical_replication_slot('{slot}_rest', 'pgoutput')",
        *(f"INSERT INTO {name} SELECT i, 'v' FROM generate_series({n}0, {n}9) i" for n in range(8)),
        f"UPDATE {name} SET v = 'w' WHERE id % 3 = 0",
        f"DELETE FROM {name} WHERE id % 5 = 0",
    )
    options = PgoutputOptions(proto_version=1, publication_names=(name,))
    connect = partial(Connection.connect, ConnInfo.parse(lake.conninfo()), "penstock")
    session = partial(connect, replication=False)

    def streamed(slot: str, start: Lsn) -> list[bytes]:
        stream = ReplicationStream(connect())
        stream.start(slot, start, options.text())
        frames: list[bytes] = []
        while stream.received_lsn < end:
            frames += stream.receive(0.05)
        stream.close()
        return [frame[XLOGDATA_HEADER:] for frame in frames]

    backlog = open_backlog(connect(), slot, Lsn(0), options, threshold=0, session=session)
    assert backlog is not None
    end = backlog.latest_end_lsn
    found: list[bytes] = []
    while not backlog.finished:
        found += backlog.receive(0.05).messages()
    backlog.close()
    # A node's slot stays at the commit before a window's end, so small windows end it early: the
    # rest is for the stream.
    whole, rest = streamed(slot, Lsn(0)), streamed(f"{slot}_rest", backlog.received_lsn)
    changes = [m for m in found + rest if m[:1] != b"R"]  # each window says the relations again
    assert changes == [m for m in whole if m[:1] != b"R"]
    assert sum(m[:1] in (b"I", b"U", b"D") for m in changes) == 80 + 27 + 16
    assert bool(rest) is (wal < 1 << 30)


def test_a_commit_that_is_larger_than_a_window_is_streamed(
    lake: LakeNode, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it comes in a window that ends amid it: that is no reason to ask for ever."""
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", 100)
    monkeypatch.setattr(backlog_module, "SMALLEST_WAL", 100)
    monkeypatch.setattr(backlog_module, "_PAGES", 1)
    lake.execute(
        "CREATE TABLE large (id integer PRIMARY KEY, v text)",
        "CREATE PUBLICATION large FOR TABLE large",
        "INSERT INTO large SELECT i, 'v' FROM generate_series(1, 3) i",
    )
    with LocalNode(tmp_path / "node", spark, {"backlog_copy_threshold": 0}) as follower:
        quoted = lake.conninfo().replace("'", "''")
        follower.node.sql(f"CREATE SUBSCRIPTION far CONNECTION '{quoted}' PUBLICATION large")
        wait_until(lambda: rows_of(follower) == 3, "the copy")
        follower.node.sql("ALTER SUBSCRIPTION far DISABLE")
        lake.execute("INSERT INTO large SELECT i, 'v' FROM generate_series(4, 5000) i")
        follower.node.sql("ALTER SUBSCRIPTION far ENABLE")
        wait_until(lambda: rows_of(follower) == 5000, "what it missed")
        follower.node.sql("DROP SUBSCRIPTION far")


def rows_of(follower: LocalNode) -> int:
    cut = follower.node.cut("far")
    if cut is None or ("public", "large") not in cut.tables:
        return 0
    pin = cut.tables["public", "large"]
    return len(delta_rows(pin.uri, pin.version))
