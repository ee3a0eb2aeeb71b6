"""The initial copy, from real servers into real Delta tables."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faults.heavy import in_make_faults
from penstock.errors import (
    ConnectionFailure,
    PenstockError,
    PublisherError,
    StorageError,
    ValueNotRepresentable,
)
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.table_copy import CopyOptions, CopyProgress, CopyResult, CopySource, run_copy
from penstock.sql.grammar.column import NEXTVAL
from penstock.sqlstate import SequenceGeneratorLimitExceeded
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.snapshot_holder import SnapshotHolder

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

SMALL = CopyOptions(unit_bytes=256 << 10, batch_bytes=64 << 10)


def _raise(source: CopySource, error: PenstockError) -> None:
    raise error


class Copier:
    """Copies published tables of one database into a fresh warehouse."""

    def __init__(
        self, spark: SparkSession, database: Any, folder: Path, here_bytes: int = 0
    ) -> None:
        self.spark = spark
        self.here_bytes = here_bytes
        self.database = database
        self.conninfo = ConnInfo.parse(database.conninfo)
        self.warehouse = Warehouse(str(folder), fsync=False)
        self.tables: dict[str, DeltaTable] = {}
        self.progress: list[CopyProgress] = []
        self.finished: list[str] = []

    def source(self, publication: str, table: str, schema: str = "public") -> CopySource:
        with Publisher.connect(self.conninfo) as publisher:
            info = publisher.table_info([publication], schema, table)
        self.tables[table] = self.warehouse.create(
            schema, table, TableSchema.of_relation(info.relation, ())
        )
        return CopySource(info, self.tables[table])

    def copy(
        self,
        publication: str,
        *tables: str,
        options: CopyOptions = SMALL,
        meanwhile: Callable[[SnapshotHolder], object] = lambda holder: None,
        sources: Sequence[CopySource] | None = None,
        conninfo: str | None = None,
        failed: Callable[[CopySource, PenstockError], object] = _raise,
    ) -> tuple[CopyResult, ...]:
        # The server may need a moment to end an earlier one's session, and with it the slot.
        slot = f"copy_holder_{uuid.uuid4().hex}"
        with SnapshotHolder(self.conninfo, slot) as holder:
            name, point = holder.open()

            def finish(source: CopySource) -> None:
                self.finished.append(source.table.name)
                source.table.commit(app_id="copy", version_marker=point, operation="COPY")

            if sources is None:
                sources = [self.source(publication, table) for table in tables]
            meanwhile(holder)
            return run_copy(
                self.spark,
                sources,
                conninfo=ConnInfo.parse(conninfo) if conninfo else self.conninfo,
                snapshot_name=name,
                options=replace(options, here_bytes=self.here_bytes),
                progress=self.progress.append,
                finished=finish,
                check=holder.check,
                failed=failed,
            )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        found = []
        for path in self.tables[table].files:
            with open_parquet(self.tables[table].uri, path) as parquet:
                found += [tuple(row.values()) for row in parquet.read().to_pylist()]
        return sorted(found, key=repr)

    def left_over(self, table: str) -> list[str]:
        """Data files in the table's folder that the table does not know."""
        folder = Path(self.tables[table].uri.removeprefix("file://"))
        known = set(self.tables[table].files)
        return [path.name for path in folder.glob("*.parquet") if path.name not in known]


