"""What a history tells of a run of changes: all versions of its rows, whatever was sent of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from penstock.lakehouse import batches as reading
from penstock.lakehouse.batches import BATCH_BYTES, read_rows
from penstock.lakehouse.history_table import CHANGE_TYPES, DELETE, INSERT, PREIMAGE, open_history
from penstock.lsn import Lsn
from penstock.pipeline.apply import run_batch
from penstock.pipeline.fold import fold
from penstock.pipeline.history import HistoryWork
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.relation import ReplicaIdentity
from penstock.subscription.history import TransactionStamps
from pipeline.history import Message, Publisher, Row, batches, multiset
from pipeline.lake import Lake
from pipeline.test_fold import apply_to, folded, histories, schema_of

_POSTIMAGE = CHANGE_TYPES.index("update_postimage")
_TOLD = tuple[int, int, Row]


def _expected(messages: list[Message]) -> Iterator[_TOLD]:
    for sequence, message in enumerate(messages):
        if message.old is not None:
            yield sequence, DELETE if message.operation == "D" else PREIMAGE, message.old
        if message.new is not None:
            yield sequence, INSERT if message.operation == "I" else _POSTIMAGE, message.new


def _segments(messages: list[Message]) -> list[list[Message]]:
    found: list[list[Message]] = [[]]
    for message in messages:
        if message.operation == "T":
            found.append([])
        found[-1].append(message)
    return [segment for segment in found if segment]


def _check(start: list[Row], chunks: list[Any], publisher: Publisher) -> None:
    rows = start
    for types, messages in chunks:
        for segment in _segments(messages):
            changes, truncates = batches(segment, types)
            schema = schema_of(types, publisher.key)
            net = fold(changes, schema, truncates=truncates, with_versions=True)
            rows = [{name: row.get(name) for name in types} for row in rows]
            held = {tuple(row[name] for name in publisher.key): row for row in rows}
            old = [held[tuple(key.values())] for key in net.removed.to_pylist()]
            told: list[_TOLD] = []
            assert net.versions is not None
            for part in net.versions.parts(100):
                for at, row in enumerate(part.rows.to_pylist()):
                    for name in [name for name, mask in part.missing.items() if mask[at]]:
                        assert row[name] is None
                        row[name] = old[part.old[at]][name]
                    told.append((int(part.sequence[at]), int(part.type[at]), row))
            expected = [(*of, {n: row.get(n) for n in types}) for *of, row in _expected(segment)]
            assert told == expected
            rows = apply_to(rows, net)


@given(histories(("a",), ReplicaIdentity.DEFAULT))
@settings(max_examples=100, deadline=None)
def test_with_a_key(history: Any) -> None:
    _check(*history)


@given(histories(("b", "a"), ReplicaIdentity.FULL))
@settings(max_examples=50, deadline=None)
def test_with_whole_old_rows(history: Any) -> None:
    _check(*history)


@pytest.mark.parametrize("inserted", [True, False])
def test_a_large_value_is_kept_once(inserted: bool) -> None:
    """A counter beside a document: one row, thousands of versions in a batch."""
    publisher = Publisher({"a": pa.int32(), "n": pa.int64(), "big": pa.string()}, ("a",))
    publisher.insert({"a": 1, "n": 0, "big": "x" * 1_000_000})
    if not inserted:
        publisher.take_messages()
    for number in range(3000):
        publisher.update(0, {"n": number}, frozenset({"big"}))
    before = pa.total_allocated_bytes()
    net = folded(publisher, publisher.take_messages(), with_versions=True)
    assert net.versions is not None
    for part in net.versions.parts(5_000_000):
        assert part.rows.nbytes < 5_000_000
        assert pa.total_allocated_bytes() - before < 20_000_000
    assert net.versions.missing["big"].sum() == (0 if inserted else 3000)


def test_an_old_row_that_many_versions_need(tmp_path: Path) -> None:
    """3 GB are more than an Arrow array of strings holds."""
    rows = pa.table({"big": ["x" * 1_000_000, "y"]})
    pq.write_table(rows, tmp_path / "old.parquet")
    position = np.concatenate([np.zeros(3000, np.int64), np.ones(2, np.int64)])
    many = 0
    with pq.ParquetFile(tmp_path / "old.parquet") as parquet:
        for here, batch in read_rows(parquet, ["big"], position):
            assert here.start == many and batch.num_rows == here.stop - here.start
            assert batch.nbytes <= BATCH_BYTES
            many = here.stop
    assert many == len(position)


def test_in_files_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 2500)
    spark: Any = None  # so little is done here
    lake = Lake(spark, tmp_path, ApplyOptions(here_seconds=9.0, max_slice_bytes=3000))
    types = {"a": pa.int32(), "n": pa.int64(), "big": pa.string(), "more": pa.string()}
    publisher = Publisher(types, ("a",))
    for a in range(4):
        publisher.insert({"a": a, "n": 0, "big": f"{a}" * 1000, "more": "m" * a})
    table = lake.create(publisher)
    history = open_history(lake.warehouse, ("public", "t"), table.schema)
    expected: list[Row] = []
    for chunk in range(3):
        for n in range(10 * chunk):
            at, more = n % 4, {} if n % 3 else {"more": f"{n}" * 900}
            publisher.update(at, {"n": n, **more}, frozenset({"big", "more"}))
            if n == 15:
                publisher.update(at, {"a": 70}, frozenset({"big", "more"}))
        messages = publisher.take_messages()
        expected += [message.new for message in messages if message.new is not None]
        changes, _ = batches(messages, types)
        stamps = TransactionStamps().of_undecoded(Lsn(chunk), 0)
        net = fold(changes, table.schema, with_versions=True)
        work = TableWork(table, net, history=HistoryWork(history, stamps, 0))
        run_batch(spark, [work], lake.options)
        lake.commit(history)
        lake.commit(table)
    lake.check(table, publisher)
    told = [{name: row[name] for name in types} for row in lake.read(history) if _is_new(row)]
    assert multiset(told) == multiset(expected)


def _is_new(row: Row) -> bool:
    return row["_change_type"] in ("insert", "update_postimage")
