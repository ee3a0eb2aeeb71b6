"""Replication commands as clients of PostgreSQL send them, against a server on real tables."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from fix_lake import LakeServer
from penstock.catalog import LakeTransaction
from penstock.decoding.plugins.pgoutput import Pgoutput
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import ConnectionFailure, RequiredChangesRemoved
from penstock.lsn import Lsn
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import (
    Begin,
    Commit,
    Insert,
    Message,
    RelationMessage,
    StreamCommit,
    StreamStart,
    StreamStop,
)
from penstock.protocol.copy_both import StandbyStatusUpdate
from penstock.protocol.session import ServerSession
from penstock.walsender.feed import Changes, TransactionBegin, TransactionEnd
from protocol.client_messages import (
    PrimaryKeepalive,
    XLogData,
    decode_sender_message,
    status_update,
)

CREATE = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput (SNAPSHOT 'nothing')"
START = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names 'p')"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeServer]:
    lake = LakeServer(tmp_path)
    yield lake
    lake.close()


class Lake(Protocol):
    """Where a stream comes from."""

    def connect(self) -> psycopg.Connection:
        """A connection for replication."""


class Receiver:
    """A stream's client, without libpq's waits: those would keep the server's threads still."""

    def __init__(self, lake: Lake, command: str) -> None:
        self.connection = lake.connect()
        self.raw = self.connection.pgconn
        self.decoder = Decoder(1)
        self.raw.send_query(command.encode())
        self.raw.flush()
        while self.raw.is_busy():
            self._wait()
        result = self.raw.get_result()
        assert result is not None
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            self.connection.close()
            raise AssertionError(result.error_message.decode())

    def _wait(self) -> None:
        select.select([self.raw.socket], [], [], 20)
        self.raw.consume_input()

    def frame(self, timeout_s: float = 20) -> XLogData | PrimaryKeepalive | None:
        deadline = time.monotonic() + timeout_s
        while (got := self.raw.get_copy_data(1))[0] == 0:
            if not select.select([self.raw.socket], [], [], deadline - time.monotonic())[0]:
                return None
            self.raw.consume_input()
        assert got[0] > 0, self.raw.error_message.decode()
        return decode_sender_message(bytes(got[1] or b""))

    def message(self) -> Message:
        while not isinstance(frame := self.frame(), XLogData):
            assert frame is not None
        return self.decoder.decode(frame.payload)

    def transaction(self) -> tuple[Lsn, list[bytes]]:
        """(end, versions) of the next one."""
        assert isinstance(self.message(), Begin)
        versions = []
        while not isinstance(message := self.message(), Commit):
            if isinstance(message, Insert):
                versions.append(message.new[0].raw)  # type: ignore[union-attr]
            else:
                assert isinstance(message, RelationMessage)
        return message.end_lsn, versions

    def confirm(self, lsn: Lsn) -> None:
        self.raw.put_copy_data(status_update(StandbyStatusUpdate(lsn, lsn, lsn, 0, False)))
        self.raw.flush()

    def close(self) -> None:
        self.connection.close()


def refused(lake: LakeServer, *commands: str) -> psycopg.Error:
    with lake.connect() as connection:
        for command in commands[:-1]:
            connection.execute(command)
        with pytest.raises(psycopg.Error) as error:
            connection.execute(commands[-1])
    return error.value


def test_identify_system_and_show(lake: LakeServer) -> None:
    with lake.connect() as connection:
        row = connection.execute("IDENTIFY_SYSTEM").fetchone()
        assert row == ("7", 1, str(lake.end()), "lake")
        assert connection.execute("SHOW data_directory_mode").fetchone() == ("0700",)
        assert connection.execute("SHOW server_version").fetchone() == ("18.0",)


