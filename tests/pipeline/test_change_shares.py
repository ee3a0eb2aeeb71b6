"""A table's changes divided by key give the same messages as all of them in one task."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.storage import Storage, make_folder
from penstock.lsn import Lsn
from penstock.pipeline.change_item import ChangeItem, PublishedTable
from penstock.pipeline.publish_changes import (
    Divided,
    TooManyChanges,
    divide_items,
    encoded_changes,
    run_divide,
    shares,
)
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.protocol.copy_both import xlog_data_head
from penstock.publication.members import Operation
from penstock.relation import Relation, ReplicaIdentity

_SCHEMA = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("v", pa.string())])
_HEADER = 30
"""Bytes of a message before what pgoutput wrote: they hold its length."""

Cells = tuple[int, float | None, str | None]


class _Table:
    """Files of rows that went and came, made at random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self.storage = Storage(str(folder), fsync=False)
        self.uri = f"{self.storage.uri}/t"
        make_folder(self.uri)
        self.went = {i: self._row(i) for i in self._random.sample(range(3000), 1500)}
        self.came: dict[int, Cells] = {}

    def update(self) -> None:
        """Half of the rows are copied, some change, some go; others come."""
        for i, row in self.went.items():
            chance = self._random.random()
            if chance < 0.8:
                self.came[i] = row if chance < 0.5 else self._row(i)
        for i in range(3000, 3700):
            self.came[i] = self._row(i)

    def item(self, *, keyed: bool) -> ChangeItem:
        identity = ReplicaIdentity.DEFAULT if keyed else ReplicaIdentity.FULL
        attributes = (
            Attribute("id", 20, -1, key=True),
            Attribute("f", 701, -1, key=not keyed),
            Attribute("v", 25, -1, key=not keyed),
        )
        key = ("id",) if keyed else ()
        table = PublishedTable(
            Relation(1, "public", "t", identity, attributes),
            "public.t",
            tuple(ScanColumn(field.name, field.name, field.type) for field in _SCHEMA),
            key,
            key,
            dict.fromkeys(Operation, '"id" % 5 <> 0') if keyed else {},
            frozenset(Operation),
        )
        removed, added = self._write(self.went.values(), 3), self._write(self.came.values(), 2)
        return ChangeItem(0, table, self.uri, removed, added, xlog_data_head(Lsn(1), 0))

    def _row(self, i: int) -> Cells:
        f = self._random.choice([0.0, -0.0, 1.5, None, float("nan")])
        return i, f, self._random.choice(["a" * self._random.randrange(200), None, "x"])

    def _write(self, rows: Iterable[Cells], count: int) -> tuple[ScanFile, ...]:
        all_rows = list(rows)
        files = []
        for number in range(count if all_rows else 0):
            columns = zip(*all_rows[number::count], strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)]
            batch = pa.Table.from_arrays(arrays, schema=_SCHEMA)
            files += FileWriter(self.storage, self.uri, _SCHEMA).write([batch])
        return tuple(ScanFile(file.path, file.size, file.rows) for file in files)


def _divided(table: _Table, item: ChangeItem, share_bytes: int) -> list[ChangeItem]:
    parts: list[Divided] = []
    for _, work in divide_items(table.storage, item, f"{table.uri}/staging", share_bytes, 2):
        for result in run_divide(work):
            assert isinstance(result, Divided)
            parts.append(result)
    stored = {part.uri: {run for _, run, _ in part.runs} for part in parts}
    found = shares(item, parts, share_bytes)
    for share in found:
        for rows in (*share.removed, *share.added):
            assert not isinstance(rows, ScanFile)
            stored[rows.uri] -= set(rows.runs)
    assert not any(stored.values()), "rows of no share"
    assert sum(len(p.runs) for p in parts) == sum(
        len(rows.runs) for s in found for rows in (*s.removed, *s.added) if hasattr(rows, "runs")
    ), "rows of two shares"
    return found


def _messages(table: _Table, items: Iterable[ChangeItem]) -> Counter[tuple[Operation, bytes]]:
    found: Counter[tuple[Operation, bytes]] = Counter()
    for item in items:
        for operation, changes, data in encoded_changes(table.storage, item, 1 << 30):
            at, count = 0, 0
            while at < len(data):
                size = 1 + int.from_bytes(data[at + 1 : at + 5], "big")
                found[operation, data[at + _HEADER : at + size]] += 1
                at, count = at + size, count + 1
            assert count == changes
    return found


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("seed", [1, 2])
def test_shares_are_the_whole(tmp_path: Path, keyed: bool, deletes: bool, seed: int) -> None:
    table = _Table(tmp_path, seed)
    if not deletes:
        table.update()
    item = table.item(keyed=keyed)
    whole = _messages(table, [item])
    divided = _divided(table, item, 1 << 11 if deletes else 1 << 14)
    assert len(divided) > 4
    assert _messages(table, divided) == whole
    operations = {operation for operation, _ in whole}
    assert len(operations) == (1 if deletes else 3 if keyed else 2)


def test_too_many_changes_are_found_by_their_bytes(tmp_path: Path) -> None:
    """Not by the size of the files, which compress: nothing has been given out by then."""
    table = _Table(tmp_path, 3)
    table.update()
    item = table.item(keyed=True)
    with pytest.raises(TooManyChanges):
        next(encoded_changes(table.storage, item, 1 << 14))
    assert _messages(table, [item])
