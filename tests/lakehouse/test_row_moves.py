"""Rows that leave a table arrive in another one exactly once, whatever is committed there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.tables import accounts, again, commit, delta_rs_ids, write
from penstock.errors import StorageError
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.row_moves import Arrivals, arrivals_of, arrive, by_table, departure_mark
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse


def arrivals(table: DeltaTable, *ids: int, group: str = "g") -> Arrivals:
    return Arrivals.of_written(group, 5, table.version, write(table, ids))


def test_once_and_after_what_others_commit(tmp_path: Path) -> None:
    table = accounts(tmp_path, fsync=False)
    log = Warehouse(table.storage.uri, False).log_of(table.uri)
    coming, others = arrivals(table, 1, 2), arrivals(table, 7, group="other")
    table.stage(written=write(table, [3]))
    commit(table, 1)
    assert arrive(log, others)
    assert arrive(log, coming)
    assert not arrive(log, coming)
    assert not arrive(log, others)
    found = again(table)
    assert (found.version, found.rows) == (3, 4)
    assert delta_rs_ids(found) == [1, 2, 3, 7]


def test_the_mark_names_what_is_to_come(tmp_path: Path) -> None:
    table = accounts(tmp_path, fsync=False)
    one, two = arrivals(table, 1), replace(arrivals(table, 2), version=-1)
    assert by_table([one, two]) == [replace(one, version=-1, adds=(*one.adds, *two.adds))]
    table.stage(written=write(table, [9]))
    table.commit(
        app_id="x", version_marker=1, operation="MERGE", user_metadata=departure_mark("g", [one])
    )
    actions = read_entry(table.storage, table.uri, table.version)
    assert actions is not None and arrivals_of(actions) == (one,)
    (info,) = [action["commitInfo"] for action in actions if "commitInfo" in action]
    info["userMetadata"] = '{"penstock.arrivals": [[1, 2], [1, 2, [{}]], 3]}'
    assert arrivals_of(actions) == ()


def test_no_table_is_an_error(tmp_path: Path) -> None:
    table = accounts(tmp_path, fsync=False)
    coming = arrivals(table, 1)
    warehouse = Warehouse(table.storage.uri, False)
    with pytest.raises(StorageError, match="there is no Delta table"):
        arrive(warehouse.log_of(f"{table.uri}_gone"), coming)
