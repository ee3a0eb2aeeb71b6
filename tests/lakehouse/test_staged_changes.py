"""What a transaction block stages of a table: its view, its commit, the way back, conflicts.

delta-rs reads what was committed, as an independent judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import write_deltalake
from pyroaring import BitMap

from lakehouse.tables import accounts, commit, delta_rs_ids, rows_of, write
from penstock.errors import (
    CommitConflict,
    FeatureNotSupported,
    NotInPrerequisiteState,
    PenstockError,
)
from penstock.lakehouse.change import StagedChange, StagedCommit, from_json, to_json
from penstock.lakehouse.state import TableState, load, load_vectors
from penstock.lakehouse.table import DeltaTable


def made(folder: Path, ids: Iterable[int]) -> DeltaTable:
    """A table of one file."""
    table = accounts(folder)
    also(table, 1, written=write(table, ids))
    return table


def also(table: DeltaTable, lsn: int, **staged: Any) -> None:
    """A commit of others."""
    table.stage(**staged)
    commit(table, lsn)


_KINDS = ("insert", "update", "delete")


def state_of(table: DeltaTable) -> TableState:
    state = load(table.storage, table.uri)
    assert state is not None
    load_vectors(table.storage, table.uri, state)
    return state


class Model:
    """Rows by file and position, beside what is staged."""

    def __init__(self, table: DeltaTable, ids: Sequence[int]) -> None:
        (path,) = table.files
        self.table, self.state = table, state_of(table)
        self.change = StagedChange.of(7, table.uri, table.name, self.state)
        self.rows = {(path, at): id_ for at, id_ in enumerate(ids)}

    def statement(self, random: Random, new: Sequence[int]) -> None:
        """Some rows go, others come."""
        kind = random.choice(_KINDS)
        gone = [] if kind == "insert" else random.sample(list(self.rows), len(self.rows) // 3)
        positions: dict[str, BitMap] = {}
        for path, at in gone:
            positions.setdefault(path, BitMap()).add(at)
            del self.rows[path, at]
        written = [] if kind == "delete" else write(self.table, new)
        self.change = self.change.with_rows(kind, self.state, positions, written)
        for file in written:
            self.rows |= {(file.path, at): id_ for at, id_ in enumerate(new)}


def live_rows(model: Model) -> int:
    """Of the files that the transaction sees."""
    state = model.state.copy()
    state.files = model.change.files(model.state)
    load_vectors(model.table.storage, model.table.uri, state)
    return sum(file.live_rows for file in state.files.values())


@pytest.mark.parametrize("seed", range(6))
def test_what_statements_add_up_to(tmp_path: Path, seed: int) -> None:
    """Beside a commit of others that leaves these rows alone; and taken back again."""
    random, before = Random(seed), list(range(30))
    table = made(tmp_path, before)
    model = Model(table, before)
    for number in range(5):
        model.statement(random, range(100 * (number + 1), 100 * (number + 1) + 9))
    assert live_rows(model) == len(model.rows)
    change = from_json(json.loads(json.dumps(to_json(model.change))))
    assert to_json(change) == to_json(model.change)
    also(table, 9, written=write(table, [7000, 7001]))
    table.reload()
    storage, store = table.storage, table._store
    done = StagedCommit(storage, store, change, "the block", [7, 8])
    version = done.put()
    assert delta_rs_ids(table) == sorted([*model.rows.values(), 7000, 7001])
    assert done.put() == version, "it is there already"
    done.undo()
    assert delta_rs_ids(table) == sorted([*before, 7000, 7001])
    done.undo()
    newest = load(storage, table.uri)
    assert newest is not None and newest.version == version + 1


def test_rows_that_others_have_changed(tmp_path: Path) -> None:
    """Of one file: other rows of it are no conflict, nor is the way back after that."""
    table = made(tmp_path, range(10))
    (path,) = table.files
    state = state_of(table)
    change = StagedChange.of(7, table.uri, table.name, state)
    change = change.with_rows("update", state, {path: BitMap([1, 2])}, write(table, [101, 102]))
    also(table, 9, deleted={path: BitMap([5])})
    done = StagedCommit(table.storage, table._store, change, "g", [7, 8])
    done.put()
    assert delta_rs_ids(table) == [0, 3, 4, 6, 7, 8, 9, 101, 102]
    table.reload()
    also(table, 10, deleted={path: BitMap([6])})
    done.undo()
    assert delta_rs_ids(table) == [0, 1, 2, 3, 4, 7, 8, 9]
    late = change.with_rows("delete", state, {path: BitMap([6])}, ())
    with pytest.raises(CommitConflict, match="others have changed rows"):
        StagedCommit(table.storage, table._store, late).put()


@pytest.mark.parametrize(
    ("others", "left"),
    [
        (lambda table: DeltaRs(table.uri).delete(), []),
        (lambda table: DeltaRs(table.uri).delete("id > 0"), [0, 1, 2, 3]),
        (lambda table: overwrite(table, mode="overwrite"), [77]),
        (lambda table: overwrite(table, mode="overwrite", predicate="id >= 0"), [0, 1, 2, 3, 77]),
        (lambda table: DeltaRs(table.uri).optimize.compact(), list(range(10))),
        (lambda table: DeltaRs(table.uri).update({"id": "id + 50"}), [0, 1, 2, 3, *range(54, 60)]),
    ],
    ids=["delete", "where", "overwrite", "replace", "optimize", "update"],
)
@pytest.mark.parametrize("whole", [True, False], ids=["whole files", "rows"])
def test_what_others_have_emptied_stays_empty(
    tmp_path: Path, others: Callable[[DeltaTable], object], left: list[int], *, whole: bool
) -> None:
    """Rows that a block had taken would have gone with the others; a condition says nothing."""
    table = accounts(tmp_path)
    for ids in ([0, 1, 2, 3], range(4, 10)) if whole else (range(10),):
        also(table, ids[-1], written=write(table, ids))
        table.reload()
    state = state_of(table)
    (path,) = (path for path, file in state.files.items() if file.rows in (4, 10))
    change = StagedChange.of(7, table.uri, table.name, state)
    change = change.with_rows("delete", state, {path: BitMap(range(4))}, ())
    done = StagedCommit(table.storage, table._store, change, "g", [7, 8])
    done.put()
    assert delta_rs_ids(table) == list(range(4, 10))
    others(table)
    done.undo()
    assert delta_rs_ids(table) == left


def overwrite(table: DeltaTable, **how: Any) -> None:
    """By delta-rs, with one row."""
    write_deltalake(table.uri, rows_of([77]), **how)


def test_a_row_that_no_file_has(tmp_path: Path) -> None:
    """Neither of the table's files nor of own ones: readers would refuse such a vector."""
    table = made(tmp_path, range(3))
    (path,) = table.files
    state, (new,) = state_of(table), write(table, [5])
    change = StagedChange.of(7, table.uri, table.name, state)
    wrong = change.with_rows("delete", state, {path: BitMap([7])}, ())
    with pytest.raises(PenstockError, match="has 3 rows, row 7 was deleted"):
        StagedCommit(table.storage, table._store, wrong).put()
    own = change.with_rows("insert", state, {}, [new])
    with pytest.raises(PenstockError, match="has 1 rows, row 1 was deleted"):
        own.with_rows("delete", state, {new.path: BitMap([1])}, ())
    assert delta_rs_ids(table) == [0, 1, 2]


