"""Rows of small tables are changed by their files: what others commit meanwhile is neither lost nor
overlooked, and what the tables ask of their writers is kept.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from hashlib import md5
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from faults.heavy import part_of_make_faults
from penstock.errors import StorageError
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.row_work import LeafWork
from penstock.lakehouse.change import StagedCommit
from penstock.pipeline.evaluate import Evaluation
from penstock.query_memory import MEMORY
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


@pytest.fixture
def after_reading(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """``after_reading(statement, times)``: another session runs it once a table has been read, that
    often; by then the new rows are written, and nothing is committed."""

    def prepare(statement: str, times: int) -> None:
        read, left = LeafWork.run, [times]

        def run(work: LeafWork) -> None:
            read(work)
            if left[0]:
                left[0] -= 1
                with monkeypatch.context() as patched, lake.connect() as other:
                    patched.setattr(LeafWork, "run", read)
                    other.execute(statement)

        monkeypatch.setattr(LeafWork, "run", run)

    return prepare


@pytest.fixture(autouse=True)
def no_job(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has nothing to do with it."""

    def refused(*_: Any) -> None:
        raise AssertionError("Spark was asked")

    monkeypatch.setattr("penstock.executor.modify.session_of_a_statement", refused)


def test_rows_of_others_are_changed_as_well(
    lake: LakeNode, after_reading: Callable[[str, int], None]
) -> None:
    lake.execute("CREATE TABLE busy (id int PRIMARY KEY, v int)", "INSERT INTO busy VALUES (1, 1)")
    after_reading("UPDATE busy SET v = v + 10 WHERE id = 1", 3)
    lake.execute("UPDATE busy SET v = v + 1")
    assert lake.rows("SELECT * FROM busy") == [(1, 32)]
    lake.execute("UPDATE busy SET v = 2", "INSERT INTO busy VALUES (2, 2)")
    after_reading("UPDATE busy SET v = v + 10 WHERE id = 1", 1)
    lake.execute("DELETE FROM busy WHERE v = 2")
    assert lake.rows("SELECT * FROM busy") == [(1, 12)]


def test_rows_that_come_meanwhile_are_younger_than_the_statement(
    lake: LakeNode, after_reading: Callable[[str, int], None]
) -> None:
    """It leaves them as they are, as on a server, and does not begin again."""
    lake.execute(
        "CREATE TABLE comes (id int PRIMARY KEY, v int)", "INSERT INTO comes VALUES (1, 1)"
    )
    after_reading("INSERT INTO comes SELECT max(id) + 1, 1 FROM comes", 100)
    lake.execute("UPDATE comes SET v = v + 1")
    assert sorted(lake.rows("SELECT * FROM comes")) == [(1, 2), (2, 1)]


@part_of_make_faults
def test_a_table_that_never_rests(
    lake: LakeNode, after_reading: Callable[[str, int], None]
) -> None:
    lake.execute("CREATE TABLE restless (v int)", "INSERT INTO restless VALUES (1)")
    after_reading("UPDATE restless SET v = 1", 100)
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute("UPDATE restless SET v = 2")
    assert set(lake.rows("SELECT v FROM restless")) == {(1,)}


def test_a_column_that_comes_meanwhile(
    lake: LakeNode, after_reading: Callable[[str, int], None]
) -> None:
    lake.execute("CREATE TABLE grows (v int)", "INSERT INTO grows VALUES (1)")
    after_reading("ALTER TABLE grows ADD COLUMN w int DEFAULT 5", 1)
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute("UPDATE grows SET v = 2")
    assert lake.rows("SELECT * FROM grows") == [(1, 5)]


_PARTITIONED = (
    "CREATE TABLE {0} (a int, b int) PARTITION BY RANGE (a)",
    "CREATE TABLE {0}1 PARTITION OF {0} FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE {0}2 PARTITION OF {0} FOR VALUES FROM (10) TO (20)",
    "INSERT INTO {0} VALUES (1, 0), (2, 5), (11, 5)",
)


