"""Slots read by SQL functions through test_decoding, on a node's port."""

from __future__ import annotations

import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import PenstockError
from penstock.pgoutput.decoder import Decoder
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_GET = "SELECT data FROM pg_logical_slot_get_changes('{}', NULL, NULL{})"
_PEEK = "SELECT data FROM pg_logical_slot_peek_changes('{}', NULL, NULL{})"


def _changes(lake: LakeNode, query: str, slot: str, options: str = "") -> list[str]:
    return [data for (data,) in lake.rows(query.format(slot, options))]


def test_changes_are_peeked_and_got(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE decoded (id integer PRIMARY KEY, v text, n numeric(6,2))",
        "SELECT pg_create_logical_replication_slot('decoded', 'test_decoding')",
        "INSERT INTO decoded VALUES (1, 'one', 1.5), (2, NULL, NULL)",
        "UPDATE decoded SET v = 'it''s' WHERE id = 2",
        "UPDATE decoded SET id = 3 WHERE id = 1",
        "DELETE FROM decoded WHERE id = 2",
        "TRUNCATE decoded",
    )
    plain = ", 'include-xids', '0'"
    expected = [
        "BEGIN",
        "table public.decoded: INSERT: id[integer]:1 v[text]:'one' n[numeric]:1.50",
        "table public.decoded: INSERT: id[integer]:2 v[text]:null n[numeric]:null",
        "COMMIT",
        "BEGIN",
        "table public.decoded: UPDATE: id[integer]:2 v[text]:'it''s' n[numeric]:null",
        "COMMIT",
        "BEGIN",
        "table public.decoded: UPDATE: old-key: id[integer]:1 "
        "new-tuple: id[integer]:3 v[text]:'one' n[numeric]:1.50",
        "COMMIT",
        "BEGIN",
        "table public.decoded: DELETE: id[integer]:2",
        "COMMIT",
        "BEGIN",
        "table public.decoded: TRUNCATE: (no-flags)",
        "COMMIT",
    ]
    assert _changes(lake, _PEEK, "decoded", plain) == expected
    assert _changes(lake, _PEEK, "decoded", plain) == expected
    (first,) = lake.rows("SELECT count(*) FROM pg_logical_slot_peek_changes('decoded', NULL, 1)")
    assert first == (4,)  # whole transactions
    two = lake.rows("SELECT data FROM pg_logical_slot_get_changes('decoded', NULL, 5) LIMIT 1")
    assert [data.split()[0] for (data,) in two] == ["BEGIN"]
    assert _changes(lake, _GET, "decoded", plain) == expected[7:]  # nothing was drawn twice
    assert _changes(lake, _GET, "decoded", plain) == []


_AS_A_SERVER = """
SELECT count(*) FROM pg_logical_slot_peek_changes('limits', '0/0', NULL)
SELECT count(*) FROM pg_logical_slot_peek_changes('limits', NULL, 0)
SELECT count(*) FROM pg_logical_slot_peek_changes('limits', NULL, 1)
SELECT count(*) FROM pg_logical_slot_get_changes('limits', NULL, -1)
SELECT data FROM pg_logical_slot_peek_changes('limits', NULL, NULL, 'a')
SELECT data FROM pg_logical_slot_peek_changes('limits', NULL, NULL, 'a', NULL)
SELECT pg_copy_logical_replication_slot('limits', 'copied', false, '')
SELECT pg_copy_logical_replication_slot('limits', 'copied', false, 'none')
SELECT count(*) FROM pg_logical_slot_peek_binary_changes('wires', NULL, NULL, 'proto_version', '1',\
 'publication_names', '')
BEGIN
INSERT INTO limits VALUES (3)
SELECT pg_create_logical_replication_slot('later', 'test_decoding')
ROLLBACK
BEGIN
INSERT INTO limits VALUES (3)
SELECT pg_copy_logical_replication_slot('limits', 'later')
ROLLBACK
BEGIN
SELECT slot_name FROM pg_create_logical_replication_slot('later', 'test_decoding')
ROLLBACK
SELECT count(*) FROM pg_logical_slot_get_changes('limits', NULL, NULL)
"""