def test_a_walsender_without_a_database(
    lake: LakeServer, postgres_version: Callable[[int], EmbeddedPostgres]
) -> None:
    """As for physical replication: each command says what it needs."""
    stock = postgres_version(18)
    both: list[list[object]] = []
    conninfo = f"{stock.conninfo()} replication=true"
    cursors = psycopg.ClientCursor
    for connect in (
        lambda: lake.connect("true"),
        lambda: psycopg.connect(conninfo, autocommit=True, cursor_factory=cursors),
    ):
        with connect() as connection:
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
            told: list[object] = [row and row[3]]
            for command in (
                "SHOW server_version_num",
                CREATE,
                START.format("s"),
                "SELECT 1",
                "START_REPLICATION SLOT s PHYSICAL 0/0",
            ):
                try:
                    found = connection.execute(command).fetchone()
                    told.append(found is not None)
                except psycopg.Error as error:
                    told.append((error.sqlstate, error.diag.message_primary))
            both.append(told)
    (*ours, _), (*theirs, _) = both  # there is no physical replication
    assert ours == theirs


def test_a_slot_streams_what_comes_after_it(lake: LakeServer) -> None:
    lake.write()
    lake.sequencer.step(discover=True)
    with lake.connect() as connection:
        (name, point, snapshot, plugin) = connection.execute(CREATE).fetchone() or ()
    assert (name, point, snapshot, plugin) == ("s", str(lake.end()), None, "pgoutput")
    lake.write()
    receiver = Receiver(lake, START.format("s"))
    assert isinstance(receiver.frame(), PrimaryKeepalive), "at once, as PostgreSQL"
    assert receiver.transaction()[1] == [b"1"]
    lake.write()
    end, versions = receiver.transaction()
    assert versions == [b"2"]
    receiver.confirm(end)
    wait_until(lambda: lake.slots.all()[0].slot.confirmed_flush_lsn == end, "the confirmation")
    receiver.close()
    wait_until(lambda: lake.slots.all()[0].active_pid is None, "a slot that is free")
    lake.write()
    receiver = Receiver(lake, START.format("s"))
    assert receiver.transaction()[1] == [b"3"], "what was confirmed does not come again"
    receiver.close()


