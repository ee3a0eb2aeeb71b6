"""Columns that come and go where there are rows: what the Delta tables hold, in every version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from commands.both import Ours, done
from end_to_end.compare import delta_rows
from penstock.catalog import CatalogTransaction
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_changes import table_changes
from penstock.pipeline.rewrite import ColumnChange, ColumnRewrites


def opened(node: Ours, name: str = "t") -> DeltaTable:
    assert node.scope.warehouse is not None
    found = node.scope.warehouse.open("public", name)
    assert found is not None
    return found


def written(table: DeltaTable, columns: Mapping[str, list[Any]]) -> list[WrittenFile]:
    rows = pa.table(columns, schema=table.schema.arrow())
    return FileWriter(table.storage, table.uri, rows.schema).write([rows])


def insert(node: Ours, columns: Mapping[str, list[Any]], name: str = "t") -> str:
    """One commit of one file; its path."""
    table = opened(node, name)
    (file,) = written(table, columns)
    table.stage(written=[file])
    table.commit(app_id="writer", version_marker=table.version + 1, operation="WRITE")
    return file.path


def rows(node: Ours, version: int | None = None, name: str = "t") -> list[tuple[Any, ...]]:
    table = opened(node, name)
    return sorted(delta_rows(table.uri, table.version if version is None else version))


def held(table: DeltaTable) -> list[list[str]]:
    """The columns that each file of the newest version has, whatever the log says."""
    folder = Path(local_path(table.uri))
    return [pq.read_schema(folder / path).names for path in table.files]


def files(table: DeltaTable) -> set[str]:
    return {path.name for path in Path(local_path(table.uri)).glob("*.parquet")}


def test_a_dropped_column_never_shows_what_it_held(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int, b text)")
    insert(node, {"a": [1, 2], "b": ["x", "y"]})
    before = opened(node).version
    done(node, "ALTER TABLE t DROP COLUMN b")
    assert rows(node) == [(1,), (2,)]
    assert held(opened(node)) == [["a"]]
    done(node, "ALTER TABLE t ADD COLUMN b text")
    insert(node, {"a": [3], "b": ["z"]})
    assert rows(node) == [(1, None), (2, None), (3, "z")]
    done(node, "ALTER TABLE t DROP COLUMN b, ADD COLUMN b int DEFAULT 5")
    assert rows(node) == [(1, 5), (2, 5), (3, 5)]
    assert rows(node, before) == [(1, "x"), (2, "y")]


def test_files_with_deleted_rows_are_rewritten_without_them(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int, b text)")
    path = insert(node, {"a": [1, 2, 3], "b": ["x", "y", "z"]})
    table = opened(node)
    table.stage(deleted={path: BitMap([1])})
    table.commit(app_id="writer", version_marker=1, operation="DELETE")
    insert(node, {"a": [4], "b": [None]})
    done(
        node,
        "ALTER TABLE t DROP COLUMN b,"
        " ADD COLUMN c timestamptz[] DEFAULT '{2024-02-29 00:00:00+00}'",
    )
    (first, second, third) = rows(node)
    assert (first[0], second[0], third[0]) == (1, 3, 4)
    assert first[1:] == second[1:] == third[1:]
    assert opened(node).rows == 3


def test_every_column_may_change_at_once(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int)")
    insert(node, {"a": [1, 2]})
    ((_, sqlstate, message, *_),) = node.run("ALTER TABLE t DROP COLUMN a")
    assert (sqlstate, message) == (
        "0A000",
        'dropping every column of table "t", which has rows, is not supported',
    )
    done(node, "ALTER TABLE t DROP COLUMN a, ADD COLUMN b int DEFAULT 1, ADD COLUMN c text")
    assert rows(node) == [(1, None), (1, None)]


def test_partitions_follow(node: Ours) -> None:
    done(
        node,
        "CREATE TABLE p (a int, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    )
    insert(node, {"a": [1], "b": ["x"]}, "p1")
    done(node, "ALTER TABLE p DROP b, ADD c text DEFAULT 'd', ADD b text")
    assert rows(node, name="p1") == [(1, "d", None)]
    for name in ("p", "p1", "p2"):
        assert [c.source for c in opened(node, name).schema.columns] == ["a", "c", "b"]


def test_no_publication_hears_of_it(node: Ours) -> None:
    """The rows are in other files, as after OPTIMIZE."""
    done(node, "CREATE TABLE t (a int, b text)")
    insert(node, {"a": [1], "b": ["x"]})
    done(node, "ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN c int DEFAULT 1")
    table = opened(node)
    log = Path(local_path(table.uri)) / "_delta_log"
    for version in (table.version - 1, table.version):
        text = (log / f"{version:020}.json").read_text("utf-8")
        assert '"dataChange":false' in text
        assert '"dataChange":true' not in text


def test_rows_that_came_before_in_one_transaction_are_published_with_the_columns_of_its_end(
    node: Ours,
) -> None:
    """Between two cuts of a subscription whose table is published."""
    done(node, "CREATE TABLE t (a int, b text)")
    table = opened(node)
    first = table.version
    insert(node, {"a": [1, 2], "b": ["x", "y"]})
    done(node, "ALTER TABLE t DROP COLUMN b, ADD COLUMN b text DEFAULT 'new'")
    changes = table_changes(table.storage, table.uri, first, opened(node).version)
    assert [part.file.path for part in changes.added] == list(opened(node).files)
    assert changes.removed == ()


def test_files_that_lack_the_column_stay(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int)")
    first = insert(node, {"a": [1]})
    done(node, "ALTER TABLE t ADD COLUMN b text")
    second = insert(node, {"a": [2], "b": ["x"]})
    done(node, "ALTER TABLE t DROP COLUMN b")
    assert first in opened(node).files
    assert second not in opened(node).files
    assert rows(node) == [(1,), (2,)]


def test_a_writer_that_comes_first_is_followed(node: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come while files are rewritten are rewritten, too, and nothing is left over."""
    done(node, "CREATE TABLE t (a int, b text)")
    insert(node, {"a": [1], "b": ["x"]})
    prepare = ColumnRewrites.prepare
    came: list[str] = []

    def late(self: ColumnRewrites, change: ColumnChange) -> None:
        prepare(self, change)
        if len(came) < 2:
            came.append(insert(node, {"a": [2 + len(came)], "b": ["late"]}))

    monkeypatch.setattr(ColumnRewrites, "prepare", late)
    done(node, "ALTER TABLE t DROP COLUMN b, ADD COLUMN c int DEFAULT 7")
    assert rows(node) == [(1, 7), (2, 7), (3, 7)]
    assert len(files(opened(node))) == 6  # three written, and each of them rewritten once


