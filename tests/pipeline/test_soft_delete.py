"""``soft_delete``: rows that were there before a run and are deleted in it stay, as they were."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.catalog.pg_subscription import LakeOptions
from penstock.lakehouse.history_table import COMMIT_TIMESTAMP
from penstock.lakehouse.metadata_columns import DELETED
from penstock.lakehouse.schema import DELETED_AT, TableSchema
from penstock.pipeline.apply import run_batch
from penstock.pipeline.changes import Stamped
from penstock.pipeline.conflict import APPLY_REMOTE
from penstock.pipeline.fold import fold
from penstock.pipeline.net_change import NetChange
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.relation import ReplicaIdentity
from pipeline.history import Message, Publisher, Row, batches, multiset
from pipeline.lake import Lake
from pipeline.test_fold import TYPES, schema_of

_KEYS = st.tuples(st.integers(0, 3), st.sampled_from("xy"))
_BEGAN = datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))


def _schema(key: tuple[str, ...]) -> TableSchema:
    return schema_of(TYPES, key).with_columns([DELETED])


def _at(chunk: int, sequence: int) -> datetime:
    return _BEGAN + timedelta(days=chunk, seconds=sequence)


def _stamped(chunk: int) -> Stamped:
    def of(sequence: Any) -> dict[str, pa.Array]:
        times = [_at(chunk, at) for at in sequence.tolist()]
        return {COMMIT_TIMESTAMP: pa.array(times, pa.timestamp("us", "UTC"))}

    return of


@dataclass
class Kept(Publisher):
    """A publisher that knows which rows a table has shown, and which of those it has deleted. Of
    equal rows without a key, those go first that were not shown."""

    shown: list[bool] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    chunk: int = 0

    def insert(self, row: Row) -> None:
        super().insert(row)
        self.shown.append(False)

    def change(self, at: int, values: Row | None, unchanged: frozenset[str]) -> None:
        if not self.key:
            same = [n for n, row in enumerate(self.rows) if row == self.rows[at]]
            at = min(same, key=lambda n: self.shown[n])
        if values is not None:
            self.update(at, values, unchanged)
            return
        if self.shown.pop(at):
            when = _at(self.chunk, len(self.messages))
            self.dead.append({**self.rows[at], DELETED_AT: when})
        self.delete(at)

    def take_messages(self) -> list[Message]:
        self.shown = [True] * len(self.rows)
        self.chunk += 1
        return super().take_messages()


def carried_out(rows: list[Row], net: NetChange) -> list[Row]:
    """The net change on a plain list of rows, of which it looks at the live ones."""
    dead = [row for row in rows if row[DELETED_AT] is not None]
    live = [row for row in rows if row[DELETED_AT] is None]
    names, old = net.removed.column_names, []
    copies = [1] * net.removed.num_rows if net.copies is None else net.copies.tolist()
    for key, count in zip(net.removed.to_pylist(), copies, strict=True):
        for _ in range(count):
            old.append(next(row for row in live if {n: row[n] for n in names} == key))
            live.remove(old[-1])
    new = net.rows.to_pylist()
    if net.incomplete is not None:
        for at, row in enumerate(net.incomplete.rows.to_pylist()):
            gaps = {name for name, mask in net.incomplete.missing.items() if mask[at]}
            new.append(row | {name: old[net.incomplete.old[at]][name] for name in gaps})
    if net.ended is not None:
        stamps = net.ended.stamps.to_pylist()
        new += [old[at] | stamp for at, stamp in zip(net.ended.old, stamps, strict=True)]
    return [*dead, *live, *new]


@st.composite
def _stories(draw: st.DrawFn, key: tuple[str, ...], identity: ReplicaIdentity) -> Any:
    publisher = Kept(dict(TYPES), key, identity)
    chunks: list[list[Message]] = []
    steps = st.sampled_from(["insert", "insert", "delete", "delete", "update", "update", "border"])
    for number, step in enumerate(draw(st.lists(steps, min_size=4, max_size=25))):
        held = len(publisher.rows)
        at = draw(st.integers(0, held - 1)) if held else 0
        if step == "border":
            chunks.append(publisher.take_messages())
        elif step == "insert":
            a, b = draw(_KEYS)
            row = {"a": a, "b": b, "big": f"b{number}" if key else None, "n": 0}
            if not key or not any((r["a"], r["b"]) == (a, b) for r in publisher.rows):
                publisher.insert(row)
        elif held and step == "delete":
            publisher.change(at, None, frozenset())
        elif held:
            a, b = draw(_KEYS)
            held_by = {(r["a"], r["b"]) for r in publisher.rows} if key else set()
            values: Row = {} if (a, b) in held_by else {"a": a, "b": b}
            values |= draw(st.sampled_from([{}, {"big": f"B{number}"}, {"n": 1}]))
            toasted = st.sampled_from([frozenset(), frozenset({"big"})])
            publisher.change(at, values, draw(toasted) if key else frozenset())
    chunks.append(publisher.take_messages())
    return chunks, publisher


def _check(chunks: list[list[Message]], publisher: Kept) -> None:
    rows: list[Row] = []
    for chunk, messages in enumerate(chunks):
        found, _ = batches(messages, TYPES)
        schema = _schema(publisher.key)
        rows = carried_out(
            rows,
            fold(found, schema, stamped=_stamped(chunk), options=LakeOptions(soft_delete=True)),
        )
    live = [
        {k: v for k, v in row.items() if k != DELETED_AT} for row in rows if not row[DELETED_AT]
    ]
    assert multiset(live) == multiset(publisher.rows)
    assert multiset([row for row in rows if row[DELETED_AT]]) == multiset(publisher.dead)


@given(_stories(("a", "b"), ReplicaIdentity.DEFAULT))
@settings(max_examples=150)
def test_with_a_key(story: Any) -> None:
    _check(*story)


@given(_stories(("a", "b"), ReplicaIdentity.FULL))
def test_with_a_key_and_whole_old_rows(story: Any) -> None:
    _check(*story)


@given(_stories((), ReplicaIdentity.FULL))
@settings(max_examples=150)
def test_without_a_key(story: Any) -> None:
    _check(*story)


def _folded(messages: list[Message], **options: Any) -> NetChange:
    found, _ = batches(messages, TYPES)
    schema = _schema(("a", "b"))
    return fold(found, schema, stamped=_stamped(0), options=LakeOptions(**options))


@pytest.mark.parametrize("soft_delete", [True, False])
def test_without_the_option_deletes_are_what_they_were(soft_delete: bool) -> None:
    relation = Publisher(dict(TYPES), ("a", "b")).relation
    old = {"a": 1, "b": "x", "big": None, "n": None}
    update = Message(relation, "U", new={**old, "n": 2}, unchanged=frozenset({"big"}))
    net = _folded([update, Message(relation, "D", old=old)], soft_delete=soft_delete)
    assert net.removed.num_rows == 1
    assert net.rows_written == (1 if soft_delete else 0)


def test_a_row_that_took_the_place_of_another_stays_as_it_was_sent() -> None:
    relation = Publisher(dict(TYPES), ("a", "b")).relation
    new = {"a": 1, "b": "x", "big": "theirs", "n": 5}
    messages = [Message(relation, "I", new=new), Message(relation, "D", old=new)]
    net = _folded(messages, soft_delete=True, conflict_resolution=APPLY_REMOTE)
    assert net.empty
    assert net.absent.num_rows == 1 and net.existing is not None
    net = net.existing(np.array([0]), {})
    assert net.rows.to_pylist() == [{**new, DELETED_AT: _at(0, 1)}]
    assert net.removed.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("soft_delete", [True, False])
@pytest.mark.parametrize("here", [True, False])
def test_a_row_without_a_key_that_goes_and_comes_again(soft_delete: bool, here: bool) -> None:
    """Somebody may have taken it away: it is looked for, and is there in the end."""
    relation = Publisher(dict(TYPES), (), ReplicaIdentity.FULL).relation
    row = {"a": 1, "b": "x", "big": None, "n": None}
    found, _ = batches([Message(relation, "D", old=row), Message(relation, "I", new=row)], TYPES)
    net = fold(
        found, _schema(()), stamped=_stamped(0), options=LakeOptions(soft_delete=soft_delete)
    )
    assert net.removed.to_pylist() == [row]
    assert net.copies is not None and net.copies.tolist() == [1]
    if not here:
        assert net.without is not None
        net = net.without(np.array([1]))
        assert net.removed.num_rows == 0
        assert net.skipped is not None and net.skipped.delete_missing == 1
    live = [found for found in net.rows.to_pylist() if not found.get(DELETED_AT)]
    assert [{name: found[name] for name in row} for found in live] == [row]
    assert net.rows_written == (2 if soft_delete and here else 1)


@pytest.mark.spark
@pytest.mark.parametrize(("folder", "here"), [("in executors", 0.0), ("read[by]parts", 9.0)])
def test_in_files(spark: Any, tmp_path: Path, folder: str, here: float) -> None:
    """In executors, and where DuckDB does not read the files itself."""
    lake = Lake(spark, tmp_path / folder, ApplyOptions(here_seconds=here))
    publisher = Kept(dict(TYPES), ("a", "b"))
    table = lake.create(publisher)
    table.add_columns([DELETED])
    dice = random.Random("in executors")  # keys come back
    for chunk in range(8):
        for number in range(12):
            at = dice.randrange(len(publisher.rows)) if publisher.rows else -1
            values = {"n": number} if dice.random() < 0.5 else None
            if at >= 0 and dice.random() < 0.5:
                publisher.change(at, values, frozenset({"big"}))
            elif not any(row["a"] == number for row in publisher.rows):
                publisher.insert({"a": number, "b": "x", "big": f"{chunk}/{number}", "n": 0})
        found, _ = batches(publisher.take_messages(), TYPES)
        net = fold(
            found, table.schema, stamped=_stamped(chunk), options=LakeOptions(soft_delete=True)
        )
        run_batch(lake.spark, [TableWork(table, net)], lake.options)
        if chunk % 3:
            lake.commit(table)
    live = [row for row in lake.read(table) if row.pop(DELETED_AT) is None]
    dead = [row for row in lake.read(table) if row[DELETED_AT] is not None]
    assert multiset(live) == multiset(publisher.rows)
    assert multiset(dead) == multiset(publisher.dead)
    assert len(dead) > 5
