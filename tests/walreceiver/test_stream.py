"""Streaming and feedback against real servers, through a proxy where the network misbehaves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from faults.heavy import part_of_make_faults
from fix_proxy import Proxy
from penstock.embedded import EmbeddedPostgres
from penstock.errors import ConnectionFailure, PenstockError, PublisherError
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.stream import ReplicationStream

VERSIONS = [14, 15, 16, 17, 18]
OPTIONS = "proto_version '1', publication_names 'p'"


class Subscriber:
    """A slot with a stream on it, and what has come."""

    def __init__(self, database: Any, conninfo: str | None = None, **settings: Any) -> None:
        self.database = database
        self.publisher = Publisher.connect(conninfo or database.conninfo)
        self.stream = ReplicationStream(self.publisher.connection, **settings)
        self.frames: list[bytes] = []

    def start(self, slot: str = "sub", lsn: Lsn | None = None, options: str = OPTIONS) -> None:
        if lsn is None:
            lsn = self.publisher.create_slot(slot).consistent_point
        self.stream.start(slot, lsn, options)

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Receive until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "condition not reached"
            self.frames += self.stream.receive(0.05)

    def kinds(self) -> str:
        return "".join(chr(frame[XLOGDATA_HEADER]) for frame in self.frames)

    def confirmed(self) -> Lsn:
        return Lsn.parse(
            self.database.value(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'sub'"
            )
        )

    def has_confirmed(self, lsn: Lsn) -> bool:
        return self.confirmed() >= lsn

    def close(self) -> None:
        self.stream.close()


@pytest.fixture
def subscribe() -> Iterator[Callable[..., Subscriber]]:
    opened: list[Subscriber] = []

    def create(database: Any, conninfo: str | None = None, **settings: Any) -> Subscriber:
        opened.append(Subscriber(database, conninfo, **settings))
        return opened[-1]

    yield create
    for subscriber in opened:
        subscriber.close()


def prepared(database: Any) -> Any:
    database.execute(
        "CREATE TABLE t (i int PRIMARY KEY, v text); CREATE TABLE unpublished (i int);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    return database


def wal_lsn(database: Any) -> Lsn:
    return Lsn.parse(database.value("SELECT pg_current_wal_lsn()::text"))


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_come_whole_and_in_order(
    version: int, database_on: Callable[..., Any], subscribe: Callable[..., Subscriber]
) -> None:
    database = prepared(database_on(version))
    subscriber = subscribe(database)
    subscriber.start()
    database.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 2500) i")
    database.execute("UPDATE t SET v = 'x' WHERE i = 1; DELETE FROM t WHERE i = 2; TRUNCATE t")
    subscriber.until(lambda: subscriber.kinds().count("C") >= 2)
    assert subscriber.kinds().replace("R", "") == "B" + "I" * 2500 + "CBUDTC"
    assert subscriber.kinds().startswith("BRI")
    assert all(frame[:1] == b"w" for frame in subscriber.frames)
    assert subscriber.stream.frames_received == len(subscriber.frames)
    assert subscriber.stream.received_lsn >= wal_lsn(database) - 1024


@pytest.mark.parametrize("version", VERSIONS)
def test_stop_and_go_on_with_commands(
    version: int, database_on: Callable[..., Any], subscribe: Callable[..., Subscriber]
) -> None:
    database = prepared(database_on(version))
    subscriber = subscribe(database)
    subscriber.start()
    database.execute("INSERT INTO t SELECT i FROM generate_series(1, 5000) i")
    subscriber.until(lambda: bool(subscriber.frames))
    subscriber.stream.stop()
    assert subscriber.publisher.current_wal_lsn() > 0
    assert subscriber.publisher.drop_slot("sub")


def test_nothing_confirmed_while_pending_everything_once_idle(
    database: Any, subscribe: Callable[..., Subscriber]
) -> None:
    prepared(database)
    subscriber = subscribe(database, status_interval_s=0.05)
    subscriber.start()
    before = subscriber.confirmed()
    database.execute("INSERT INTO t VALUES (1, 'one')")
    database.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
    subscriber.until(lambda: subscriber.kinds() == "BRIC")
    pending = wal_lsn(database)
    subscriber.until(lambda: subscriber.stream.received_lsn >= pending)
    assert subscriber.confirmed() < pending
    assert subscriber.stream.flush_lsn == before
    end_of_transaction = Lsn(int.from_bytes(subscriber.frames[-1][9:17], "big"))
    subscriber.stream.confirm(end_of_transaction, len(subscriber.frames))
    subscriber.until(lambda: subscriber.confirmed() >= pending)


def test_a_filtered_stream_advances_the_slot(
    database: Any, subscribe: Callable[..., Subscriber]
) -> None:
    prepared(database)
    subscriber = subscribe(database)
    subscriber.start()
    for _ in range(3):
        database.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
        target = wal_lsn(database)
        subscriber.until(partial(subscriber.has_confirmed, target))
    assert subscriber.frames == []


def test_hold_stops_the_slot(database: Any, subscribe: Callable[..., Subscriber]) -> None:
    prepared(database)
    subscriber = subscribe(database)
    subscriber.start()
    held = subscriber.confirmed()
    subscriber.stream.hold(held)
    database.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
    target = wal_lsn(database)
    subscriber.until(lambda: subscriber.stream.received_lsn >= target)
    assert subscriber.confirmed() == held
    subscriber.stream.hold(None)
    subscriber.until(lambda: subscriber.confirmed() >= target)


def test_confirm_wakes_a_waiting_receiver(
    database: Any, subscribe: Callable[..., Subscriber]
) -> None:
    prepared(database)
    subscriber = subscribe(database)
    subscriber.start()
    subscriber.until(lambda: subscriber.stream.received_lsn > 0)
    subscriber.stream.receive(0.1)
    subscriber.stream.confirm(subscriber.stream.received_lsn, 0)
    started = time.monotonic()
    assert subscriber.stream.receive(30) == []
    assert time.monotonic() - started < 10


@part_of_make_faults
def test_reply_requests_are_answered_and_pauses_survived(
    database_on: Callable[..., Any], subscribe: Callable[..., Subscriber]
) -> None:
    with EmbeddedPostgres(18, settings={"wal_sender_timeout": "1s"}) as server:
        database = prepared(database_on(server))
        subscriber = subscribe(database, status_interval_s=1000)
        subscriber.start()
        watch = database.connect()
        alive = "SELECT count(*) FROM pg_stat_replication"
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            subscriber.stream.receive(0.05)
        assert watch.execute(alive).fetchone() == (1,)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            subscriber.stream.tick()
            watch.execute("SELECT pg_sleep(0.05)")
        assert watch.execute(alive).fetchone() == (1,)
        subscriber.close()


def test_reply_requests_alone_keep_the_walsender(
    database_on: Callable[..., Any], subscribe: Callable[..., Subscriber]
) -> None:
    with EmbeddedPostgres(18, settings={"wal_sender_timeout": "1s"}) as server:
        database = prepared(database_on(server))
        subscriber = subscribe(database, status_interval_s=0)
        subscriber.start()
        subscriber.stream._feedback._heartbeat = math.inf
        watch = database.connect()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            subscriber.stream.receive(0.1)
        assert watch.execute("SELECT count(*) FROM pg_stat_replication").fetchone() == (1,)
        subscriber.close()


def test_a_deaf_publisher_times_out(
    database: Any, subscribe: Callable[..., Subscriber], make_proxy: Callable[[int], Any]
) -> None:
    prepared(database)
    proxy = make_proxy(database.server.port)
    subscriber = subscribe(database, proxy.conninfo(database.conninfo), timeout_s=1.0)
    subscriber.start()
    subscriber.until(lambda: subscriber.stream.received_lsn > 0)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:  # an idle publisher answers the pings
        subscriber.stream.receive(0.2)
    proxy.stall()
    with pytest.raises(ConnectionFailure) as caught:
        subscriber.until(lambda: False)
    assert caught.value.message == "terminating logical replication worker due to timeout"


def failure_of(subscriber: Subscriber) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        subscriber.until(lambda: False)
    return caught.value


def test_a_cut_connection_is_a_connection_failure(
    database: Any, subscribe: Callable[..., Subscriber], make_proxy: Callable[[int], Any]
) -> None:
    prepared(database)
    proxy = make_proxy(database.server.port)
    subscriber = subscribe(database, proxy.conninfo(database.conninfo))
    subscriber.start()
    proxy.cut_after(10_007)
    database.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    failure = failure_of(subscriber)
    assert isinstance(failure, ConnectionFailure)
    assert failure.message.startswith("could not receive data from WAL stream: ")
    whole = len(subscriber.frames)
    assert 0 < whole < 1002
    assert set(subscriber.kinds()) <= set("BRI"), "only whole messages"
    again = subscribe(database)
    database.rows(
        "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active"
    )
    again.start(lsn=Lsn(0))
    again.until(lambda: again.kinds().endswith("C"))
    assert again.kinds() == "BR" + "I" * 1000 + "C"


def test_an_error_in_the_stream(database: Any, subscribe: Callable[..., Subscriber]) -> None:
    """18 only warns of a missing publication; a filter that fails is an error on all."""
    database.execute(
        "CREATE TABLE t (i int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t WHERE (1 / i > 0)"
    )
    subscriber = subscribe(database)
    subscriber.start()
    database.execute("INSERT INTO t VALUES (0)")
    failure = failure_of(subscriber)
    assert isinstance(failure, PublisherError)
    assert failure.sqlstate == "22012"
    assert failure.message == "could not receive data from WAL stream: division by zero"
    assert 'slot "sub", output plugin "pgoutput", in the change callback' in (failure.detail or "")


def test_unknown_options(database: Any, subscribe: Callable[..., Subscriber]) -> None:
    prepared(database)
    with pytest.raises(PublisherError) as caught:
        subscribe(database).start(options="proto_version '99', publication_names 'p'")
    assert caught.value.sqlstate == "0A000"
    assert caught.value.message.startswith(
        "could not start WAL streaming: client sent proto_version=99"
    )


@pytest.mark.postgres
@pytest.mark.parametrize("version", [14, 18])
@pytest.mark.parametrize("mode", ["fast", "immediate", "kill9"])
def test_server_restart_in_mid_stream(
    version: int,
    mode: str,
    database_on: Callable[..., Any],
    subscribe: Callable[..., Subscriber],
) -> None:
    with EmbeddedPostgres(version) as server:
        database = prepared(database_on(server))
        subscriber = subscribe(database, status_interval_s=0.05)
        subscriber.start()
        database.execute("INSERT INTO t VALUES (1, 'one')")
        subscriber.until(lambda: subscriber.kinds() == "BRIC")
        subscriber.stream.confirm(subscriber.stream.received_lsn, len(subscriber.frames))
        subscriber.until(lambda: subscriber.confirmed() >= subscriber.stream.received_lsn)
        if mode == "kill9":
            server.kill9()
        else:
            # A fast shutdown waits until we have confirmed everything, so it runs beside us.
            stopping = stop_in_background(server, mode)
        failure = failure_of(subscriber)
        assert isinstance(failure, ConnectionFailure), failure.report()
        if mode == "fast":
            assert failure.message == "data stream from publisher has ended"
        if mode != "kill9":
            stopping.join()
        server.start()
        again = subscribe(database)
        again.start(lsn=Lsn(0))
        database.execute("INSERT INTO t VALUES (2, 'two')")
        again.until(lambda: again.kinds().endswith("C"))
        assert again.kinds().count("I") >= 1
        again.close()


@pytest.mark.postgres
@part_of_make_faults
def test_a_publisher_that_ends_the_stream_and_closes_nothing(
    database_on: Callable[..., Any],
    subscribe: Callable[..., Subscriber],
    make_proxy: Callable[[int], Proxy],
) -> None:
    with EmbeddedPostgres(18) as server:
        database = prepared(database_on(server))
        proxy = make_proxy(server.port)
        subscriber = subscribe(
            database, proxy.conninfo(database.conninfo), status_interval_s=0.05, timeout_s=1.5
        )
        subscriber.start()
        database.execute("INSERT INTO t VALUES (1, 'one')")
        subscriber.until(lambda: subscriber.kinds() == "BRIC")
        subscriber.stream.confirm(subscriber.stream.received_lsn, len(subscriber.frames))
        proxy.keep()
        stopping = stop_in_background(server, "fast")
        failure = failure_of(subscriber)
        assert failure.message == "data stream from publisher has ended"
        stopping.join()


def stop_in_background(server: EmbeddedPostgres, mode: str) -> Any:

    thread = threading.Thread(target=server.stop, args=(mode,))
    thread.start()
    return thread
