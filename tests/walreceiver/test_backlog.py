"""A backlog fetched by COPY holds what a stream would have brought; real servers are asked."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tls
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import ConnectionFailure, PublisherError
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver import backlog as backlog_module
from penstock.walreceiver import stream
from penstock.walreceiver.backlog import Backlog, BinaryRows, Lane, TooLong, Window, _moved, bounded
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import slot_state
from penstock.walreceiver.stream import ReplicationStream, open_backlog

VERSIONS = [14, 15, 16, 17, 18]
TEXT = PgoutputOptions(proto_version=1, publication_names=("p",))
BINARY = PgoutputOptions(proto_version=1, publication_names=("p",), binary=True)
ROWS = 20 * (100 + 1 + 1)


@pytest.fixture
def publisher() -> Iterator[Callable[[Any], Publisher]]:
    opened: list[Publisher] = []

    def connect(database: Any) -> Publisher:
        opened.append(Publisher.connect(database.conninfo))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def prepared(database: Any, publisher: Publisher) -> Lsn:
    """A table, a publication and a slot; transactions behind it. Returns the slot's start."""
    database.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v text, b bytea); CREATE TABLE unpublished (i int);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    start = publisher.create_slot(f"sub_{database.name}").consistent_point
    for first in range(0, 2000, 100):
        database.execute(
            "INSERT INTO t SELECT i, 'v' || i, decode(md5(i::text), 'hex')"
            " FROM generate_series(%s::int, %s::int) i",
            (first, first + 99),
        )
        database.execute("UPDATE t SET v = repeat('x', 100) WHERE i = %s", (first,))
        database.execute("DELETE FROM t WHERE i = %s", (first + 1,))
        database.execute("INSERT INTO unpublished SELECT generate_series(1, 50)")
    return start


class Way(Enum):
    """By a query or by COPY where libpq has to read, and from the socket of an ordinary session or
    of a walsender."""

    QUERY = "query"
    COPY = "copy"
    SOCKET = "socket"
    WALSENDER = "walsender"

    @property
    def by_copy(self) -> bool:
        return self in (Way.COPY, Way.WALSENDER)


WAYS = pytest.mark.parametrize("way", Way, ids=lambda way: way.value)


