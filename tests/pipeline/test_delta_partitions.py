"""Net changes on tables with Delta's partition columns, and their compaction: random histories."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table_layout import TableLayout
from penstock.pipeline.compact import CompactOptions, compact
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.table_work import ApplyOptions
from penstock.relation import ReplicaIdentity
from pipeline.history import TEXT, Publisher, Row, multiset, record_batch
from pipeline.lake import Lake

FULL, DEFAULT = ReplicaIdentity.FULL, ReplicaIdentity.DEFAULT
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a": (pa.int32(), list(range(200))),
    "b": (pa.string(), ["x", "y/ %", "y", None]),
    "big": (pa.string(), ["toast", "other toast", "more", None]),
    "n": (pa.int64(), [1, -5, None]),
    "d": (pa.date32(), [date(2024, 1, 1), date(1, 1, 1), None]),
    "t": (pa.timestamp("us", "UTC"), [datetime(2024, 1, 1, 1, 1, 1, 5, UTC), None]),
    "f": (pa.float64(), [0.0, -0.0, 1e300, float("nan"), None]),
    "p": (pa.decimal128(9, 3), [Decimal("1.500"), Decimal("-0.001"), None]),
    "o": (pa.bool_(), [True, False, None]),
}
MERGE = CompactOptions(small_files=3)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """All of its work is done without Spark."""
    none: Any = None
    return Lake(none, tmp_path / "warehouse", ApplyOptions(here_seconds=1e9, narrow_cores=2))


@pytest.mark.parametrize(
    ("key", "identity", "partition_by"),
    [
        (("a",), DEFAULT, ("b",)),
        (("a",), DEFAULT, ("big", "d")),
        (("a",), DEFAULT, ("a",)),
        (("b", "a"), DEFAULT, ("b", "t")),
        (("a",), FULL, ("n", "f", "p", "o")),
        ((), FULL, ("f",)),
        ((), FULL, ("b", "big", "n", "o", "d", "t")),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_random_work(
    lake: Lake,
    key: tuple[str, ...],
    identity: ReplicaIdentity,
    partition_by: tuple[str, ...],
    local: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``local``: DuckDB reads the files itself."""
    if not local:
        monkeypatch.setattr("penstock.pipeline.locate.is_local", lambda uri: False)
    source = Publisher({name: kind for name, (kind, _) in VALUES.items()}, key, identity)
    columns = tuple(Column(n, Attribute(n, TEXT), kind) for n, kind in source.types.items())
    schema, layout = TableSchema(columns, key), TableLayout(partition_by)
    table = lake.warehouse.create("public", "t", schema, layout)
    dice = random.Random(repr((key, partition_by)))
    for batch in range(6):
        for _ in range(dice.choice((3, 40))):
            _change(source, dice)
        if batch == 3:
            source.truncate()
            source.insert(_row(source, dice))
        lake.stage((table, source))
        lake.commit(table)
        if batch in (2, 5):
            compact(lake.spark, table, MERGE)
            groups = [tuple((f.partition_values or {}).values()) for f in table.files.values()]
            assert len(groups) - len(set(groups)) < 2
        told = record_batch(source.rows, list(source.types), source.types)
        wanted = multiset(told.to_pylist())
        assert multiset(_rows(lake, source)) == wanted
        scanned = [ScanColumn(c.name, c.name, c.type) for c in columns]
        ours = [
            row
            for file in table.files.values()
            for found in scan(Storage(table.uri), table.uri, ScanFile.of(file), scanned)
            for row in found.to_pylist()
        ]
        assert multiset(ours) == wanted


def _rows(lake: Lake, source: Publisher) -> list[Row]:
    table = lake.warehouse.open("public", "t")
    assert table is not None and local_path(table.uri)
    return [{name: row[name] for name in source.types} for row in lake.read(table)]


def _row(source: Publisher, dice: random.Random) -> Row:
    row = {name: dice.choice(values) for name, (_, values) in VALUES.items()}
    taken = {each["a"] for each in source.rows}
    row["a"] = next(a for a in VALUES["a"][1] if a not in taken)
    if "b" in source.key:
        row["b"] = row["b"] or "x"
    return row


def _change(source: Publisher, dice: random.Random) -> None:
    if dice.random() < 0.4 or not source.rows:
        source.insert(_row(source, dice))
        return
    at = dice.randrange(len(source.rows))
    if dice.random() < 0.3:
        source.delete(at)
        return
    new = _row(source, dice)
    names = dice.sample(sorted(VALUES), dice.choice((1, 2, 4)))
    values = {name: new[name] for name in names}
    source.update(at, values, dice.choice((frozenset({"big"}), frozenset({"big", "b"}))))
