"""Digests differ where multisets of rows do, however rows are divided; what differs is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.lakehouse.storage import Storage
from penstock.pipeline import compare_tables
from penstock.pipeline.compare_tables import DigestColumn, DigestItem, NodeRows, TableDifference
from penstock.pipeline.scan import ScanFile
from penstock.pipeline.table_copy_task import CopyTask

Row = tuple[Any, ...]
SCHEMA = pa.schema([("a", pa.int32()), ("w", pa.float64()), ("x", pa.list_(pa.float32()))])
VALUES = st.tuples(
    st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
    st.sampled_from([None, [], [None], [0.0], [-0.0], [1.0, None], [None, 1.0]]),
)


def columns(*, key: bool) -> tuple[DigestColumn, ...]:
    return tuple(
        DigestColumn(Attribute(field.name, 0, key=key and field.name == "a"), field.type)
        for field in SCHEMA
    )


def batches(rows: Sequence[Row], divided: int) -> list[pa.RecordBatch]:
    parts = [rows[n : n + divided] for n in range(0, len(rows), divided)]
    return [
        pa.RecordBatch.from_arrays(
            [pa.array([row[n] for row in part], field.type) for n, field in enumerate(SCHEMA)],
            schema=SCHEMA,
        )
        for part in parts
    ]


def compared(published: Sequence[Row], held: Sequence[Row], divided: int, *, key: bool) -> Any:
    """As ``Comparison.run`` does it, with rows from here."""
    here = NodeRows(Storage("/nowhere"), "/nowhere", ScanFile("f", 0), ())
    there = object.__new__(CopyTask)
    items = [DigestItem(0, rows, columns(key=key)) for rows in (there, here)]
    table = compare_tables._Compared(columns(key=key), [(0, item) for item in items])

    def of(item: DigestItem, _: object) -> Iterator[pa.RecordBatch]:
        rows = held if isinstance(item.rows, NodeRows) else published
        return (batch for batch in batches(rows, divided))

    with mock.patch.object(compare_tables, "_batches", of):
        for item in items:
            for result in compare_tables.run_digest(item):
                compare_tables._take([table], result)
        for item in items if (wanted := table.told_buckets()) else ():
            for result in compare_tables.run_digest(replace(item, listed=wanted)):
                compare_tables._take([table], result)
    return compare_tables._difference(table, 1000)


def named(row: Row) -> str:
    """A value that is equal where PostgreSQL's text is."""
    return repr(row)


def counts(found: TableDifference) -> dict[str, int]:
    assert found.whole
    return found.kinds


@settings(deadline=None, max_examples=60)
@given(
    published=st.dictionaries(st.integers(0, 9), VALUES, max_size=8),
    held=st.lists(st.tuples(st.integers(0, 9), VALUES), max_size=12),
    keep=st.booleans(),
    divided=st.integers(1, 5),
)
def test_with_a_key(
    published: dict[int, Row], held: list[tuple[int, Row]], keep: bool, divided: int
) -> None:
    theirs = [(key, *values) for key, values in published.items()]
    ours = [(key, *values) for key, values in held] + (theirs if keep else [])
    expected: Counter[str] = Counter()
    lost = Counter(map(named, theirs)) - Counter(map(named, ours))
    made = Counter(map(named, ours)) - Counter(map(named, theirs))
    for key in range(10):
        prefix = f"({key},"
        a = sum(n for row, n in lost.items() if row.startswith(prefix))
        b = sum(n for row, n in made.items() if row.startswith(prefix))
        expected["different"] += min(a, b)
        expected["missing"] += a - min(a, b)
        expected["doubled" if key in published else "extra"] += b - min(a, b)
    found = compared(theirs, ours, divided, key=True)
    assert counts(found) == dict(+expected)
    assert (found.publisher_rows, found.node_rows) == (len(theirs), len(ours))


@settings(deadline=None, max_examples=60)
@given(
    published=st.lists(st.tuples(st.integers(0, 2), VALUES), max_size=12),
    held=st.lists(st.tuples(st.integers(0, 2), VALUES), max_size=12),
    divided=st.integers(1, 5),
)
def test_without_a_key(
    published: list[tuple[int, Row]], held: list[tuple[int, Row]], divided: int
) -> None:
    theirs = [(key, *values) for key, values in published]
    ours = [(key, *values) for key, values in held]
    lost = Counter(map(named, theirs)) - Counter(map(named, ours))
    made = Counter(map(named, ours)) - Counter(map(named, theirs))
    known = set(map(named, theirs))
    expected = Counter(
        missing=lost.total(),
        doubled=sum(count for row, count in made.items() if row in known),
        extra=sum(count for row, count in made.items() if row not in known),
    )
    assert counts(compared(theirs, ours, divided, key=False)) == dict(+expected)


def test_columns_that_differ_are_named() -> None:
    found = compared([(1, 0.0, [1.0])], [(1, -0.0, [1.0, None])], 1, key=True)
    (example,) = found.examples
    assert (example.kind, example.key, example.columns) == ("different", (("a", "1"),), ("w", "x"))


def test_memory_is_bounded_by_rows_and_by_bytes() -> None:
    wide = [pa.record_batch({"a": ["x" * (3 << 20)]}) for _ in range(7)]
    assert [rows.num_rows for rows in compare_tables._gathered(wide)] == [3, 3, 1]
    long = [pa.record_batch({"a": pa.nulls(40_000)}) for _ in range(5)]
    assert [rows.num_rows for rows in compare_tables._gathered(long)] == [80_000, 80_000, 40_000]


def test_keys_are_in_the_order_of_numbers() -> None:
    found = compared([(n, 0.0, None) for n in (2, 10, 1)], [], 2, key=True)
    assert [example.key[0][1] for example in found.examples] == ["1", "2", "10"]