@pytest.fixture(params=[0, 1 << 40], ids=["by spark", "here"])
def copier(
    spark: SparkSession, database: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> Copier:
    """Copies in Spark's tasks, and in this process."""
    return Copier(spark, database, tmp_path / "warehouse", request.param)


def _with_sequence(copier: Copier, table: str, *, most: int) -> CopySource:
    """``table`` with a column ``n`` of the target's own."""
    source = copier.source("p", table)
    schema, values = source.table.schema, iter(range(1, most + 1))
    first = schema.columns[0]
    attribute = replace(first.attribute, name="n", default=NEXTVAL)
    own = replace(first, name="n", attribute=attribute, local=True)
    copier.tables[table] = copier.warehouse.create(
        "public", f"{table}_n", TableSchema((*schema.columns, own), ())
    )

    def draw(column: str, count: int) -> Sequence[int]:
        assert column == "n"
        found = list(itertools.islice(values, count))
        if len(found) < count:
            raise SequenceGeneratorLimitExceeded("nextval: reached maximum value")
        return found

    return replace(source, table=copier.tables[table], draw=draw)


def test_units_share_the_values_of_a_sequence(copier: Copier) -> None:
    """Another table's sequence has too few."""
    copier.database.execute(
        "CREATE TABLE t (id int); INSERT INTO t SELECT g FROM generate_series(1, 50000) g;"
        "CREATE TABLE few (id int); INSERT INTO few VALUES (1), (2);"
        "CREATE PUBLICATION p FOR TABLE t, few"
    )
    sources = [_with_sequence(copier, "t", most=60000), _with_sequence(copier, "few", most=1)]
    failed: list[PenstockError] = []
    copier.copy("p", sources=sources, failed=lambda source, error: failed.append(error))
    assert copier.progress[-1].units > 4
    rows = copier.rows("t")
    assert sorted(row[0] for row in rows) == sorted(row[1] for row in rows) == [*range(1, 50001)]
    assert [error.message for error in failed] == ["nextval: reached maximum value"]
    assert not copier.rows("few")
    assert copier.finished == ["public.t_n"]


@pytest.mark.parametrize("version", [*map(in_make_faults, (14, 15, 16, 17)), 18])
def test_copy_on_every_version(
    version: int, spark: SparkSession, database_on: Callable[..., Any], tmp_path: Path
) -> None:
    database = database_on(version)
    database.execute(
        """
        CREATE TABLE big (id int PRIMARY KEY, v text);
        INSERT INTO big SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 20000) i;
        CREATE TABLE empty (id int PRIMARY KEY);
        CREATE TABLE root (id int, r text) PARTITION BY LIST (r);
        CREATE TABLE "Leaf A" PARTITION OF root FOR VALUES IN ('a');
        CREATE TABLE leaf_b (r text, gone int, id int);
        ALTER TABLE leaf_b DROP COLUMN gone;
        ALTER TABLE root ATTACH PARTITION leaf_b FOR VALUES IN ('b');
        INSERT INTO root SELECT i, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END
          FROM generate_series(1, 1000) i;
        CREATE PUBLICATION p FOR TABLE big, empty, root WITH (publish_via_partition_root);
        """
    )
    copier = Copier(spark, database, tmp_path / "warehouse")
    results = copier.copy("p", "big", "empty", "root")
    assert [(r.table, r.rows) for r in results] == [
        ("public.big", 20000),
        ("public.empty", 0),
        ("public.root", 1000),
    ]
    assert copier.rows("big") == sorted(database.rows("SELECT id, v FROM big"), key=repr)
    assert copier.rows("root") == sorted(database.rows("SELECT id, r FROM root"), key=repr)
    assert sorted(copier.finished) == ["public.big", "public.empty", "public.root"]
    assert len(copier.tables["big"].files) > 4, "cut by ctid"
    steps = [step for step in copier.progress if step.table == "public.big"]
    assert [step.units for step in steps] == list(range(steps[-1].units_total + 1))
    assert steps[-1].rows == 20000
    heap = database.value("SELECT pg_table_size('big') - pg_relation_size('big', 'fsm')")
    assert steps[-1].bytes == steps[-1].bytes_total == pytest.approx(heap, rel=0.1)
    assert steps == sorted(steps, key=lambda step: step.bytes)


def test_what_commits_after_the_snapshot_is_not_copied(copier: Copier) -> None:
    copier.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (fillfactor = 50);"
        "INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 5000) i;"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    expected = sorted(copier.database.rows("SELECT id, v FROM t"), key=repr)

    def change(_: SnapshotHolder) -> None:
        copier.database.execute(
            "UPDATE t SET v = 'new' WHERE id % 2 = 0; DELETE FROM t WHERE id % 3 = 0;"
            "INSERT INTO t SELECT i, 'late' FROM generate_series(10000, 20000) i"
        )

    copier.copy("p", "t", meanwhile=change)
    assert copier.rows("t") == expected


def test_rows_behind_the_counted_blocks_are_copied(copier: Copier) -> None:
    copier.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 2000) i"
    )
    source = copier.source("p", "t")
    copier.database.execute(
        "INSERT INTO t SELECT i, repeat('y', 500) FROM generate_series(2001, 9000) i"
    )
    (result,) = copier.copy("p", sources=[source])
    assert result.rows == 9000
    assert copier.rows("t") == sorted(copier.database.rows("SELECT id, v FROM t"), key=repr)