def test_a_plugin_is_started_once_for_a_stream(
    lake: LakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the client is gone before the stream begins; the slot is free then."""
    told: list[str] = []
    for name in ("startup", "shutdown"):
        real = getattr(Pgoutput, name)

        def tell(self: Any, *given: Any, name: str = name, real: Any = real) -> Any:
            told.append(name)
            return real(self, *given)

        monkeypatch.setattr(Pgoutput, name, tell)
    lake.write()
    with lake.connect() as connection:
        connection.execute(CREATE)
    told.clear()
    receiver = Receiver(lake, START.format("s"))
    assert isinstance(receiver.frame(), PrimaryKeepalive)
    assert told == ["startup"]
    receiver.close()
    wait_until(lambda: lake.slots.all()[0].active_pid is None, "a slot that is free")
    assert told == ["startup", "shutdown"]
    with monkeypatch.context() as gone:
        gone.setattr(ServerSession, "copy_both_response", _gone)
        with pytest.raises((AssertionError, OSError, psycopg.Error)):
            Receiver(lake, START.format("s")).frame()
        wait_until(lambda: lake.slots.all()[0].active_pid is None, "a slot that is free")
    assert told == ["startup", "shutdown"] * 2


def _gone(*_: Any) -> bytes:
    raise ConnectionFailure("the client has disconnected")


def test_what_was_not_confirmed_comes_again_after_a_restart(lake: LakeServer) -> None:
    lake.write()
    with lake.connect() as connection:
        connection.execute(CREATE)
    for _ in range(3):
        lake.write()
    receiver = Receiver(lake, START.format("s"))
    first, *_ = seen = [receiver.transaction() for _ in range(3)]
    receiver.confirm(first[0])
    wait_until(
        lambda: lake.slots.all()[0].slot.confirmed_flush_lsn == first[0], "the confirmation", 20
    )
    lake.stop()
    receiver.close()
    lake.start()
    receiver = Receiver(lake, START.format("s"))
    assert [receiver.transaction() for _ in range(2)] == seen[1:], "the same, and none else"
    receiver.close()


def test_a_streamed_transaction_comes_in_blocks(lake: LakeServer) -> None:
    lake.write()
    lake.sequencer.step(discover=True)
    with lake.connect() as connection:
        connection.execute(CREATE)
    receiver = Receiver(lake, START.format("s").replace("'1'", "'2', streaming 'on'"))
    receiver.decoder = Decoder(2)
    lake.write()
    lake.write()
    for first in (True, False):
        start, relation, row, stop, commit = (receiver.message() for _ in range(5))
        assert isinstance(start, StreamStart)
        assert start.first_segment, first
        xids = {m.xid for m in (start, relation, row, commit)}  # type: ignore[union-attr]
        assert (len(xids), type(relation), type(row)) == (1, RelationMessage, Insert)
        assert (type(stop), type(commit)) == (StreamStop, StreamCommit)
    stats = lake.services.senders.stats("s")
    receiver.close()
    assert (stats.total_txns, stats.stream_txns, stats.stream_count) == (2, 2, 2)


def test_one_consumer_at_a_time(lake: LakeServer) -> None:
    with lake.connect() as connection:
        connection.execute(CREATE)
    receiver = Receiver(lake, START.format("s"))
    with pytest.raises(AssertionError, match='slot "s" is active for PID'):
        Receiver(lake, START.format("s"))
    assert refused(lake, "DROP_REPLICATION_SLOT s").sqlstate == "55006"
    receiver.close()
    with lake.connect() as connection:
        connection.execute("DROP_REPLICATION_SLOT s WAIT")
    assert lake.slots.all() == ()


def test_temporary_slots_end_with_their_session(lake: LakeServer) -> None:
    with lake.connect() as connection:
        connection.execute("CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL pgoutput")
        assert [state.temporary for state in lake.slots.all()] == [True]
        assert refused(lake, "DROP_REPLICATION_SLOT t").sqlstate == "55006"
    wait_until(lambda: lake.slots.all() == (), "the end of the slot")


def test_snapshots_are_exported_until_the_next_command(lake: LakeServer) -> None:
    lake.write()
    lake.sequencer.step(discover=True)
    with lake.connect() as owner, lake.connect() as other:
        create = "CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
        name = (owner.execute(create).fetchone() or ())[2]
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        other.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
        other.execute("COMMIT")
        owner.execute("IDENTIFY_SYSTEM")
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        with pytest.raises(psycopg.Error, match="does not exist"):
            other.execute(f"SET TRANSACTION SNAPSHOT '{name}'")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            other.execute("SHOW server_version")
        assert other.execute("COMMIT").statusmessage == "ROLLBACK"


def test_a_snapshot_is_used_in_its_own_transaction(lake: LakeServer) -> None:
    with lake.connect() as connection:
        connection.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        connection.execute("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput USE_SNAPSHOT")
        connection.execute("COMMIT")


@pytest.mark.parametrize(
    ("commands", "sqlstate", "message"),
    [
        (["DROP_REPLICATION_SLOT x"], "42704", 'replication slot "x" does not exist'),
        ([START.format("x")], "42704", 'replication slot "x" does not exist'),
        ([CREATE, CREATE], "42710", 'replication slot "s" already exists'),
        ([CREATE.replace("s ", '"S" ')], "42602", "contains invalid character"),
        ([CREATE.replace("pgoutput", "other")], "58P01", 'could not access file "other"'),
        ([CREATE.replace("nothing", "use")], "XX000", "must be called inside a transaction"),
        (["BEGIN", CREATE.replace("nothing", "export")], "XX000", "must not be called inside"),
        (["BEGIN", CREATE, START.format("s")], "25001", "cannot run inside a transaction block"),
        (["CREATE_REPLICATION_SLOT s PHYSICAL"], "0A000", "physical replication slots"),
        (["START_REPLICATION 0/0"], "0A000", "physical replication is not supported"),
        (["TIMELINE_HISTORY 1"], "58P01", 'could not open file "pg_wal/00000001.history"'),
        (["CREATE_REPLICATION_SLOT"], "42601", "syntax error"),
        ([CREATE, START.format("s").replace("'1'", "'9'")], "0A000", "protocol 4 or lower"),
        ([CREATE, START.format("s").replace("'1'", "'x'")], "22023", "invalid proto_version"),
        ([CREATE, START.format("s").replace("0/0", "F/0")], "XX000", "is ahead of the WAL flush"),
        (["SHOW nothing"], "42704", 'unrecognized configuration parameter "nothing"'),
        ([CREATE, "READ_REPLICATION_SLOT s"], "0A000", "cannot use READ_REPLICATION_SLOT"),
    ],
)
def test_refusals_are_postgresqls(
    lake: LakeServer, commands: list[str], sqlstate: str, message: str
) -> None:
    error = refused(lake, *commands)
    assert (error.sqlstate, message in str(error)) == (sqlstate, True), str(error)


def test_slots_are_limited(lake: LakeServer) -> None:
    with lake.connect() as connection:
        for number in range(4):
            connection.execute(CREATE.replace("s ", f"s{number} "))
        with pytest.raises(psycopg.Error, match="all replication slots are in use") as error:
            connection.execute(CREATE)
    assert error.value.sqlstate == "53400"


def test_a_stream_ends_when_its_client_is_done(lake: LakeServer) -> None:
    with lake.connect() as connection:
        connection.execute(CREATE)
    receiver = Receiver(lake, START.format("s"))
    receiver.raw.put_copy_end()
    with contextlib.suppress(AssertionError):
        while receiver.frame() is not None:
            pass
    statuses = []
    while True:
        while receiver.raw.is_busy():
            receiver._wait()
        result = receiver.raw.get_result()
        if result is None:
            break
        statuses.append(result.status)
    assert statuses == [psycopg.pq.ExecStatus.COMMAND_OK] * 2
    receiver.close()


def test_positions_pass_where_nothing_is_published(tmp_path: Path) -> None:
    class Nothing:
        def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
            for transaction in transactions:
                yield TransactionBegin(transaction)
                yield TransactionEnd(transaction)

    lake = LakeServer(tmp_path, decoding=lambda wanted: Nothing())
    try:
        lake.write()
        with lake.connect() as connection:
            connection.execute(CREATE)
        receiver = Receiver(lake, START.format("s"))
        lake.write()
        end = lake.end()
        while (frame := receiver.frame()) is not None:
            assert isinstance(frame, PrimaryKeepalive)
            if frame.end == end:
                break
        receiver.confirm(end)
        wait_until(
            lambda: lake.slots.all()[0].slot.confirmed_flush_lsn == end, "the confirmation", 20
        )
        receiver.close()
    finally:
        lake.close()


def test_a_slot_whose_changes_are_gone_is_lost(tmp_path: Path) -> None:
    class Gone:
        def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
            yield from ()
            raise RequiredChangesRemoved("the files are gone")

    lake = LakeServer(tmp_path, decoding=lambda wanted: Gone())
    try:
        lake.write()
        with lake.connect() as connection:
            connection.execute(CREATE)
        lake.write()
        receiver = Receiver(lake, START.format("s"))
        wait_until(
            lambda: lake.slots.all()[0].slot.invalidation_reason == "wal_removed",
            "the loss of the slot",
            20,
        )
        receiver.close()
        wait_until(lambda: lake.slots.all()[0].active_pid is None, "a slot that is free")
        with pytest.raises(AssertionError, match='can no longer access replication slot "s"'):
            Receiver(lake, START.format("s"))
    finally:
        lake.close()
