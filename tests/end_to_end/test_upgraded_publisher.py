"""pg_upgrade of the publisher, as docs/failover.md says, beside a stock subscriber that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import (
    InvalidParameterValue,
    NotInPrerequisiteState,
    PenstockError,
    StateMismatch,
    UndefinedObject,
)
from penstock.node.status import SubscriptionStatus
from upgrade import upgraded

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES: Final = (
    "plain",
    "filtered",
    "mood",
    "parts",
    "computed",
    "vacuumed",
    "cast_anew",
    "came_back",
)
_SETUP: Final = """
CREATE TYPE feeling AS ENUM ('sad', 'glad');
CREATE TABLE plain (id int PRIMARY KEY, gone text, v text);
ALTER TABLE plain DROP gone;
ALTER TABLE plain ADD c int NOT NULL DEFAULT 5;
CREATE TABLE filtered (id int PRIMARY KEY, v text);
CREATE TABLE mood (id int PRIMARY KEY, v feeling);
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (100000);
CREATE TABLE computed (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE vacuumed (id int PRIMARY KEY, v int);
CREATE TABLE cast_anew (id int PRIMARY KEY, v int);
CREATE TABLE came_back (id int PRIMARY KEY, v int);
INSERT INTO plain SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO filtered SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO mood SELECT i, 'sad' FROM generate_series(1, 50) i;
INSERT INTO parts SELECT i * 3, 'v' FROM generate_series(1, 50) i;
INSERT INTO computed SELECT i FROM generate_series(1, 50) i;
INSERT INTO vacuumed SELECT i, i FROM generate_series(1, 50) i;
INSERT INTO cast_anew SELECT i, i FROM generate_series(1, 50) i;
INSERT INTO came_back SELECT i, i FROM generate_series(1, 50) i;
CREATE PUBLICATION p FOR TABLE plain, filtered WHERE (id > 10), mood, parts, computed, vacuumed,
  cast_anew, came_back WITH (publish_via_partition_root = true, publish_generated_columns = stored);
CREATE PUBLICATION other FOR TABLE plain
"""
_WHERE: Final = {"filtered": "id > 10"}


def _same(node: LocalNode, publisher: Database, *tables: str) -> None:
    with publisher.connect() as connection:
        for table in tables or _TABLES:
            where = _WHERE.get(table, "true")
            as_text = {"v"} if table == "mood" else ()
            theirs = publisher_rows(connection, f"public.{table}", where=where, as_text=as_text)
            assert not (found := difference(table, theirs, node.rows(table))), found


def _all_confirmed(publisher: Database) -> None:
    """As pg_upgrade wants it."""
    query = "SELECT bool_and(confirmed_flush_lsn >= '{}') FROM pg_replication_slots"
    end = publisher.value("SELECT pg_current_wal_lsn()")
    wait_until(lambda: publisher.value(query.format(end)), "the slots' end")


def _compared(node: LocalNode, since: float = 0.0) -> None:
    """Wait until the background has compared all tables, since a time."""

    def is_equal(status: SubscriptionStatus) -> bool:
        longest = time.monotonic() - since
        seconds = [table.verified_seconds for table in status.tables]
        return all(each is not None and each < longest for each in seconds)

    node.wait_for("s", "comparisons of all tables", is_equal)


@contextmanager
def moved(
    tmp_path: Path, spark: Any, options: str = ""
) -> Iterator[tuple[LocalNode, Database, Database]]:
    """A node whose publisher has been upgraded, and which has been connected to what it is now; a
    stock subscriber that went on by itself."""
    with (
        EmbeddedPostgres(18) as old,
        EmbeddedPostgres(18) as stock,
        LocalNode(tmp_path / "node", spark) as node,
    ):
        publisher, subscriber = Database(old, "postgres"), Database(stock, "postgres")
        publisher.execute(_SETUP)
        subscriber.execute("CREATE TABLE plain (id int PRIMARY KEY, v text, c int)")
        connection = f"CONNECTION '{publisher.conninfo}' PUBLICATION other"
        subscriber.execute(f"CREATE SUBSCRIPTION stock {connection}")
        node.subscribe("s", publisher, "p", options)
        node.caught_up("s", publisher)
        publisher.execute("UPDATE plain SET v = 'before' WHERE id < 5")
        node.caught_up("s", publisher)
        if "verify_interval" in options:
            _compared(node)
        _all_confirmed(publisher)
        with upgraded(old) as new:
            publisher = Database(new, "postgres")
            subscriber.execute(f"ALTER SUBSCRIPTION stock CONNECTION '{publisher.conninfo}'")
            yield node, publisher, subscriber


@part_of_make_faults
def test_a_subscription_goes_on_after_pg_upgrade(tmp_path: Path, spark: Any) -> None:
    """By the statement of the hint, and not by itself; what was changed since is found."""
    with moved(tmp_path, spark, "on_table_error = park, verify_interval = '1 day'") as (
        node,
        publisher,
        subscriber,
    ):
        before = node.cut()
        publisher.execute("VACUUM FULL vacuumed")
        publisher.execute("VACUUM FULL plain")
        publisher.execute("ALTER TABLE cast_anew ALTER v TYPE int USING v + 1")
        publisher.execute("ALTER PUBLICATION p DROP TABLE came_back")
        publisher.execute("INSERT INTO came_back VALUES (51, 51)")
        publisher.execute("ALTER PUBLICATION p ADD TABLE came_back")
        publisher.execute("CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (-9) TO (0)")
        publisher.execute("INSERT INTO parts VALUES (-1, 'after'); TRUNCATE plain")
        publisher.execute("INSERT INTO plain VALUES (1000, 'after')")
        publisher.execute("ALTER TYPE feeling RENAME VALUE 'sad' TO 'blue'")
        publisher.execute("INSERT INTO mood VALUES (1000, 'blue')")
        there = "SELECT count(*) = 1 FROM plain WHERE id = 1000"
        wait_until(lambda: subscriber.value(there), "the stock subscriber")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{publisher.conninfo}'")
        status = node.stopped("s")
        assert "is connected to another publisher" in str(status.error)
        number = publisher.value("SELECT system_identifier FROM pg_control_system()")
        statement = f"ALTER SUBSCRIPTION s SET (system_identifier = '{number}')"
        assert f"{statement}." in str(status.error_hint)
        began = time.monotonic()
        told = node.node.sql(statement)
        assert [notice.message for notice in told.notices] == [
            f'subscription "s" follows system identifier {number} from '
            + publisher.value(
                "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's'"
            )
        ]
        node.caught_up_but_parked("s", publisher)
        parked = {table.name: table.error for table in node.status("s").tables if table.error}
        assert set(parked) == {"public.cast_anew", "public.came_back"}, parked
        assert node.cut().lsn > before.lsn
        _same(node, publisher, *(set(_TABLES) - {"cast_anew", "came_back"}))
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.caught_up("s", publisher)
        _same(node, publisher)
        assert node.node.verify().equal
        _compared(node, began)


@part_of_make_faults
def test_what_cannot_be_the_upgraded_publisher_is_refused(tmp_path: Path, spark: Any) -> None:
    with (
        EmbeddedPostgres(18, settings={"max_prepared_transactions": 2}) as first,
        EmbeddedPostgres(18) as second,
        LocalNode(tmp_path / "node", spark) as node,
    ):
        publisher, other = Database(first, "postgres"), Database(second, "postgres")
        table = "CREATE TABLE t (id int PRIMARY KEY)"
        for server in (publisher, other):
            server.execute(f"{table}; INSERT INTO t VALUES (1)")
        publisher.execute("CREATE PUBLICATION p FOR TABLE t")
        node.subscribe("s", publisher, "p", "two_phase")
        node.caught_up("s", publisher)
        publisher.execute("SELECT pg_switch_wal()")
        publisher.execute("BEGIN; INSERT INTO t VALUES (2); PREPARE TRANSACTION 'x'")
        node.caught_up("s", publisher)
        number = other.value("SELECT system_identifier FROM pg_control_system()")

        def refused(error: type[PenstockError], text: str, given: str = str(number)) -> None:
            with pytest.raises(error) as caught:
                node.node.sql(f"ALTER SUBSCRIPTION s SET (system_identifier = '{given}')")
            told = f"{caught.value.message} {caught.value.detail}"
            assert text in told, told
            assert caught.value.hint

        refused(InvalidParameterValue, 'invalid value for parameter "system_identifier"', "x")
        refused(StateMismatch, f"and not {number}")  # it is connected to the former one
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{other.conninfo}'")
        node.stopped("s")
        refused(UndefinedObject, 'publication "p" does not exist')
        other.execute("CREATE PUBLICATION p FOR TABLE t")
        refused(UndefinedObject, 'replication slot "s" does not exist')
        other.execute("CREATE DATABASE elsewhere")
        slot = "SELECT pg_create_logical_replication_slot('s', 'pgoutput')"
        Database(second, "elsewhere").execute(slot)
        refused(UndefinedObject, "another database or output plugin")
        other.execute("SELECT pg_drop_replication_slot('s')")
        other.execute(slot)
        refused(StateMismatch, 'Replication slot "s" is at')
        for number_of_row in (3, 4):
            other.execute(f"INSERT INTO t VALUES ({number_of_row})")
            other.execute("SELECT pg_switch_wal()")
        other.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_lsn())")
        refused(NotInPrerequisiteState, "prepared transactions exist")
        oid = other.value("SELECT 't'::regclass::oid")
        other.execute(f"DROP TABLE t; {table}; ALTER PUBLICATION p ADD TABLE t")
        refused(StateMismatch, f"there, and {oid} at the publisher")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{second.conninfo('elsewhere')}'")
        refused(StateMismatch, "The database has OID")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{publisher.conninfo}'")
        publisher.execute("COMMIT PREPARED 'x'")
        node.caught_up("s", publisher)
        assert sorted(node.rows("t")) == [(1,), (2,)]