def test_filter_column_list_and_order(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE t (a int PRIMARY KEY, b text, c int, d int GENERATED ALWAYS AS (a * 2) STORED);
        INSERT INTO t SELECT i, 'b' || i, i % 10 FROM generate_series(1, 5000) i;
        INSERT INTO t VALUES (6000, NULL, NULL);
        CREATE PUBLICATION p FOR TABLE t (a, c) WHERE (a > 4000);
        CREATE PUBLICATION q FOR TABLE t (a, c) WHERE (c IS NULL OR a = 7);
        """
    )
    with Publisher.connect(copier.conninfo) as publisher:
        info = publisher.table_info(["p", "q"], "public", "t")
    wanted = TableSchema.of_relation(info.relation, ())
    turned = TableSchema(tuple(reversed(wanted.columns)))
    copier.tables["t"] = copier.warehouse.create("public", "t", turned)
    copier.copy("p", sources=[CopySource(info, copier.tables["t"])])
    assert copier.tables["t"].schema.arrow().names == ["c", "a"]
    expected = copier.database.rows("SELECT c, a FROM t WHERE a > 4000 OR c IS NULL OR a = 7")
    assert copier.rows("t") == sorted(expected, key=repr)


def test_odd_names_inheritance_and_no_columns(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE "it's a ""Table"" 1" ("Mixed Case" int PRIMARY KEY, "quo""te" text, "a;b" int);
        INSERT INTO "it's a ""Table"" 1" VALUES (1, 'one', NULL), (2, NULL, 2);
        CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
        INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
        CREATE TABLE nothing (); INSERT INTO nothing DEFAULT VALUES;
        CREATE PUBLICATION p FOR ALL TABLES;
        """
    )
    name = 'it\'s a "Table" 1'
    copier.copy("p", name, "parent", "nothing")
    quoted = 'public."it\'s a ""Table"" 1"'
    assert sorted(copier.finished) == [quoted, "public.nothing", "public.parent"]
    assert copier.rows(name) == [(1, "one", None), (2, None, 2)]
    assert copier.rows("parent") == [(1,)]


