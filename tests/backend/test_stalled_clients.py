"""Clients that do not read, say nothing or leave: they harm themselves only, and not for long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from backend.test_replication import CREATE, START, Receiver
from fix_lake import RELATION, LakeServer
from penstock.catalog import LakeTransaction
from penstock.embedded import wait_until
from penstock.errors import FeatureNotSupported
from penstock.lsn import Lsn
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Commit, Insert, Text
from penstock.protocol.copy_both import xlog_data
from penstock.walsender.decoding_options import DecodingOptions
from penstock.walsender.feed import Changes, Portion, TransactionBegin, TransactionEnd
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.slots import Slots

_PIECES = 60
_PATIENCE_S = 1.5
_WIDE = b"x" * (1 << 20)


class Large:
    """More in a transaction than the buffers between a server and its client hold."""

    def __init__(self, options: DecodingOptions) -> None:
        pass

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        for transaction in transactions:
            yield TransactionBegin(transaction)
            for number in range(_PIECES):
                row = Insert(RELATION.oid, (Text(b"%d " % number + _WIDE),))
                yield Portion((RELATION,), xlog_data(transaction.begin, 0, encode(row)), 1)
            yield TransactionEnd(transaction)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeServer]:
    lake = LakeServer(tmp_path, decoding=Large, wal_sender_timeout_s=lambda: _PATIENCE_S)
    lake.write()
    with lake.connect() as connection:
        connection.execute(CREATE)
    yield lake
    lake.close()


def active(lake: LakeServer) -> bool:
    return lake.slots.all()[0].active_pid is not None


def test_a_stream_that_nobody_reads_ends_after_wal_sender_timeout(lake: LakeServer) -> None:
    receiver = Receiver(lake, START.format("s"))
    lake.write()
    began = time.monotonic()
    wait_until(lambda: not active(lake), "the end of the stream")
    wait_until(lambda: lake.server.sessions == 0, "the end of the sessions")
    assert time.monotonic() - began < 15
    receiver.close()


def test_a_client_that_is_busy_but_answers_stays(lake: LakeServer) -> None:
    receiver = Receiver(lake, START.format("s"))
    lake.write()
    until = time.monotonic() + 2.5 * _PATIENCE_S
    while time.monotonic() < until:
        receiver.confirm(Lsn(0))
        time.sleep(0.05)
    assert active(lake), "2.5 times as long as a silent client would be waited for"
    rows: list[bytes] = []
    while not isinstance(message := receiver.message(), Commit):
        receiver.confirm(Lsn(0))
        if isinstance(message, Insert):
            rows.append(message.new[0].raw)  # type: ignore[union-attr]
    assert [int(row.split(b" ")[0]) for row in rows] == list(range(_PIECES))
    assert {len(row.split(b" ")[1]) for row in rows} == {len(_WIDE)}
    receiver.close()


def test_a_stalled_stream_stops_nobody_else(tmp_path: Path) -> None:
    lake = LakeServer(tmp_path, decoding=Large, wal_sender_timeout_s=lambda: 0.0)
    lake.write()
    with lake.connect() as connection:
        connection.execute(CREATE)
    receiver = Receiver(lake, START.format("s"))
    lake.write()
    wait_until(lambda: lake.slots.all()[0].active_pid is not None, "a slot in use")
    with lake.connect() as connection:
        connection.execute(CREATE.replace(" s ", " other "))
        assert connection.execute("IDENTIFY_SYSTEM").fetchone()
    other = Receiver(lake, START.format("other"))
    end = lake.end()
    lake.write()
    assert lake.end() > end, "the sequencer goes on"
    assert len(other.transaction()[1]) == _PIECES
    began = time.monotonic()
    lake.close()
    assert time.monotonic() - began < 5, "and the node ends"
    receiver.close()
    other.close()


def test_replication_connections_are_counted_from_their_start(tmp_path: Path) -> None:
    lake = LakeServer(tmp_path, max_wal_senders=2)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(lake.connect())
            with pytest.raises(psycopg.OperationalError) as error:
                lake.connect()
            assert (
                'FATAL:  number of requested standby connections exceeds "max_wal_senders" '
                "(currently 2)"
            ) in str(error.value)
            lake.connect(replication="false").close()
        wait_until(lambda: lake.server.sessions == 0, "the end of the sessions")
        lake.connect().close()
    finally:
        lake.close()


class SlowWarehouse(Sequencer):
    """Looking for new tables takes until it may end."""

    def __init__(self, lake: LakeServer) -> None:
        super().__init__(lake.catalog, lake.warehouse)
        self.looking, self.may_end = threading.Event(), threading.Event()

    def step(self, *, discover: bool = False) -> None:
        if discover:
            self.looking.set()
            self.may_end.wait(20)
        super().step(discover=discover)


def test_a_slot_in_the_making_holds_up_no_other(lake: LakeServer) -> None:
    sequencer = SlowWarehouse(lake)
    slots = Slots(lake.catalog, sequencer, 4)
    made: list[Position] = []
    thread = threading.Thread(
        target=lambda: made.append(slots.create("new", "pgoutput", pid=2, database=5))
    )
    thread.start()
    assert sequencer.looking.wait(20)
    began = time.monotonic()
    with slots.held("s", 1, version=18):
        lake.write()
        end = lake.end()
        assert slots.confirm("s", end) == end
    assert [state.slot.name for state in slots.all()] == ["s"]
    assert time.monotonic() - began < 5
    assert thread.is_alive()
    sequencer.may_end.set()
    thread.join()
    assert made[0].lsn == end == slots.oldest(), "it begins where the log ends when it is made"


def test_positions_beyond_all_wal_change_nothing(tmp_path: Path) -> None:
    lake = LakeServer(tmp_path)
    try:
        lake.write()
        with lake.connect() as connection:
            connection.execute(CREATE)
            with pytest.raises(psycopg.Error, match="80000000/0 is ahead of the WAL flush"):
                connection.execute(START.format("s").replace("0/0", "80000000/0"))
        receiver = Receiver(lake, START.format("s"))
        lake.write()
        end, _ = receiver.transaction()
        receiver.confirm(Lsn((1 << 64) - 1))
        wait_until(
            lambda: lake.slots.all()[0].slot.confirmed_flush_lsn == end, "the confirmation", 20
        )
        (sender,) = lake.services.senders.all()
        assert (sender.state.write, sender.state.apply) == (end, end)
        receiver.close()
        with pytest.raises(FeatureNotSupported, match="80000000/0 is beyond what can be kept"):
            lake.slots.confirm("s", Lsn(1 << 63))
    finally:
        lake.close()


_ENDLESS = "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d WHERE a.oid < d.oid"


@pytest.mark.parametrize("text", [_ENDLESS, f"SELECT 1; {_ENDLESS}", f"BEGIN; {_ENDLESS}"])
def test_what_a_client_that_left_has_asked_for_ends(lake: LakeServer, text: str) -> None:
    """It only reads: nobody misses it."""
    client = lake.connect("false")
    client.pgconn.send_query(text.encode())
    with lake.connect("false") as other:
        runs = (
            "SELECT query FROM pg_stat_activity WHERE state = 'active' AND pid != pg_backend_pid()"
        )
        wait_until(lambda: other.execute(runs).fetchall() == [(text,)], "the statement")
        client.pgconn.finish()
        began = time.monotonic()
        wait_until(lambda: lake.server.sessions == 1, "the end of the session")
        assert time.monotonic() - began < 10, "it would take a minute"
