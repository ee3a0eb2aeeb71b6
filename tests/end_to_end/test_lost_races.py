"""A batch conflicts with a commit of somebody else: no table gets any of its transaction.

Others write to a target while the session runs, which has the table as it was before. Beside a
stock subscriber, PostgreSQL 17.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.compare import Row, delta_rows, query
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import free_port, wait_until
from penstock.lakehouse.cuts import Cuts
from penstock.lakehouse.history_table import history_of
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

TABLES = (
    "CREATE TABLE other (i int PRIMARY KEY, v text); CREATE TABLE sk (i int PRIMARY KEY, v text);"
)
PARTITIONED = """
CREATE TABLE other (i int PRIMARY KEY, v text) PARTITION BY RANGE (i);
CREATE TABLE other_0 PARTITION OF other FOR VALUES FROM (MINVALUE) TO (3);
CREATE TABLE other_3 PARTITION OF other FOR VALUES FROM (3) TO (MAXVALUE);
CREATE TABLE sk (i int PRIMARY KEY, v text) PARTITION BY HASH (i);
CREATE TABLE sk_0 PARTITION OF sk FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE sk_1 PARTITION OF sk FOR VALUES WITH (MODULUS 2, REMAINDER 1);
"""
FINISHED = re.compile(
    r'relation "public\.sk" in transaction \d+, finished at ([0-9A-F]+/[0-9A-F]+)'
)


@pytest.fixture
def node(local_node: Callable[..., LocalNode]) -> LocalNode:
    """One whose batches wait so long that one has all that a test sends."""
    trust = ["host all all 127.0.0.1/32 trust"]
    return local_node(apply_batch_delay="3s", port=free_port(), hba=trust)


@pytest.fixture
def stock(database: Database, database_on: Callable[[int], Database]) -> Iterator[Database]:
    """A server that subscribes to the publication p of ``database``."""
    server = database_on(17)
    server.execute(TABLES)
    yield server
    server.execute("DROP SUBSCRIPTION IF EXISTS stock")


def begin(node: LocalNode, stock: Database, database: Database, options: str, made: str) -> None:
    """Both follow empty tables, the node in a session that has them open."""
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR TABLE other, sk")
    if made:
        node.node.sql(made)
    node.subscribe("s", database, "p", f"disable_on_error = true{options}")
    stock.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{database.conninfo}' PUBLICATION p"
        " WITH (disable_on_error = true)"
    )
    synced = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    wait_until(lambda: stock.value(synced), "copied tables", 90)
    # The tables are loaded by batches before.
    database.execute("BEGIN; INSERT INTO other VALUES (0); INSERT INTO sk VALUES (0); COMMIT")
    node.caught_up("s", database)


def newest(node: LocalNode, table: str) -> list[Row]:
    """Of the newest version of a table, or of all its partitions."""
    tables = node.cut().tables.items()
    uris = [at.uri for (_, name), at in tables if re.fullmatch(rf"{table}(_\d)?", name)]
    return sorted(row[:2] for uri in uris for row in delta_rows(uri))


def wait_disabled(stock: Database) -> None:
    enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'stock'"
    wait_until(lambda: not stock.value(enabled), "the disabling", 60)


def by_session(node: LocalNode, spark: Any) -> None:
    node.node.sql("CREATE ROLE lake LOGIN SUPERUSER")
    assert node.node.serving is not None
    conninfo = f"host=127.0.0.1 port={node.node.serving.port} dbname=lake user=lake"
    with psycopg.connect(conninfo, autocommit=True) as session:
        session.execute("INSERT INTO sk VALUES (1, 'local')")


def by_spark(node: LocalNode, spark: Any) -> None:
    uri = node.cut().tables["public", "sk"].uri
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES (1, 'local')").collect()


def by_delta_rs(node: LocalNode, spark: Any) -> None:
    uri = node.cut().tables["public", "sk"].uri
    rows = pa.table({"i": pa.array([1], pa.int32()), "v": ["local"]})
    write_deltalake(uri.removeprefix("file://"), rows, mode="append")


Write = Callable[[LocalNode, Any], None]
SKIPPED = [(0, None), (1, "x"), (4, "x")]


def publish(database: Database) -> None:
    database.execute("INSERT INTO other VALUES (1, 'x')")
    database.execute(
        "BEGIN; INSERT INTO other VALUES (2, 'x'); INSERT INTO sk VALUES (1, 'x'); COMMIT"
    )
    database.execute("INSERT INTO other VALUES (4, 'x')")


def skip(node: LocalNode, stock: Database, ours: str, theirs: str) -> None:
    node.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{ours}'); ALTER SUBSCRIPTION s ENABLE")
    stock.execute(f"ALTER SUBSCRIPTION stock SKIP (lsn = '{theirs}')")
    stock.execute("ALTER SUBSCRIPTION stock ENABLE")


@pytest.mark.parametrize(
    ("write", "options", "made"),
    [
        (by_session, "", ""),
        (by_spark, "", ""),
        (by_delta_rs, "", ""),
        (by_session, "", PARTITIONED),
        (by_session, ", history = true", ""),
        (by_session, ", streaming = parallel", ""),
        (by_session, ", streaming = on", ""),
        in_make_faults(by_session, ", streaming = parallel", PARTITIONED),
    ],
)
def test_a_conflict_is_found_before_any_commit(
    node: LocalNode,
    database: Database,
    stock: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
    write: Write,
    options: str,
    made: str,
) -> None:
    if "streaming" in options:
        for setting in (
            "logical_decoding_work_mem = '64kB'",
            "debug_logical_replication_streaming = immediate",
        ):
            database.execute(f"ALTER DATABASE {database.name} SET {setting}")
    begin(node, stock, database, options, made)
    caplog.set_level(logging.INFO, "penstock")
    log_size = stock.server.log_path.stat().st_size
    write(node, spark)
    stock.execute("INSERT INTO sk VALUES (1, 'local')")
    publish(database)
    status = node.stopped("s")
    wait_disabled(stock)
    lsn = FINISHED.findall("\n".join(caplog.messages))[-1]
    server_log = stock.server.log_path.read_bytes()[log_size:].decode()
    theirs = FINISHED.findall(server_log)[-1]
    if not options:
        assert lsn == theirs
    assert f"SKIP (lsn = '{lsn}')" in str(status.error_hint)
    before = [(0, None), (1, "x")]
    assert newest(node, "other") == before == sorted(stock.rows("TABLE other"))
    assert node.status("s").cut_lsn is not None
    assert sorted(row[:2] for row in _at_cut(node, "other")) == before

    skip(node, stock, lsn, theirs)
    node.caught_up("s", database)
    wait_until(lambda: sorted(stock.rows("TABLE other")) == SKIPPED, "the stock subscriber")
    assert newest(node, "other") == SKIPPED
    assert newest(node, "sk") == sorted(stock.rows("TABLE sk")) == [(0, None), (1, "local")]
    assert "cleared" not in caplog.text
    if "history" in options:
        history = node.cut().tables[history_of(("public", "other"))]
        changes = query("SELECT i FROM t", t=DeltaTable(history.uri, version=history.version))
        assert sorted(changes["i"].to_pylist()) == [0, 1, 4]


def _at_cut(node: LocalNode, table: str) -> list[Row]:
    tables = node.cut().tables.items()
    found = [at for (_, name), at in tables if re.fullmatch(rf"{table}(_\d)?", name)]
    return [row for at in found for row in delta_rows(at.uri, at.version)]


def test_a_column_that_is_dropped_here_is_found_before_any_commit(
    node: LocalNode,
    database: Database,
    stock: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin(node, stock, database, "", "")
    caplog.set_level(logging.INFO, "penstock")
    node.node.sql("ALTER TABLE sk DROP COLUMN v")
    stock.execute("ALTER TABLE sk DROP COLUMN v")
    publish(database)
    status = node.stopped("s")
    wait_disabled(stock)
    assert 'target relation "public.sk" is missing replicated column: "v"' in str(status.error)
    before = [(0, None), (1, "x")]
    assert newest(node, "other") == before == sorted(stock.rows("TABLE other"))
    assert sorted(node.rows("other")) == before
    # The next transactions are of the other table alone: past this one, all goes on.
    origin = "pg_replication_origin_progress('pg_' || oid, true) FROM pg_subscription"
    ((reached,),) = node.node.sql(f"SELECT {origin}").rows
    end = database.value("SELECT pg_current_wal_flush_lsn()")
    assert Lsn.parse(str(reached)) < Lsn.parse(str(end))
    advance = "SELECT pg_replication_origin_advance('pg_' || oid, '{}') FROM pg_subscription"
    node.node.sql(advance.format(end))
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("INSERT INTO other VALUES (5, 'x')")
    node.caught_up("s", database)
    assert sorted(node.rows("other")) == [*before, (5, "x")]


def test_a_parked_table_leaves_the_transaction_to_the_others(
    node: LocalNode, database: Database, stock: Database, spark: Any
) -> None:
    begin(node, stock, database, ", on_table_error = park", "")
    by_session(node, spark)
    publish(database)
    node.caught_up_but_parked("s", database)
    node.wait_for("s", "the parking", lambda s: "p" in {t.state for t in s.tables})
    assert sorted(node.rows("other")) == [(0, None), (1, "x"), (2, "x"), (4, "x")]


@part_of_make_faults
def test_what_a_cut_holds_is_not_taken_back(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut is durable, and an error comes in place of its answer."""
    node = local_node()
    database.execute(f"{TABLES} CREATE PUBLICATION p FOR TABLE other, sk")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    append, lost = Cuts.append, list[int]()

    def unanswered(self: Cuts, owner: Any, lsn: Lsn, commit_time: int | None, tables: Any) -> int:
        version = append(self, owner, lsn, commit_time, tables)
        if commit_time is not None and not lost:
            lost.append(version)
            raise ValueError("no answer")
        return version

    monkeypatch.setattr(Cuts, "append", unanswered)
    database.execute("BEGIN; INSERT INTO other VALUES (1); INSERT INTO sk VALUES (1); COMMIT")
    wait_until(lambda: bool(lost), "the error", 60)
    database.execute("INSERT INTO other VALUES (2)")
    node.caught_up("s", database)
    assert sorted(newest(node, "other")) == [(1, None), (2, None)]
    assert sorted(newest(node, "sk")) == [(1, None)]