def test_types_arrive_as_the_stream_brings_them(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TABLE t (id int PRIMARY KEY, n numeric(12,3), un numeric, ts timestamp,
          tz timestamptz, d date, u uuid, j jsonb, b bytea, arr int[], ta text[], m mood,
          r int4range, iv interval, ip inet, f4 real, f8 double precision, ok boolean, c char(5));
        INSERT INTO t VALUES (1, 123456789.125, 1e40, '2024-02-29 12:34:56.789012',
          '2024-02-29 12:34:56.789012+05:30', '0001-01-01', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11',
          '{"a": [1, null]}', '\\x00ff', '{1,NULL,3}', '{"a b",NULL,"q\\"x"}', 'ok', '[1,5)',
          '1 mon 2 days 03:04:05', '10.0.0.1/24', 1.1, 0.1, true, 'ab');
        INSERT INTO t (id) VALUES (2);
        CREATE PUBLICATION p FOR TABLE t;
        """
    )
    copier.copy("p", "t")
    one, two = copier.rows("t")
    shown = [str(value) for value in one]
    assert shown == [
        "1",
        "123456789.125",
        "1" + "0" * 40,
        "2024-02-29 12:34:56.789012",
        "2024-02-29 07:04:56.789012+00:00",
        "0001-01-01",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        '{"a": [1, null]}',
        r"b'\x00\xff'",
        "[1, None, 3]",
        """['a b', None, 'q"x']""",
        "ok",
        "[1,5)",
        "1 mon 2 days 03:04:05",
        "10.0.0.1/24",
        "1.100000023841858",
        "0.1",
        "True",
        "ab   ",
    ]
    assert two == (2,) + (None,) * 18


def test_a_value_that_does_not_fit_names_table_and_column(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE good (id int PRIMARY KEY); INSERT INTO good VALUES (1);
        CREATE TABLE t (id int PRIMARY KEY, "When" date, v text);
        INSERT INTO t SELECT i, '2024-01-01', repeat('x', 500) FROM generate_series(1, 5000) i;
        UPDATE t SET "When" = 'infinity' WHERE id = 4321;
        CREATE PUBLICATION p FOR ALL TABLES;
        """
    )
    with pytest.raises(ValueNotRepresentable) as caught:
        copier.copy("p", "t", "good")
    assert 'Table "public.t", column "When".' in (caught.value.detail or "")
    assert "infinity" in caught.value.message
    assert copier.rows("t") == []
    assert copier.tables["t"].version == 0
    assert not copier.tables["t"].has_staged


def test_a_failed_round_leaves_no_files_of_its_finished_units(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, d date, v text);
        INSERT INTO t SELECT i, '2024-01-01', repeat('x', 500) FROM generate_series(1, 3000) i;
        INSERT INTO t VALUES (5000, 'infinity');
        CREATE PUBLICATION p FOR TABLE t;
        """
    )
    with pytest.raises(ValueNotRepresentable):
        copier.copy("p", "t", options=CopyOptions(unit_bytes=2 << 20))
    assert copier.left_over("t") == []


def test_an_error_of_the_caller_ends_the_round(copier: Copier) -> None:
    copier.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    source = copier.source("p", "t")

    def refuse(_: CopySource) -> None:
        raise StorageError("no space")

    with SnapshotHolder(copier.conninfo, "h") as holder, pytest.raises(StorageError):
        run_copy(
            copier.spark,
            [source],
            conninfo=copier.conninfo,
            snapshot_name=holder.open()[0],
            options=replace(SMALL, here_bytes=copier.here_bytes),
            progress=lambda step: None,
            finished=refuse,
        )
    assert not source.table.has_staged
    assert copier.left_over("t") == []


def test_a_lost_snapshot_is_retryable(copier: Copier) -> None:
    copier.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    with pytest.raises(ConnectionFailure) as caught:
        copier.copy("p", "t", meanwhile=lambda holder: holder.close())
    assert caught.value.message == "the session that held the exported snapshot is gone"


def test_rights_and_row_security(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);
        CREATE TABLE secured (id int PRIMARY KEY); INSERT INTO secured VALUES (1);
        ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
        DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN;
        GRANT SELECT ON secured TO weak;
        CREATE PUBLICATION p FOR ALL TABLES;
        """
    )
    weak = f"{copier.database.conninfo} user=weak"
    with pytest.raises(PublisherError) as denied:
        copier.copy("p", "t", conninfo=weak)
    assert denied.value.message == (
        'could not start initial contents copy for table "public.t": permission denied for table t'
    )
    assert denied.value.sqlstate == "42501"
    with pytest.raises(PublisherError) as hidden:
        copier.copy("p", "secured", conninfo=weak)
    assert "row-level security" in hidden.value.message
    assert "BYPASSRLS" in (hidden.value.hint or "")
    copier.database.execute("DROP OWNED BY weak; DROP ROLE weak")


