"""Commits of one app id are taken back: the rows are as without them, and others' commits stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable as DeltaRs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from faults.heavy import part_of_make_faults
from lakehouse.tables import APP, accounts, again, commit, delta_rs_ids, write
from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_changes import table_changes

OPERATION = "REPLICATION"
STEPS = st.lists(st.sampled_from(["insert", "delete", "truncate", "rewrite"]), max_size=5)


def change(table: DeltaTable, step: str, number: int) -> None:
    """Stage something; ids of inserted rows are new ones."""
    if step == "truncate":
        table.stage(remove_all=True)
    if step in ("insert", "truncate", "rewrite"):
        table.stage(written=write(table, range(10 * number, 10 * number + 3)))
    if step in ("delete", "rewrite"):
        rows = {path: file.rows for path, file in table.files.items()}
        table.stage(
            deleted={p: BitMap([(number + n) % r]) for n, (p, r) in enumerate(rows.items())}
        )


def take_back(table: DeltaTable, since: int) -> bool:
    found = table.reversal(APP, since, OPERATION)
    if found is None:
        return False
    table.reverse(APP, found)
    return True


@part_of_make_faults
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(before=STEPS, taken_back=STEPS, after=STEPS)
def test_rows_and_marker_are_as_before(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[str],
    taken_back: list[str],
    after: list[str],
) -> None:
    table = accounts(tmp_path_factory.mktemp("w"))
    for number, step in enumerate(["insert", *before], 1):
        change(table, step, number)
        commit(table, 100 + number)
    version, rows, marker = table.version, delta_rs_ids(table), table.transaction_version(APP)
    for number, step in enumerate(taken_back, 20):
        change(table, step, number)
        commit(table, 200 + number)
    table = again(table)
    assert take_back(table, 199) is bool(taken_back)
    assert delta_rs_ids(table) == rows
    assert again(table).transaction_version(APP) == table.transaction_version(APP) == marker
    assert not take_back(again(table), 199)
    changes = table_changes(table.storage, table.uri, version, table.version)
    assert not changes.truncated
    # The files that came are gone again.
    assert changes.after.files.keys() == changes.before.files.keys()
    for number, step in enumerate(after, 40):
        change(table, step, number)
        commit(table, 300 + number)
    assert table.rows == len(delta_rs_ids(table))


def test_what_others_have_committed_stays(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(5)))
    commit(table, 100)
    path = next(iter(table.files))
    table.stage(written=write(table, [10]), deleted={path: BitMap([0, 1])})
    commit(table, 200)
    other = again(table)
    other.stage(written=write(other, [20]), deleted={path: BitMap([4])})
    other.commit(app_id="other", operation="WRITE")
    assert take_back(table, 100)
    assert delta_rs_ids(table) == [0, 1, 2, 3, 20]


def test_rows_do_not_come_back_to_a_table_that_others_have_emptied(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(5)))
    commit(table, 100)
    table.stage(deleted={next(iter(table.files)): BitMap([0])})
    commit(table, 200)
    other = again(table)
    other.stage(remove_all=True)
    other.commit(app_id="other", operation="TRUNCATE")
    assert take_back(table, 100)
    assert delta_rs_ids(table) == []
    assert table.transaction_version(APP) == 100


def test_rows_that_others_have_copied_are_not_known(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for lsn in (100, 200):
        table.stage(written=write(table, range(lsn, lsn + 5)))
        commit(table, lsn)
    DeltaRs(local_path(table.uri)).optimize.compact()
    rows = delta_rs_ids(table)
    with pytest.raises(NotInPrerequisiteState, match="others have rewritten files"):
        take_back(table, 100)
    assert delta_rs_ids(table) == rows