def test_what_fails_for_one_partition_changes_none(lake: LakeNode) -> None:
    lake.execute(*(statement.format("fails") for statement in _PARTITIONED))
    for statement, error in (
        ("UPDATE fails SET b = 10 / (b - 5) + b", psycopg.errors.DivisionByZero),
        ("UPDATE fails SET a = a + 9", psycopg.errors.CheckViolation),
        ("UPDATE fails1 SET a = a + 8", psycopg.errors.CheckViolation),
    ):
        with pytest.raises(error):
            lake.execute(statement)
    assert sorted(lake.rows("SELECT * FROM fails")) == [(1, 0), (2, 5), (11, 5)]
    folder = lake.node.folder / "warehouse" / "public"
    assert len([*folder.glob("fails[12]/*.parquet")]) == 2, "files of what failed are gone"


def test_files_of_an_insert_that_fails_are_gone(lake: LakeNode) -> None:
    lake.execute(*(statement.format("routed") for statement in _PARTITIONED))
    for statement in (
        "INSERT INTO routed VALUES (3, 3), (12, 3), (99, 3)",
        "INSERT INTO routed2 VALUES (12, 3), (3, 3)",
    ):
        with pytest.raises(psycopg.errors.CheckViolation):
            lake.execute(statement)
    assert MEMORY.lent == 0
    assert sorted(lake.rows("SELECT * FROM routed")) == [(1, 0), (2, 5), (11, 5)]
    folder = lake.node.folder / "warehouse" / "public"
    assert len([*folder.glob("routed[12]/*.parquet")]) == 2