@pytest.fixture(autouse=True)
def read_so(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the test's way says; from the socket where it has none."""
    if "way" in request.fixturenames and request.getfixturevalue("way") in (Way.QUERY, Way.COPY):
        monkeypatch.setattr(Connection, "is_encrypted", lambda self: True)


def opened(
    connection: Connection,
    database: Any,
    start: Lsn,
    options: PgoutputOptions = TEXT,
    *,
    way: Way = Way.SOCKET,
) -> Backlog:
    """Of the slot that ``prepared`` has made."""
    slot = f"sub_{database.name}"
    session = None if way.by_copy else partial(ordinary, database)
    backlog = open_backlog(connection, slot, start, options, threshold=0, session=session)
    assert backlog is not None
    assert backlog._lanes[0].by_copy is way.by_copy
    return backlog


_sessions: list[Connection] = []


def ordinary(database: Any) -> Connection:
    conninfo = ConnInfo.parse(database.conninfo)
    _sessions.append(Connection.connect(conninfo, "penstock", replication=False))
    return _sessions[-1]


@pytest.fixture(autouse=True)
def sessions_closed() -> Iterator[None]:
    yield
    while _sessions:
        _sessions.pop().close()


def smallest_wal(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Bytes that are worth two windows."""
    monkeypatch.setattr(backlog_module, "SMALLEST_WAL", size)
    monkeypatch.setattr(stream, "SMALLEST_WAL", size)


def fetched(backlog: Backlog) -> list[bytes]:
    """The messages of all windows, without headers."""
    messages: list[bytes] = []
    deadline = time.monotonic() + 60
    while not backlog.finished:
        assert time.monotonic() < deadline
        messages += backlog.receive(0.05).messages()
    return messages


def streamed(publisher: Publisher, slot: str, options: PgoutputOptions, until: Lsn) -> list[bytes]:
    """The messages up to ``until``. Before 15, a server sends empty transactions as well, and
    autovacuum may have written some after it."""
    stream = ReplicationStream(publisher.connection)
    stream.start(slot, Lsn(0), options.text())
    frames: list[bytes] = []
    deadline = time.monotonic() + 60
    while stream.received_lsn < until:
        assert time.monotonic() < deadline
        frames += stream.receive(0.05)
    stream.close()
    messages = [frame[XLOGDATA_HEADER:] for frame in frames]
    return list(itertools.takewhile(lambda message: not begins_after(until, message), messages))


def begins_after(until: Lsn, message: bytes) -> bool:
    """Begin carries the LSN of its commit."""
    return message[:1] == b"B" and int.from_bytes(message[1:9]) >= until


def rows(messages: list[bytes]) -> int:
    return sum(message[:1] in (b"I", b"U", b"D") for message in messages)


def without_relations(messages: list[bytes]) -> list[bytes]:
    """Each window says the relations again."""
    return [message for message in messages if message[:1] != b"R"]


@pytest.mark.parametrize("options", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("version", VERSIONS)
@WAYS
def test_windows_hold_what_a_stream_brings(
    way: Way,
    version: int,
    options: PgoutputOptions,
    database_on: Callable[..., Any],
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_module, "_MESSAGES", 500)
    database = database_on(version)
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    backlog = opened(publisher(database).connection, database, start, options, way=way)
    messages = fetched(backlog)
    assert backlog.received_lsn >= backlog.latest_end_lsn
    backlog.close()
    assert [m[:1] for m in messages].count(b"R") > 1
    expected = streamed(main, slot, options, backlog.received_lsn)
    assert without_relations(messages) == without_relations(expected)
    assert rows(messages) == ROWS


def busy(database: Any, seed: int) -> None:
    """Sessions beside each other: transactions that begin in one window and commit in another, some
    rolled back, some of tables that are not published; messages of their own; a new segment."""
    choose = random.Random(seed)
    with ExitStack() as stack:
        sessions = [stack.enter_context(psycopg.connect(database.conninfo)) for _ in range(4)]
        for number in range(150):
            session = choose.choice(sessions)
            rows_ = choose.choice([1, 1, 1, 30, 300])
            first = 100_000 + number * 1000
            match choose.randrange(9):
                case 0:
                    session.rollback()
                case 1:
                    session.execute(
                        "INSERT INTO unpublished SELECT generate_series(1, %s)", [rows_]
                    )
                case 2:
                    session.execute("SELECT pg_logical_emit_message(false, 'p', repeat('m', 3000))")
                case 3:
                    session.execute("SELECT pg_logical_emit_message(true, 'p', 'within')")
                case 4:
                    session.execute("SAVEPOINT s")
                case _:
                    session.execute(
                        "INSERT INTO t SELECT i, repeat('v', i %% 90) FROM"
                        " generate_series(%s::int, %s::int) i",
                        (first, first + rows_),
                    )
            if choose.random() < 0.6:
                session.commit()
            if number % 40 == 39:
                database.execute(choose.choice(["CHECKPOINT", "SELECT pg_switch_wal()"]))
        for session in sessions:
            session.commit()
    database.execute("INSERT INTO t VALUES (-1)")


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("messages", [50, 1_000_000])
@pytest.mark.parametrize("version", VERSIONS)
def test_lanes_bring_every_transaction_once_and_in_order(
    version: int,
    messages: int,
    lanes: int,
    database_on: Callable[..., Any],
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_LANES", lanes)
    monkeypatch.setattr(backlog_module, "_MESSAGES", messages)
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", 8192)
    smallest_wal(monkeypatch, 8192)
    monkeypatch.setattr(backlog_module, "_GROWTH", 1.2)
    monkeypatch.setattr(backlog_module, "_PAGES", 8192)
    options = TEXT if version < 14 else replace(BINARY, messages=True)
    database = database_on(version)
    main = publisher(database)
    start = prepared(database, main)
    busy(database, seed=version * messages + lanes)
    backlog = opened(publisher(database).connection, database, start, options)
    assert len(backlog._lanes) == lanes
    found = fetched(backlog)
    assert backlog.received_lsn >= backlog.latest_end_lsn
    backlog.close()
    assert [m[:1] for m in found].count(b"R") > 10  # so many windows
    expected = streamed(main, f"sub_{database.name}", options, backlog.received_lsn)
    assert without_relations(found) == without_relations(expected)


@pytest.mark.parametrize("slots", [2, 5])
def test_a_second_session_leaves_slots_free(
    slots: int,
    database_on: Callable[..., Any],
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smallest_wal(monkeypatch, 8192)
    with EmbeddedPostgres(18, settings={"max_replication_slots": slots}) as server:
        database = database_on(server)
        main = publisher(database)
        start = prepared(database, main)
        backlog = opened(publisher(database).connection, database, start)
        assert len(backlog._lanes) == (2 if slots == 5 else 1)
        assert rows(fetched(backlog)) == ROWS
        backlog.close()
        main.close()


def temporary_slots(database: Any) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = %s"
    return int(database.value(query, (database.name,)))


def test_closing_ends_what_a_session_is_at(
    database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may decode for long before it sends, and would notice only then that nobody reads."""
    smallest_wal(monkeypatch, 65536)
    start = prepared(database, publisher(database))
    backlog = opened(publisher(database).connection, database, start)
    second = backlog._lanes[1]
    second._rows = BinaryRows(second.connection, "SELECT ''::bytea FROM pg_sleep(100)", "")
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
    wait_until(lambda: database.value(asleep, (database.name,)) == 1, "a long query", 20)
    backlog.close()
    wait_until(lambda: temporary_slots(database) == 0, "end of the temporary slots", 20)


@pytest.mark.parametrize("way", [Way.QUERY, Way.SOCKET], ids=["query", "socket"])
def test_a_long_message_of_the_session_that_waits(
    way: Way,
    database: Any,
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smallest_wal(monkeypatch, 65536)
    start = prepared(database, publisher(database))
    database.execute("INSERT INTO t VALUES (-5, repeat('long', 4000000))")
    backlog = opened(publisher(database).connection, database, start)
    assert len(backlog._lanes) == 2
    if way is Way.SOCKET:
        messages = fetched(backlog)
        assert rows(messages) == ROWS + 1
        assert max(map(len, messages)) > 16_000_000
    else:
        with pytest.raises(TooLong):
            fetched(backlog)
    assert backlog.received_lsn > start
    backlog.close()
    wait_until(lambda: temporary_slots(database) == 0, "end of the temporary slots", 20)


def test_who_stops_does_not_wait_for_what_the_publisher_is_at(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    start = prepared(database, publisher(database))
    backlog = opened(publisher(database).connection, database, start)
    (lane,) = backlog._lanes
    stopping = threading.Timer(0.2, backlog.wake)
    stopping.start()
    with pytest.raises(ConnectionFailure, match="the subscription is stopping"):
        lane.connection.query("SELECT pg_sleep(60)")
    stopping.join()
    backlog.close()


def test_what_costs_more_than_streaming_is_streamed(
    database: Any,
    publisher: Callable[[Any], Publisher],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old transaction: all since then would be decoded for each window."""
    monkeypatch.setattr(stream, "_LITTLE", 1 << 20)
    caplog.set_level("INFO", "penstock")
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    with psycopg.connect(database.conninfo) as old:
        old.execute("INSERT INTO t VALUES (-1)")
        for _ in range(3):
            database.execute("SELECT pg_logical_emit_message(false, 'p', repeat('m', 1000000))")
            database.execute("CHECKPOINT")
        database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
        database.execute("INSERT INTO t VALUES (-2)")
        connection = publisher(database).connection
        assert open_backlog(connection, slot, start, TEXT, threshold=0) is None
        assert not connection.is_open
        old.rollback()
    assert "to be decoded before that: streaming it" in caplog.text


def test_a_slot_that_waits_for_standbys_is_streamed(
    publisher: Callable[[Any], Publisher], database_on: Callable[..., Any]
) -> None:
    """Copies of it do not wait, and bring what a standby may not have when it takes over."""
    with EmbeddedPostgres(18, settings={"synchronized_standby_slots": "standby"}) as server:
        database = database_on(server)
        main = publisher(database)
        start = prepared(database, main)
        slot = f"sub_{database.name}"
        main.alter_slot(slot, failover=True)
        assert open_backlog(publisher(database).connection, slot, start, TEXT, threshold=0) is None
        main.alter_slot(slot, failover=False)
        backlog = opened(publisher(database).connection, database, start)
        backlog.close()
        main.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_decodes_from_the_newest_snapshot_of_the_wal(
    version: int, database_on: Callable[..., Any], publisher: Callable[[Any], Publisher]
) -> None:
    """A slot that is moved once keeps the first one that it meets (its restart_lsn)."""
    database = database_on(version)
    main = publisher(database)
    start = prepared(database, main)
    points = []
    for number in range(6):
        database.execute("INSERT INTO t VALUES (%s)", (10_000 + number,))
        database.execute("CHECKPOINT")  # logs who runs
        points.append(main.current_wal_lsn())
    restarts = []
    for passes in (1, 2):
        lane = Lane(ordinary(database), f"sub_{database.name}", TEXT, by_copy=False)
        moved = _moved(quote_literal(lane._copy), points[4], passes)
        lane.connection.query(f"SELECT * FROM {moved}")
        state = slot_state(main.connection, lane._copy)
        assert state is not None and state.restart_lsn is not None
        restarts.append(state.restart_lsn)
        lane.close()
    assert start <= restarts[0] < points[1] < points[2] < restarts[1] < points[4]


def test_a_transaction_of_another_window_is_refused(
    database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server had another idea of where a window begins or ends."""
    smallest_wal(monkeypatch, 65536)
    start = prepared(database, publisher(database))
    begin = Lane.begin
    for wrong in (-65536, 65536):

        def shifted(lane: Lane, window: Window, messages: int, wrong: int = wrong) -> None:
            if window.start > start and wrong < 0:
                window = Window(Lsn(window.start + wrong), window.upto)
            elif wrong > 0:
                window = Window(window.start, Lsn(window.upto + wrong))
            begin(lane, window, messages)

        monkeypatch.setattr(Lane, "begin", shifted)
        backlog = opened(publisher(database).connection, database, start)
        assert len(backlog._lanes) == 2
        with pytest.raises(PublisherError, match=r"a transaction of .* came with those of .* to "):
            fetched(backlog)
        backlog.close()


@WAYS
def test_what_ended_before_the_start_does_not_come(
    way: Way, database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    prepared(database, main)
    between = main.current_wal_lsn()
    database.execute("INSERT INTO t VALUES (10000, 'after', NULL)")
    backlog = opened(publisher(database).connection, database, between, way=way)
    assert b"".join(m[:1] for m in fetched(backlog)) == b"BRIC"


@WAYS
def test_wal_windows_grow_while_they_bring_little(
    way: Way, database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", 4096)
    smallest_wal(monkeypatch, 4096)
    main = publisher(database)
    start = prepared(database, main)
    backlog = opened(publisher(database).connection, database, start, way=way)
    assert rows(fetched(backlog)) == ROWS
    assert backlog._wal > 16 * 4096


@WAYS
def test_the_own_slot_follows_the_cuts_and_no_further(
    way: Way, database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "_MESSAGES", 500)
    monkeypatch.setattr(backlog_module, "_ADVANCE_WAL", 1)
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    backlog = opened(publisher(database).connection, database, start, way=way)
    while backlog.received_lsn == start:
        backlog.receive(0.05)
    durable = backlog.received_lsn
    fetched_before = slot_state(main.connection, slot)
    assert fetched_before is not None and fetched_before.confirmed_flush_lsn == start
    backlog.hold(durable)
    fetched(backlog)
    after = slot_state(main.connection, slot)
    assert after is not None and after.confirmed_flush_lsn == durable


def test_the_own_slot_is_at_the_cut_when_the_stream_begins(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    """And decodes from the newest snapshot on: its WAL is free."""
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    database.execute("CHECKPOINT")
    middle = main.current_wal_lsn()
    database.execute("INSERT INTO t VALUES (-7)")
    database.execute("CHECKPOINT; INSERT INTO t VALUES (-8)")
    backlog = opened(publisher(database).connection, database, start)
    fetched(backlog)
    backlog.hold(backlog.received_lsn)
    backlog.wake()
    backlog.stop()
    backlog.close()
    after = slot_state(main.connection, slot)
    assert after is not None and after.restart_lsn is not None
    assert after.confirmed_flush_lsn == backlog.received_lsn
    assert after.restart_lsn > middle


def test_near_the_head_and_without_a_slot_there_is_none(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    near = publisher(database).connection
    assert open_backlog(near, f"sub_{database.name}", start, TEXT, threshold=1 << 30) is None
    assert not near.is_open
    other = publisher(database).connection
    assert open_backlog(other, "no_such_slot", start, TEXT, threshold=0) is None


def test_a_session_lost_at_the_beginning_is_no_reason_to_stream(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    start = prepared(database, publisher(database))
    lost = publisher(database).connection
    database.execute("SELECT pg_terminate_backend(%s, 5000)", (lost.backend_pid,))
    with pytest.raises(ConnectionFailure):
        open_backlog(lost, f"sub_{database.name}", start, TEXT, threshold=0)
    assert not lost.is_open


def test_a_publisher_without_a_free_slot_streams(
    publisher: Callable[[Any], Publisher], database_on: Callable[..., Any]
) -> None:
    with EmbeddedPostgres(18, settings={"max_replication_slots": 1}) as server:
        database = database_on(server)
        main = publisher(database)
        start = prepared(database, main)
        connection = publisher(database).connection
        assert open_backlog(connection, f"sub_{database.name}", start, TEXT, threshold=0) is None
        main.close()


@WAYS
def test_a_statement_timeout_of_the_role_does_not_end_it(
    way: Way, database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET statement_timeout = '1ms'")
    backlog = opened(publisher(database).connection, database, start, way=way)
    assert backlog._lanes[0].connection.query("SHOW statement_timeout") == [("0",)]
    assert fetched(backlog)


@WAYS
def test_an_error_of_the_function_is_the_publishers(
    way: Way, database_on: Callable[..., Any], publisher: Callable[[Any], Publisher]
) -> None:
    database = database_on(17)  # 18 skips publications that are missing
    main = publisher(database)
    start = prepared(database, main)
    wrong = PgoutputOptions(proto_version=1, publication_names=("no_such_publication",))
    backlog = opened(publisher(database).connection, database, start, wrong, way=way)
    with pytest.raises(PublisherError, match="no_such_publication"):
        fetched(backlog)


@WAYS
def test_a_lost_connection_is_one(
    way: Way, database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    backlog = opened(publisher(database).connection, database, start, way=way)
    backlog._ask()
    pid = backlog._lanes[0].connection.backend_pid
    database.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises((ConnectionFailure, PublisherError)) as failure:
        fetched(backlog)
    assert failure.value.sqlstate in ("57P01", "08006")


@WAYS
def test_stopping_amid_a_window_leaves_the_slot_free(
    way: Way, database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    backlog = opened(publisher(database).connection, database, start, way=way)
    backlog.receive(5, max_frames=10)
    backlog.stop()
    backlog.close()
    state = slot_state(main.connection, slot)
    assert state is not None and state.active_pid is None and state.confirmed_flush_lsn == start
    temporary = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = %s"
    wait_until(
        lambda: not database.value(temporary, (database.name,)), "end of the temporary slots", 20
    )


@pytest.mark.parametrize("way", [Way.QUERY], ids=["query"])
def test_a_message_that_is_too_long_for_a_query_is_copied(
    way: Way,
    database: Any,
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    monkeypatch.setattr(backlog_module, "LONGEST", 100)
    backlog = opened(publisher(database).connection, database, start)
    with pytest.raises(TooLong):
        fetched(backlog)
    backlog.close()
    again = opened(publisher(database).connection, database, start, way=Way.COPY)
    assert rows(fetched(again)) == ROWS
    again.close()


def test_a_session_on_another_server_is_not_asked(
    database_on: Callable[..., Any],
    publisher: Callable[[Any], Publisher],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "penstock")
    database, other = database_on(18), database_on(16)
    start = prepared(database, publisher(database))
    slot = f"sub_{database.name}"
    connection = publisher(database).connection
    session = partial(ordinary, other)
    backlog = open_backlog(connection, slot, start, TEXT, threshold=0, session=session)
    assert backlog is not None and backlog._lanes[0].by_copy
    assert "led to another server" in caplog.text
    assert rows(fetched(backlog)) == ROWS


def test_without_another_session_it_is_copied(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    def refused() -> Connection:
        raise ConnectionFailure("too many clients already")

    start = prepared(database, publisher(database))
    slot = f"sub_{database.name}"
    connection = publisher(database).connection
    backlog = open_backlog(connection, slot, start, TEXT, threshold=0, session=refused)
    assert backlog is not None and backlog._lanes[0].by_copy
    assert rows(fetched(backlog)) == ROWS


@WAYS
def test_a_window_that_broke_off_comes_again_whole(
    way: Way,
    database: Any,
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_module, "_MESSAGES", 500)
    start = prepared(database, publisher(database))
    cut_short = opened(publisher(database).connection, database, start, way=way)
    before = list(cut_short.receive(5, max_frames=700).messages())
    cut_short.close()
    again = opened(publisher(database).connection, database, start, way=way)
    messages = fetched(again)
    assert before and messages[: len(before)] == before
    assert rows(messages) == ROWS
    again.close()


@WAYS
def test_it_rests_between_windows_only(
    way: Way,
    database: Any,
    publisher: Callable[[Any], Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then what comes belongs to one batch, however slowly it comes."""
    monkeypatch.setattr(backlog_module, "_MESSAGES", 500)
    monkeypatch.setattr(backlog_module, "_REST_BYTES", 1)
    start = prepared(database, publisher(database))
    backlog = opened(publisher(database).connection, database, start, way=way)
    rested = 0
    while not backlog.finished:
        came = len(backlog.receive(0.05, max_frames=100)) > 0
        between = backlog.received_lsn > start
        assert backlog.rests(came) is between or backlog.received_lsn == backlog.latest_end_lsn
        rested, start = rested + between, backlog.received_lsn
    assert rested >= 2
    backlog.close()


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(60_000, 70_000), max_size=200),
    limits=st.tuples(st.integers(1, 100_000), st.integers(1, 100)),
    timeout=st.sampled_from([0.0, 5.0]),
)
def test_values_of_any_size_come_in_order(
    postgres: EmbeddedPostgres,
    sizes: list[int],
    limits: tuple[int, int],
    timeout: float,
) -> None:
    lengths = ", ".join(map(str, sizes))
    sql = (
        f"SELECT {bounded('data')} FROM (SELECT decode(repeat(to_hex(16 + i % 200), n), 'hex')"
        f" AS data FROM unnest('{{{lengths}}}'::int[]) WITH ORDINALITY AS s(n, i)) AS t"
    )
    expected = [bytes([16 + i % 200]) * size for i, size in enumerate(sizes, 1)]
    found: list[bytes] = []
    with Connection.connect(
        ConnInfo.parse(postgres.conninfo()), "penstock", replication=False
    ) as connection:
        reading = BinaryRows(connection, sql, "could not read: ")
        while not reading.ended:
            found += reading.read(timeout, max_bytes=limits[0], max_rows=limits[1])
        assert connection.query("SELECT 1") == [("1",)]
    assert found == expected


@pytest.mark.parametrize("version", [17])
@WAYS
def test_an_encrypted_connection_brings_the_same(
    way: Way,
    version: int,
    database_on: Callable[..., Any],
    publisher: Callable[[Any], Publisher],
    postgres_version: Callable[[int], EmbeddedPostgres],
) -> None:
    postgres_version(version)  # or it is skipped
    with EmbeddedPostgres(version) as server:
        tls.switch_on(server)
        database = database_on(server)
        main = publisher(database)
        start = prepared(database, main)
        encrypted = f"{database.conninfo} sslmode=require"
        connection = Connection.connect(ConnInfo.parse(encrypted), "penstock")
        session = partial(
            Connection.connect, ConnInfo.parse(encrypted), "penstock", replication=False
        )
        backlog = open_backlog(
            connection,
            f"sub_{database.name}",
            start,
            BINARY,
            threshold=0,
            session=None if way.by_copy else session,
        )
        assert backlog is not None
        assert backlog._lanes[0].by_copy is way.by_copy
        assert backlog._lanes[0].connection.pgconn.ssl_in_use
        messages = fetched(backlog)
        backlog.close()
        expected = streamed(main, f"sub_{database.name}", BINARY, backlog.received_lsn)
        assert without_relations(messages) == without_relations(expected)
        assert rows(messages) == ROWS
        main.close()