def test_what_was_rewritten_in_vain_is_removed(node: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    done(node, "CREATE TABLE t (a int, b text)")
    insert(node, {"a": [1], "b": ["x"]})
    before = files(opened(node))
    prepare = ColumnRewrites.prepare

    def dropped(self: ColumnRewrites, change: ColumnChange) -> None:
        prepare(self, change)
        with node.catalog.write() as t:
            t.tables.delete(t.tables.get("public", "t").oid)
            t.tables.create("public", "t", change.table.uri, parent=1)

    monkeypatch.setattr(ColumnRewrites, "prepare", dropped)
    ((_, sqlstate, message, *_),) = node.run("ALTER TABLE t DROP COLUMN b")
    assert (sqlstate, message) == ("42P16", 'cannot drop inherited column "b"')
    assert files(opened(node)) == before


class _Stopped(BaseException):
    pass


def test_a_drop_that_was_stopped_before_the_catalog_had_it_is_finished(
    node: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(
        node,
        "CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE, c text)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_key",
        "CREATE PUBLICATION p FOR TABLE t (a, c)",
    )
    insert(node, {"a": [1], "b": [2], "c": ["x"]})
    write = node.catalog.write

    @contextlib.contextmanager
    def stopped() -> Iterator[CatalogTransaction]:
        with write() as transaction:
            yield transaction
            raise _Stopped

    for statement in ("ALTER TABLE t DROP COLUMN b", "ALTER TABLE t DROP COLUMN a CASCADE"):
        with monkeypatch.context() as patched, pytest.raises(_Stopped):
            patched.setattr(node.catalog, "write", stopped)
            node.run(statement)
    assert rows(node) == [("x",)]
    done(node, "ALTER TABLE t DROP COLUMN b")
    ((_, sqlstate, message, *_),) = node.run("ALTER TABLE t DROP COLUMN a")
    assert (sqlstate, message) == (
        "2BP01",
        "cannot drop column a of table t because other objects depend on it",
    )
    ((severity, *_),) = node.run("ALTER TABLE t DROP COLUMN a CASCADE")
    assert severity == "NOTICE"
    with node.catalog.read() as t:
        table = t.tables.get("public", "t")
        assert (table.primary_key, table.identity_key, table.indexes) == ((), (), ())
        assert t.publications.relations() == ()
    ((_, sqlstate, *_),) = node.run("ALTER TABLE t DROP COLUMN a")
    assert sqlstate == "42703"
