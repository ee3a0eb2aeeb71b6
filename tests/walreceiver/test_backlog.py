"""A backlog fetched by COPY holds what a stream would have brought; real servers are asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import ConnectionFailure, PublisherError
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import XLOGDATA_HEADER
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver import backlog as backlog_module
from penstock.walreceiver.backlog import Backlog, open_backlog
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import slot_state
from penstock.walreceiver.stream import ReplicationStream

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


def fetched(backlog: Backlog) -> list[bytes]:
    """The messages of all windows, without headers."""
    frames: list[bytes] = []
    deadline = time.monotonic() + 60
    while not backlog.finished:
        assert time.monotonic() < deadline
        frames += backlog.receive(0.05)
    assert all(frame[:1] == b"w" for frame in frames)
    return [frame[XLOGDATA_HEADER:] for frame in frames]


def streamed(publisher: Publisher, slot: str, options: PgoutputOptions, until: Lsn) -> list[bytes]:
    stream = ReplicationStream(publisher.connection)
    stream.start(slot, Lsn(0), options.text())
    frames: list[bytes] = []
    deadline = time.monotonic() + 60
    while stream.received_lsn < until:
        assert time.monotonic() < deadline
        frames += stream.receive(0.05)
    stream.close()
    return [frame[XLOGDATA_HEADER:] for frame in frames]


def rows(messages: list[bytes]) -> int:
    return sum(message[:1] in (b"I", b"U", b"D") for message in messages)


def without_relations(messages: list[bytes]) -> list[bytes]:
    """Each window says the relations again."""
    return [message for message in messages if message[:1] != b"R"]


@pytest.mark.parametrize("options", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("version", VERSIONS)
def test_windows_hold_what_a_stream_brings(
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
    backlog = open_backlog(publisher(database).connection, slot, start, options, threshold=0)
    assert backlog is not None
    messages = fetched(backlog)
    assert backlog.received_lsn >= backlog.latest_end_lsn
    backlog.close()
    assert [m[:1] for m in messages].count(b"R") > 1
    expected = streamed(main, slot, options, backlog.received_lsn)
    assert without_relations(messages) == without_relations(expected)
    assert rows(messages) == ROWS


def test_what_ended_before_the_start_does_not_come(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    prepared(database, main)
    between = main.current_wal_lsn()
    database.execute("INSERT INTO t VALUES (10000, 'after', NULL)")
    backlog = open_backlog(
        publisher(database).connection, f"sub_{database.name}", between, TEXT, threshold=0
    )
    assert backlog is not None
    assert b"".join(m[:1] for m in fetched(backlog)) == b"BRIC"


def test_wal_windows_grow_while_they_bring_little(
    database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "_FIRST_WAL", 4096)
    main = publisher(database)
    start = prepared(database, main)
    backlog = open_backlog(
        publisher(database).connection, f"sub_{database.name}", start, TEXT, threshold=0
    )
    assert backlog is not None
    assert rows(fetched(backlog)) == ROWS
    assert backlog._wal > 16 * 4096


def test_the_own_slot_follows_the_cuts_and_no_further(
    database: Any, publisher: Callable[[Any], Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog_module, "_MESSAGES", 500)
    monkeypatch.setattr(backlog_module, "_ADVANCE_WAL", 1)
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    backlog = open_backlog(publisher(database).connection, slot, start, TEXT, threshold=0)
    assert backlog is not None
    while backlog.received_lsn == start:
        backlog.receive(0.05)
    durable = backlog.received_lsn
    fetched_before = slot_state(main.connection, slot)
    assert fetched_before is not None and fetched_before.confirmed_flush_lsn == start
    backlog.hold(durable)
    fetched(backlog)
    after = slot_state(main.connection, slot)
    assert after is not None and after.confirmed_flush_lsn == durable


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


def test_a_statement_timeout_of_the_role_does_not_end_it(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET statement_timeout = '1ms'")
    slot = f"sub_{database.name}"
    connection = publisher(database).connection
    backlog = open_backlog(connection, slot, start, TEXT, threshold=0)
    assert backlog is not None
    assert connection.query("SHOW statement_timeout") == [("0",)]
    assert fetched(backlog)


def test_an_error_of_the_function_is_the_publishers(
    database_on: Callable[..., Any], publisher: Callable[[Any], Publisher]
) -> None:
    database = database_on(17)  # 18 skips publications that are missing
    main = publisher(database)
    start = prepared(database, main)
    wrong = PgoutputOptions(proto_version=1, publication_names=("no_such_publication",))
    backlog = open_backlog(
        publisher(database).connection, f"sub_{database.name}", start, wrong, threshold=0
    )
    assert backlog is not None
    with pytest.raises(PublisherError, match="no_such_publication"):
        fetched(backlog)


def test_a_lost_connection_is_one(database: Any, publisher: Callable[[Any], Publisher]) -> None:
    main = publisher(database)
    start = prepared(database, main)
    connection = publisher(database).connection
    backlog = open_backlog(connection, f"sub_{database.name}", start, TEXT, threshold=0)
    assert backlog is not None
    backlog.receive(5, max_frames=10)
    database.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.backend_pid,))
    with pytest.raises((ConnectionFailure, PublisherError)) as failure:
        fetched(backlog)
    assert failure.value.sqlstate in ("57P01", "08006")


def test_stopping_amid_a_window_leaves_the_slot_free(
    database: Any, publisher: Callable[[Any], Publisher]
) -> None:
    main = publisher(database)
    start = prepared(database, main)
    slot = f"sub_{database.name}"
    backlog = open_backlog(publisher(database).connection, slot, start, TEXT, threshold=0)
    assert backlog is not None
    backlog.receive(5, max_frames=10)
    backlog.stop()
    backlog.close()
    state = slot_state(main.connection, slot)
    assert state is not None and state.active_pid is None and state.confirmed_flush_lsn == start
    temporary = "SELECT count(*) FROM pg_replication_slots WHERE temporary AND database = %s"
    wait_until(
        lambda: not database.value(temporary, (database.name,)), "end of the temporary slots", 20
    )