def test_files_that_no_log_names_are_gone(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they have filled the disk, nobody could make room."""
    lake.execute(*(statement.format("brim") for statement in _PARTITIONED))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.link", full)
        for statement in (
            "INSERT INTO brim1 VALUES (3, 3)",
            "INSERT INTO brim VALUES (3, 3), (12, 3)",
        ):
            with pytest.raises(psycopg.errors.DiskFull):
                lake.execute(statement)
    assert sorted(lake.rows("SELECT * FROM brim")) == [(1, 0), (2, 5), (11, 5)]
    folder = lake.node.folder / "warehouse" / "public"
    assert len([*folder.glob("brim[12]/*.parquet")]) == 2


def test_hash_partitions_take_rows(lake: LakeNode, database: Any) -> None:
    """As a server routes them."""
    statements = (
        "CREATE TABLE hashed (a int, t text) PARTITION BY HASH (a, t)",
        *(
            f"CREATE TABLE hashed{n} PARTITION OF hashed FOR VALUES WITH (modulus 3, remainder {n})"
            for n in range(3)
        ),
        "INSERT INTO hashed SELECT g, 'row ' || g::text FROM generate_series(1, 50) AS g",
        "UPDATE hashed SET a = a + 100 WHERE a < 20",
        "DELETE FROM hashed WHERE a > 40 AND a < 50",
    )
    for statement in statements:
        lake.execute(statement)
        database.execute(statement)
    for n in range(3):
        query = f"SELECT * FROM hashed{n} ORDER BY 1"
        assert lake.rows(query) == database.rows(query)


@part_of_make_faults
def test_what_delta_alone_may_write_is_left_to_it(
    lake: LakeNode, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CHECK constraint of Delta's, which no file shows."""
    monkeypatch.undo()
    lake.execute("CREATE TABLE checked (v int)", "INSERT INTO checked VALUES (1)")
    uri = lake.node.folder / "warehouse" / "public" / "checked"
    spark.sql(f"ALTER TABLE delta.`{uri}` ADD CONSTRAINT `too small` CHECK (v < 10)")
    for statement in ("INSERT INTO checked VALUES (11)", "UPDATE checked SET v = 11"):
        with pytest.raises(psycopg.errors.CheckViolation) as raised:
            lake.execute(statement)
        assert raised.value.diag.message_primary == (
            'new row for relation "checked" violates check constraint "too small"'
        )
    lake.execute("INSERT INTO checked VALUES (2)", "UPDATE checked SET v = 3 WHERE v = 1")
    assert sorted(lake.rows("SELECT v FROM checked")) == [(2,), (3,)]


@part_of_make_faults
def test_texts_have_the_length_that_spark_keeps(
    lake: LakeNode, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses what is longer; no feature of the table tells of it."""
    monkeypatch.undo()
    uri = lake.node.folder / "warehouse" / "public" / "lengths"
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (v VARCHAR(3), c CHAR(3)) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    lake.execute("INSERT INTO lengths VALUES ('abc', 'x')")
    for statement in ("INSERT INTO lengths VALUES ('abcd', 'x')", "UPDATE lengths SET v = 'abcd'"):
        with pytest.raises(psycopg.errors.StringDataRightTruncation) as raised:
            lake.execute(statement)
        assert raised.value.diag.message_primary == "value too long for type character varying(3)"
    assert lake.rows("SELECT v, c FROM lengths") == [("abc", "x")]


def test_what_a_byte_cannot_hold_is_an_error_of_the_statement(lake: LakeNode, spark: Any) -> None:
    """A server has no such type; the session goes on."""
    uri = lake.node.folder / "warehouse" / "public" / "bytes"
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (b TINYINT) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    lake.execute("INSERT INTO bytes VALUES (127)")
    for statement in ("INSERT INTO bytes VALUES (128)", "UPDATE bytes SET b = 300"):
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            lake.execute(statement)
    assert lake.rows("SELECT b FROM bytes") == [(127,)]


def test_a_table_that_delta_partitions(lake: LakeNode, spark: Any) -> None:
    """Rows move between its partitions; an empty text is no partition value, and not NULL."""
    uri = lake.node.folder / "warehouse" / "public" / "parts"
    spark.sql(
        f"CREATE TABLE delta.`{uri}` (id INT, part STRING, v INT) USING delta PARTITIONED BY (part)"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    lake.execute("INSERT INTO parts VALUES (1, 'a', 1), (2, 'b', 1), (3, NULL, 1), (4, 'a', 1)")
    lake.execute("UPDATE parts SET part = 'b/c', v = v + 1 WHERE part = 'a' OR part IS NULL")
    lake.execute("UPDATE parts SET v = v + 10 WHERE part = 'b/c'", "DELETE FROM parts WHERE id = 4")
    for statement in ("INSERT INTO parts VALUES (5, '', 1)", "UPDATE parts SET part = ''"):
        with pytest.raises(psycopg.Error, match='no place in partition column "part"'):
            lake.execute(statement)
    expected = [(1, "b/c", 12), (2, "b", 1), (3, "b/c", 12)]
    assert sorted(lake.rows("SELECT * FROM parts")) == expected
    found = spark.read.format("delta").load(str(uri)).orderBy("id").collect()
    assert [tuple(row) for row in found] == expected
    lake.execute("TRUNCATE parts")
    assert lake.rows("SELECT * FROM parts") == []


def test_new_values_are_computed_of_some_rows_at_a_time(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be much larger than the old ones."""
    lake.execute(
        "CREATE TABLE widened (n int, v text)",
        "INSERT INTO widened SELECT n, n::text FROM generate_series(1, 30000) AS s(n)",
    )
    values, most = Evaluation.values, [0]

    def counted(self: Evaluation, *arguments: Any) -> Any:
        most[0] = max(most[0], *map(len, arguments))
        return values(self, *arguments)

    monkeypatch.setattr(Evaluation, "values", counted)
    lake.execute("UPDATE widened SET v = repeat(v, 2) WHERE n > 5000")
    assert 0 < most[0] <= 10_000
    wanted = "SELECT count(*), count(DISTINCT v), min(length(v)) FROM widened"
    assert lake.rows(wanted) == [(30000, 30000, 1)]
    assert lake.rows("SELECT count(*) FROM widened WHERE length(v) = 10") == [(20001,)]


def test_long_texts_are_made_up_to_a_limit(lake: LakeNode) -> None:
    """A text of constants may be as long as PostgreSQL's tests of TOAST make it."""
    lake.execute("CREATE TABLE long (n int, v text)", "INSERT INTO long VALUES (1, 'x'), (2, 'y')")
    lake.execute("UPDATE long SET v = repeat('xyzzy', 100000) WHERE n = 1")
    lake.execute("UPDATE long SET v = replace(repeat(v, 1000), 'y', 'zz') WHERE n = 2")
    assert lake.rows("SELECT n, length(v), md5(v) FROM long ORDER BY n") == [
        (1, 500_000, md5(b"xyzzy" * 100_000).hexdigest()),
        (2, 2000, md5(b"z" * 2000).hexdigest()),
    ]
    for made, error in (
        ("repeat('x', 200000000)", psycopg.errors.OutOfMemory),
        ("repeat(repeat('x', 1000000), 10000)", psycopg.errors.ProgramLimitExceeded),
        ("replace(repeat('x', 100000), 'x', repeat('y', 100000))", psycopg.errors.OutOfMemory),
    ):
        with pytest.raises(error):
            lake.execute(f"UPDATE long SET v = {made}")


def test_spark_reads_what_was_written(lake: LakeNode, spark: Any) -> None:
    """After enough commits for a checkpoint, which it reads first."""
    lake.execute("CREATE TABLE many (id int, v text)")
    for n in range(12):
        lake.execute(f"INSERT INTO many VALUES ({n}, 'v{n}'), ({n + 100}, NULL)")
    lake.execute("UPDATE many SET v = 'new' WHERE id < 3", "DELETE FROM many WHERE id >= 100")
    uri = lake.node.folder / "warehouse" / "public" / "many"
    assert (uri / "_delta_log" / "_last_checkpoint").exists()
    rows = spark.sql(f"SELECT id, v FROM delta.`{uri}`").collect()
    assert sorted(map(tuple, rows)) == sorted(lake.rows("SELECT id, v FROM many"))
    assert sorted(map(tuple, rows)) == [
        (n, "new" if n < 3 else f"v{n}") for n in range(12)
    ]  # fmt: skip
    history = spark.sql(f"DESCRIBE HISTORY delta.`{uri}`").collect()
    assert [row.operation for row in history[:3]] == ["DELETE", "UPDATE", "WRITE"]


def test_two_sessions_insert_at_once(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find a version for their rows."""
    lake.execute("CREATE TABLE shared (v int)")
    insert = CommitBlocks.commit

    def late(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(CommitBlocks, "commit", insert)
        with lake.connect() as other:
            other.execute("INSERT INTO shared VALUES (1)")
        insert(*arguments, **options)

    monkeypatch.setattr(CommitBlocks, "commit", late)
    lake.execute("INSERT INTO shared VALUES (2)")
    assert sorted(lake.rows("SELECT v FROM shared")) == [(1,), (2,)]


def test_a_committed_statement_is_no_error(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit may come into the node's log later, as that of a block."""
    lake.execute("CREATE TABLE later (v int)")
    serving = lake.node.serving
    assert serving is not None

    def full(**_: Any) -> None:
        raise StorageError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(serving.sequencer, "step", full)
        lake.execute("INSERT INTO later VALUES (1)")
    assert lake.rows("SELECT v FROM later") == [(1,)]


@pytest.mark.parametrize(
    "statement", ["INSERT INTO {} VALUES (3, 'a'), (4, 'b')", "UPDATE {} SET id = id + 10"]
)
def test_a_statement_changes_all_partitions_or_none(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Clients run a statement again upon 40001."""
    name = f"half_{statement[:6].lower()}"
    lake.execute(
        f"CREATE TABLE {name} (id int, r text) PARTITION BY LIST (r)",
        f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES IN ('a')",
        f"CREATE TABLE {name}_b PARTITION OF {name} FOR VALUES IN ('b')",
        f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')",
    )
    uri = str(lake.node.folder / "warehouse" / "public" / f"{name}_b")
    put, begun = StagedCommit.put, [False]

    def committed(*arguments: Any) -> int:
        version = put(*arguments)
        if not begun[0]:
            begun[0] = True
            DeltaTable(uri).alter.add_columns(Field("note", PrimitiveType("string")))
        return version

    monkeypatch.setattr(StagedCommit, "put", committed)
    with pytest.raises(psycopg.errors.SerializationFailure):
        lake.execute(statement.format(name))
    assert begun[0]
    assert set(lake.rows(f"SELECT id, r FROM {name}")) == {(1, "a"), (2, "b")}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "infinity"),
        ("timestamp", "-infinity"),
        ("timestamptz", "infinity"),
        ("date", "0044-03-15 BC"),
        ("timestamptz", "20000-01-01"),
    ],
)
def test_moments_that_delta_has_not_are_refused(lake: LakeNode, kind: str, value: str) -> None:
    """As where a subscription brings them."""
    name = f"moment_{abs(hash((kind, value)))}"
    lake.execute(f"CREATE TABLE {name} (v {kind})", f"INSERT INTO {name} VALUES ('2020-01-01')")
    for statement in (
        f"INSERT INTO {name} VALUES ('{value}')",
        f"UPDATE {name} SET v = '{value}'",
    ):
        with pytest.raises(psycopg.errors.DatetimeFieldOverflow):
            lake.execute(statement)
    assert lake.rows(f"SELECT count(*) FROM {name} WHERE v = '2020-01-01'") == [(1,)]