def test_files_that_vacuum_has_taken(tmp_path: Path) -> None:
    """Nothing is committed that nobody can read."""
    table = made(tmp_path, range(3))
    state, written = state_of(table), write(table, [5])
    change = StagedChange.of(7, table.uri, table.name, state)
    change = change.with_rows("insert", state, {}, written)
    table.storage.remove(f"{table.uri}/{written[0].path}")
    with pytest.raises(CommitConflict, match="were removed"):
        StagedCommit(table.storage, table._store, change, "g", [7, 8]).put()
    assert delta_rs_ids(table) == [0, 1, 2]


def test_a_feature_that_came_before_the_way_back(tmp_path: Path) -> None:
    """A commit without what it asks for would damage the table."""
    table = made(tmp_path, range(3))
    state = state_of(table)
    change = StagedChange.of(7, table.uri, table.name, state)
    change = change.with_rows("insert", state, {}, write(table, [5]))
    done = StagedCommit(table.storage, table._store, change, "g", [7, 8])
    version = done.put()
    features = [*state.protocol["writerFeatures"], "rowTracking"]
    protocol = {"protocol": {**state.protocol, "writerFeatures": features}}
    table._store.put(table.uri, version + 1, [json.dumps(protocol)])
    with pytest.raises(FeatureNotSupported, match="rowTracking"):
        done.undo()


def test_a_table_that_was_altered_or_dropped(tmp_path: Path) -> None:
    table = made(tmp_path, range(3))
    state = state_of(table)
    change = StagedChange.of(7, table.uri, table.name, state)
    change = change.with_rows("insert", state, {}, write(table, [5]))
    table.drop_columns(["owner"])
    commit(table, 9)
    with pytest.raises(CommitConflict, match="was altered"):
        StagedCommit(table.storage, table._store, change).put()
    table.storage.discard_folder(table.uri)
    with pytest.raises(CommitConflict, match="was dropped"):
        StagedCommit(table.storage, table._store, change).put()
    StagedCommit(table.storage, table._store, change, "g", [7]).undo()


def test_the_way_back_after_vacuum(tmp_path: Path) -> None:
    """A table that names files which are gone could not be read any more."""
    table = made(tmp_path, range(10))
    (path,) = table.files
    change = StagedChange.of(7, table.uri, table.name, table.state)
    change = change.with_rows("delete", table.state, {path: BitMap(range(10))}, write(table, [77]))
    done = StagedCommit(table.storage, table._store, change, "the block", [7, 8])
    done.put()
    content = table.storage.read(f"{table.uri}/{path}")
    table.storage.remove(f"{table.uri}/{path}")
    with pytest.raises(NotInPrerequisiteState, match="were removed"):
        done.undo()
    assert delta_rs_ids(table) == [77]
    table.storage.write(f"{table.uri}/{path}", content)
    done.undo()
    assert delta_rs_ids(table) == list(range(10))