def test_limits_and_refusals_are_those_of_a_server(
    lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    stock = database_on(17)
    both = []
    for connect in (lake.connect, stock.connect):
        with connect() as connection:
            for statement in (
                "CREATE TABLE limits (id integer PRIMARY KEY)",
                "SELECT pg_create_logical_replication_slot('limits', 'test_decoding')",
                "SELECT pg_create_logical_replication_slot('wires', 'pgoutput')",
                "INSERT INTO limits VALUES (1)",
                "INSERT INTO limits VALUES (2)",
            ):
                connection.execute(statement)
            told: list[Any] = []
            for statement in _AS_A_SERVER.replace("\\\n", "").strip().splitlines():
                try:
                    cursor = connection.execute(statement)
                    told.append(cursor.fetchall() if cursor.description else cursor.statusmessage)
                except psycopg.Error as error:
                    told.append((error.sqlstate, error.diag.message_primary))
            both.append(told)
            for name in ("limits", "wires", "later"):
                connection.execute(f"SELECT pg_drop_replication_slot('{name}')")
    ours, theirs = both
    assert ours == theirs


def test_there_are_no_slots_without_room_for_one(spark: Any, tmp_path: Path) -> None:
    with LakeNode(tmp_path, spark, max_replication_slots=0) as lake:
        for call in (
            "pg_create_logical_replication_slot('s', 'test_decoding')",
            "pg_copy_logical_replication_slot('s', 't')",
            "pg_drop_replication_slot('s')",
        ):
            with pytest.raises(psycopg.Error) as raised:
                lake.rows(f"SELECT {call}")
            assert raised.value.sqlstate == "55000"
            assert raised.value.diag.message_primary == (
                'replication slots can only be used if "max_replication_slots" > 0'
            )


def test_messages_of_sessions(lake: LakeNode) -> None:
    lake.execute(
        "SELECT pg_create_logical_replication_slot(slot_name => 'told', plugin => 'test_decoding')",
        "SELECT pg_logical_emit_message(true, 'pre', 'one')",
        "SELECT pg_logical_emit_message(false, 'pre', 'two')",
    )
    assert _changes(lake, _GET, "told", ", 'include-xids', '0'") == [
        "BEGIN",
        "message: transactional: 1 prefix: pre, sz: 3 content:one",
        "COMMIT",
        "message: transactional: 0 prefix: pre, sz: 3 content:two",
    ]


def test_messages_of_pgoutput(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE wired (id integer PRIMARY KEY, v text)",
        "CREATE PUBLICATION wired FOR TABLE wired WHERE (id > 1)",
        "SELECT pg_create_logical_replication_slot('wired', 'pgoutput')",
        "INSERT INTO wired VALUES (1, 'one'), (2, 'two')",
        "DELETE FROM wired",
    )
    call = "('wired', NULL, NULL, 'proto_version', '1', 'publication_names', 'wired')"
    found = lake.rows(f"SELECT data FROM pg_logical_slot_peek_binary_changes{call}")
    decoder = Decoder(1)
    messages = [type(decoder.decode(bytes(data))).__name__ for (data,) in found]
    assert messages == [
        *("Begin", "RelationMessage", "Insert", "Commit"),
        *("Begin", "Delete", "Commit"),
    ]
    with pytest.raises(psycopg.Error) as raised:
        lake.rows(f"SELECT data FROM pg_logical_slot_get_changes{call}")
    assert raised.value.sqlstate == "0A000"
    assert raised.value.diag.message_primary == (
        'logical decoding output plugin "pgoutput" produces binary output, but function '
        '"pg_logical_slot_get_changes(name,pg_lsn,integer,text[])" expects textual data'
    )
    assert len(lake.rows(f"SELECT FROM pg_logical_slot_get_binary_changes{call}")) == 7
    assert lake.rows(f"SELECT data FROM pg_logical_slot_get_binary_changes{call}") == []


def test_what_is_refused(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE refused (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('refused', 'test_decoding')",
        "INSERT INTO refused VALUES (1)",
    )
    for call, message, state in (
        ("'nowhere', NULL, NULL", 'replication slot "nowhere" does not exist', "42704"),
        ("NULL, NULL, NULL", "slot name must not be null", "22004"),
        ("'refused', NULL, NULL, 'a'", "array must have even number of elements", "0A000"),
        ("'refused', NULL, NULL, 'a', NULL", "array must not contain nulls", "0A000"),
        ("'refused', NULL, NULL, 'nothing', '1'", 'option "nothing" = "1" is unknown', "22023"),
        (
            "'refused', NULL, NULL, 'include-xids', 'x'",
            'could not parse value "x" for parameter "include-xids"',
            "22023",
        ),
    ):
        with pytest.raises(psycopg.Error) as raised:
            lake.rows(f"SELECT * FROM pg_logical_slot_get_changes({call})")
        assert (raised.value.diag.message_primary, raised.value.sqlstate) == (message, state)
    with pytest.raises(psycopg.Error, match="could not access file"):
        lake.rows("SELECT pg_create_logical_replication_slot('other', 'nothing_like_it')")
    assert len(_changes(lake, _GET, "refused")) == 3  # the slot is free, and where it was


def test_only_what_is_called_moves_a_slot(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE called (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('called', 'test_decoding')",
        "INSERT INTO called VALUES (1)",
    )
    get = _GET.format("called", "")
    # How clients ask for the columns of a query.
    assert lake.rows(f"{get} LIMIT 0") == []
    assert lake.rows(f"SELECT * FROM ({get}) AS asked WHERE 1 = 0") == []
    assert lake.rows(f"WITH unread AS ({get}) SELECT 1") == [(1,)]
    call = "pg_logical_slot_get_changes('called', NULL, NULL, 'include-xids', '0')"
    advance = "pg_replication_slot_advance('called', pg_current_wal_lsn())"
    for query, state in (
        (f"SELECT 1 / (length(data) - 5) FROM {call}", "22012"),  # after some rows
        (f"SELECT {advance} FROM {call}", "55006"),
    ):
        with pytest.raises(psycopg.Error) as raised:
            lake.rows(query)
        assert raised.value.sqlstate == state
    with lake.connection.cursor().copy(f"COPY ({get} LIMIT 0) TO STDOUT") as copy:
        assert list(copy.rows()) == []
    twice = f"WITH read AS ({get}) SELECT a.data FROM read a JOIN read b USING (data) LIMIT 1"
    assert len(lake.rows(twice)) == 1
    assert _changes(lake, _GET, "called") == []
    lake.execute("DELETE FROM called")
    with lake.connection.cursor().copy(f"COPY ({get}) TO STDOUT") as copy:
        assert [row[0].split()[0] for row in copy.rows()] == ["BEGIN", "table", "COMMIT"]
    assert _changes(lake, _GET, "called") == []
    nowhere = f"COPY ({_GET.format('nowhere', '')}) TO STDOUT"
    with (
        pytest.raises(psycopg.Error, match="does not exist"),
        lake.connection.cursor().copy(nowhere) as copy,
    ):
        list(copy.rows())


def test_a_table_that_was_replaced_loses_the_slots_that_get_there(lake: LakeNode) -> None:
    """Though nobody publishes it. One that is moved past the place first goes on behind it."""
    lake.execute(
        "CREATE TABLE replaced (id integer PRIMARY KEY)",
        "CREATE TABLE stays (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('gone', 'test_decoding')",
        "SELECT pg_create_logical_replication_slot('moved', 'test_decoding')",
        "INSERT INTO replaced VALUES (1)",
    )
    folder = Path(str(lake.node.folder)) / "warehouse" / "public" / "replaced"
    shutil.rmtree(folder)
    write_deltalake(str(folder), pa.table({"id": pa.array([2], pa.int32())}))
    assert lake.node.serving is not None
    lake.node.serving.sequencer.check_logs()
    lake.node.serving.sequencer.step(discover=True)
    end = lake.rows("SELECT pg_current_wal_lsn()")[0][0]
    lake.execute("INSERT INTO stays VALUES (1)", "INSERT INTO replaced VALUES (3)")
    for message in ("can no longer get changes from this", "can no longer access replication slot"):
        with pytest.raises(psycopg.Error, match=message) as raised:
            lake.rows(_GET.format("gone", ""))
        assert raised.value.sqlstate == "55000"
        assert (raised.value.diag.message_hint or "").startswith("Drop the slot and make it again.")
    slots = (
        "SELECT wal_status, invalidation_reason FROM pg_replication_slots WHERE slot_name = '{}'"
    )
    assert lake.rows(slots.format("gone")) == [("lost", "wal_removed")]
    lake.execute(
        f"SELECT pg_replication_slot_advance('moved', '{end}')",
        "SELECT pg_drop_replication_slot('gone')",
        "SELECT pg_create_logical_replication_slot('gone', 'test_decoding')",
        "INSERT INTO replaced VALUES (4)",
    )
    made = [line for line in _changes(lake, _GET, "gone") if line.startswith("table")]
    moved = [line for line in _changes(lake, _GET, "moved") if line.startswith("table")]
    assert made == ["table public.replaced: INSERT: id[integer]:4"]
    assert moved == [
        "table public.stays: INSERT: id[integer]:1",
        "table public.replaced: INSERT: id[integer]:3",
        *made,
    ]


@pytest.mark.parametrize("leaves", ["before the answer", "without reading it", "with it"])
def test_rows_that_a_client_did_not_read_come_again(lake: LakeNode, leaves: str) -> None:
    """Its connection ends without a word, which is the client's own end, or a broken network."""
    slot = leaves.replace(" ", "_")
    lake.execute(
        f"CREATE TABLE {slot} (id integer PRIMARY KEY)",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')",
        f"INSERT INTO {slot} VALUES (1)",
    )
    rows, get = _changes(lake, _PEEK, slot), _GET.format(slot, "").encode()
    session = lake.connect()
    pid = session.info.backend_pid
    with (
        socket.socket(fileno=os.dup(session.fileno())) as raw,
        Path(os.devnull).open("wb") as nothing,
    ):
        raw.setblocking(True)
        raw.sendall(b"Q" + struct.pack("!i", 5 + len(get)) + get + b"\0")
        if leaves == "before the answer":
            raw.shutdown(socket.SHUT_WR)
        else:
            answer = raw.recv(1 << 16, 0 if leaves == "with it" else socket.MSG_PEEK)
            while leaves == "with it" and not answer.endswith(b"Z\0\0\0\5I"):
                answer += raw.recv(1 << 16)
            os.dup2(nothing.fileno(), session.fileno())  # libpq has no word, either
    sessions = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
    wait_until(lambda: lake.rows(sessions) == [(0,)], "the end of the session")
    session.close()
    assert _changes(lake, _GET, slot) == ([] if leaves == "with it" else rows)


def test_a_slot_is_where_it_was_read_up_to_at_once(lake: LakeNode) -> None:
    """For others, too; also where the block is rolled back or what follows in the string fails."""
    lake.execute(
        "CREATE TABLE at_once (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('at_once', 'test_decoding')",
    )
    get = _GET.format("at_once", "")
    at = (
        "SELECT confirmed_flush_lsn = pg_current_wal_lsn(), restart_lsn = confirmed_flush_lsn, "
        "active FROM pg_replication_slots WHERE slot_name = 'at_once'"
    )
    with lake.connect() as session:
        for number, around in enumerate((("BEGIN", "ROLLBACK"), ("BEGIN", "COMMIT"), ("", ""))):
            lake.execute(f"INSERT INTO at_once VALUES ({number})")
            session.execute(around[0])
            assert len(session.execute(get).fetchall()) == 3
            assert lake.rows(at) == [(True, False, False)]  # a crash still needs what it has read
            assert _changes(lake, _PEEK, "at_once") == []
            assert lake.rows(at) == [(True, True, False)]  # another session goes on from there
            session.execute(around[1])
        lake.execute("INSERT INTO at_once VALUES (10)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.execute(f"{get}; {get}; SELECT 1 / 0")
        assert _changes(lake, _GET, "at_once") == []


def test_rows_that_a_program_did_not_get_come_again(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE program (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('program', 'test_decoding')",
        "INSERT INTO program VALUES (1)",
    )
    get = _GET.format("program", "")
    with pytest.raises(PenstockError):
        lake.node.execute(f"{get}; {get}; DROP TABLE nowhere")
    assert len(lake.node.sql(get).rows) == 3
    assert lake.node.sql(get).rows == ()
    assert _changes(lake, _GET, "program") == []
