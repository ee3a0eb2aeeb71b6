"""The table of the documentation, for one row and for columns."""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa

from penstock.publication.members import Action
from penstock.publication.row_filter import FilterColumn, compile_row_filter
from penstock.publication.update_transformation import (
    matches_sql,
    transform_update,
    transform_updates,
)


def test_the_table_of_the_documentation() -> None:
    assert transform_update(False, False) is None
    assert transform_update(False, True) is Action.INSERT
    assert transform_update(True, False) is Action.DELETE
    assert transform_update(True, True) is Action.UPDATE
    assert transform_update(None, True) is Action.INSERT


def test_columns_get_what_rows_get() -> None:
    pairs = list(itertools.product([True, False, None], repeat=2))
    old, new = (pa.array(list(side), pa.bool_()) for side in zip(*pairs, strict=True))
    actions = [transform_update(*pair) for pair in pairs]
    assert transform_updates(old, new).to_pylist() == [a and a.value for a in actions]
    empty = pa.array([], pa.bool_())
    assert transform_updates(empty, empty).to_pylist() == []


def test_old_and_new_rows_are_matched_by_the_same_predicate() -> None:
    filter_ = compile_row_filter("a < 3", [FilterColumn("a", 23)], table="t")
    connection = duckdb.connect()
    connection.register("old", pa.table({"a": pa.array([2, 5, 1, None], pa.int32())}))
    connection.register("new", pa.table({"a": pa.array([100, 1, 2, 9], pa.int32())}))
    old, new = (
        connection.sql(matches_sql(filter_.predicate, name)).to_arrow_table()["matches"]
        for name in ("old", "new")
    )
    actions = transform_updates(old.combine_chunks(), new.combine_chunks())
    assert actions.to_pylist() == ["delete", "insert", "update", None]
    assert connection.execute(matches_sql(None, "old")).fetchall() == [(True,)] * 4