def test_a_login_that_fails_in_the_executors(copier: Copier) -> None:
    copier.database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(ConnectionFailure) as caught:
        copier.copy("p", "t", conninfo=f"{copier.database.conninfo} user=nobody password=s3cr3t")
    assert 'role "nobody" does not exist' in caught.value.message
    assert "s3cr3t" not in caught.value.report()
    assert caught.value.detail == 'Table "public.t".'


def test_a_cut_connection_in_the_middle(copier: Copier, make_proxy: Callable[[int], Any]) -> None:
    """While the snapshot lives only units whose connection has broken are copied again."""
    copier.database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i;
        CREATE PUBLICATION p FOR TABLE t;
        """
    )
    proxy = make_proxy(copier.database.server.port)
    proxied = proxy.conninfo(copier.database.conninfo)
    proxy.cut_after(5_000_000)
    (result,) = copier.copy("p", "t", conninfo=proxied)
    assert result.rows == 20000
    assert copier.rows("t") == sorted(copier.database.rows("SELECT id, v FROM t"), key=repr)
    assert copier.left_over("t") == []
    units = copier.progress[-1].units_total
    assert [step.units for step in copier.progress] == list(range(units + 1))
    assert units > 10
    each, again = divmod(proxy.connections, units)
    assert 0 < again <= 4 * each, "a few units have begun twice"
    # A server that stays away is waited for by who asks for the copy, not here.
    copier.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    copier.database.execute("CREATE PUBLICATION q FOR TABLE other")
    proxy.refuse()
    with pytest.raises(ConnectionFailure):
        copier.copy("q", "other", conninfo=proxied)


def test_an_error_of_the_server_in_the_middle(copier: Copier) -> None:
    copier.database.execute(
        """
        CREATE TABLE t (id int PRIMARY KEY, v text);
        INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 3000) i;
        CREATE PUBLICATION p FOR TABLE t WHERE (1 / (id - 2999) < 5);
        """
    )
    with pytest.raises(PublisherError) as caught:
        copier.copy("p", "t", options=CopyOptions())
    assert caught.value.message == (
        'could not read initial contents of table "public.t": division by zero'
    )


def test_results_cross_without_the_password(copier: Copier) -> None:
    copier.database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    (result,) = copier.copy("p", "t", conninfo=f"{copier.database.conninfo} password=s3cr3t")
    assert result == CopyResult("public.t", 0, 0)
    assert copier.progress == [CopyProgress("public.t", 0, 0, 0, n, 1) for n in (0, 1)]


def test_more_tasks_than_connections(copier: Copier) -> None:
    copier.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 3000) i"
    )
    one = CopyOptions(unit_bytes=256 << 10, connections=1)
    (result,) = copier.copy("p", "t", options=one)
    assert result.rows == 3000
    assert copier.progress[-1].units_total > 3


def test_as_many_tables_at_once_as_allowed(copier: Copier) -> None:
    copier.database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    for table, rows in (("a", 1500), ("b", 3000), ("c", 2000)):
        copier.database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {table} SELECT i, repeat('x', 500) FROM generate_series(1, {rows}) i"
        )
    copier.copy("p", "a", "b", "c", options=replace(SMALL, tables=1))
    worked = [step.table for step in copier.progress if step.units]
    assert len(worked) > 6
    assert list(dict.fromkeys(worked)) == ["public.b", "public.c", "public.a"], "the largest first"
    assert worked == sorted(worked, key=worked.index), "one after the other"
    assert copier.finished == list(dict.fromkeys(worked))


def test_an_unexpected_error_names_the_table(copier: Copier) -> None:
    copier.database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    source = copier.source("p", "t")
    copier.database.execute("INSERT INTO t VALUES (1)")
    copier.database.execute("ALTER TABLE t RENAME id TO other")
    with pytest.raises(PenstockError) as caught:
        copier.copy("p", sources=[source])
    assert 'table "public.t"' in caught.value.message
    assert 'column "id" does not exist' in caught.value.message
