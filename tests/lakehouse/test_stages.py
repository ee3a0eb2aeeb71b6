"""Stages of a table: what they add up to, what a commit makes of them, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap

from lakehouse.tables import (
    ACCOUNTS,
    APP,
    accounts,
    again,
    commit,
    delta_rs_ids,
    write,
)
from penstock.attribute import Attribute
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    PenstockError,
    UndefinedObject,
)
from penstock.lakehouse import table as table_module
from penstock.lakehouse.log import entry_uri, read_entry
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse


def entry(table: DeltaTable) -> dict[str, list[dict[str, Any]]]:
    """The actions of the newest log entry, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for action in read_entry(table.storage, table.uri, table.version) or ():
        for kind, body in action.items():
            found.setdefault(kind, []).append(body)
    return found


def test_create_and_open(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path), False)
    assert warehouse.open("public", "accounts") is None
    table = warehouse.create("public", "accounts", ACCOUNTS)
    assert (table.version, table.rows, table.schema, table.name) == (
        0,
        0,
        ACCOUNTS,
        "public.accounts",
    )
    assert table.uri == f"file://{tmp_path}/public/accounts"
    assert table.transaction_version(APP) is None and table.last_app_id is None
    with pytest.raises(DuplicateObject):
        warehouse.create("public", "accounts", ACCOUNTS)
    again_ = again(table)
    assert (again_.version, again_.schema) == (0, ACCOUNTS)


def test_commit_of_nothing_moves_the_marker(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    assert commit(table, 7) == 1
    for seen in (table, again(table)):
        assert (seen.transaction_version(APP), seen.last_app_id, seen.rows) == (7, APP, 0)


def test_stages_add_up_to_one_commit(tmp_path: Path) -> None:
    """An old file that two stages delete from, and a new file that a later stage deletes from."""
    table = accounts(tmp_path)
    (old,) = write(table, range(10))
    table.stage(written=[old])
    commit(table, 1)
    (new,) = write(table, range(10, 20))
    table.stage(written=[new], deleted={old.path: BitMap([1])})
    assert table.rows == 19 and table.files[old.path].positions_deleted() == BitMap([1])
    table.stage(deleted={old.path: BitMap([1, 2]), new.path: BitMap([0])})
    assert table.rows == 17
    commit(table, 2)
    found = entry(table)
    (removed,) = found["remove"]
    assert removed["path"] == old.path and "deletionVector" not in removed
    added = {body["path"]: body for body in found["add"]}
    assert added[old.path]["deletionVector"]["cardinality"] == 2
    assert added[new.path]["deletionVector"]["cardinality"] == 1
    stats = json.loads(added[new.path]["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (10, False)
    assert len(list(Path(local_path(table.uri)).glob("deletion_vector_*.bin"))) == 1
    assert delta_rs_ids(table) == [0, *range(3, 10), *range(11, 20)]

    table.stage(deleted={old.path: BitMap([0])})
    commit(table, 3)
    (removed,) = entry(table)["remove"]
    assert removed["deletionVector"] == added[old.path]["deletionVector"]
    assert delta_rs_ids(table) == [*range(3, 10), *range(11, 20)]


def test_file_without_rows_left_is_removed(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    (old,) = write(table, range(3))
    table.stage(written=[old])
    commit(table, 1)
    (new,) = write(table, range(3, 6))
    table.stage(written=[new], deleted={old.path: BitMap([0, 1])})
    table.stage(deleted={old.path: BitMap([2]), new.path: BitMap([0, 1, 2])})
    assert table.files == {}
    commit(table, 2)
    found = entry(table)
    assert [body["path"] for body in found["remove"]] == [old.path] and "add" not in found
    assert not Path(local_path(table.uri), new.path).exists(), "nobody can ever read it"
    assert Path(local_path(table.uri), old.path).exists(), "older versions have it"


def test_remove_all_drops_current_and_staged_files(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(5)))
    commit(table, 1)
    table.stage(written=write(table, [5]))
    table.stage(remove_all=True, written=write(table, [6]))
    commit(table, 2)
    assert delta_rs_ids(table) == [6] and again(table).rows == 1


def test_discard_goes_back_and_removes_the_files(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    (old,) = write(table, range(5))
    table.stage(written=[old])
    commit(table, 1)
    (new,) = write(table, [5])
    table.stage(written=[new], deleted={old.path: BitMap([0])})
    table.add_columns([Column("x", Attribute("x", 0), pa.int64())])
    assert table.has_staged
    table.discard()
    assert not table.has_staged and table.schema == ACCOUNTS
    assert list(table.files) == [old.path] and table.rows == 5
    assert not Path(local_path(table.uri), new.path).exists()
    commit(table, 2)
    assert set(entry(table)) == {"commitInfo", "txn"}


def test_what_a_stage_refuses(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    (file,) = write(table, range(5))
    table.stage(written=[file])
    with pytest.raises(PenstockError, match="twice"):
        table.stage(written=[file])
    with pytest.raises(PenstockError, match="5 rows"):
        table.stage(deleted={file.path: BitMap([5])})
    with pytest.raises(CommitConflict, match="no file"):
        table.stage(deleted={"gone.parquet": BitMap([0])})


def test_commit_info_and_markers(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, [1]))
    table.commit(
        app_id=APP,
        version_marker=2**62,
        operation="COMPACTION",
        extra_markers={"copy": 5},
        user_metadata={"end_lsn": "0/5"},
        data_change=False,
    )
    found = entry(table)
    assert [(t["appId"], t["version"]) for t in found["txn"]] == [(APP, 2**62), ("copy", 5)]
    assert json.loads(found["commitInfo"][0]["userMetadata"]) == {"end_lsn": "0/5"}
    assert found["add"][0]["dataChange"] is False
    seen = again(table)
    assert (seen.transaction_version("copy"), seen.transaction_version(APP)) == (5, 2**62)
    assert seen.last_app_id == APP


def test_race_has_one_winner(tmp_path: Path) -> None:
    one = accounts(tmp_path)
    other = again(one)
    one.stage(written=write(one, [1]))
    (file,) = write(other, [2, 3])
    other.stage(written=[file])
    other.stage(deleted={file.path: BitMap([1])})
    commit(one, 1)
    with pytest.raises(CommitConflict, match="version 1"):
        commit(other, 2)
    assert not list(Path(local_path(one.uri)).glob("deletion_vector_*")), "nobody can need it"
    other.reload()
    assert (other.version, other.rows, other.transaction_version(APP)) == (1, 1, 1)
    other.stage(written=write(other, [2]))
    assert commit(other, 2) == 2
    assert delta_rs_ids(one) == [1, 2]


def test_entry_that_was_cleaned_up_is_not_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long idle writer, another one that went on, wrote a checkpoint and dropped old entries."""
    idle = accounts(tmp_path)
    other = again(idle)
    for lsn in (1, 2):
        commit(other, lsn)
    other.checkpoint()
    Path(local_path(entry_uri(idle.uri, 1))).unlink()
    monkeypatch.setattr(table_module, "_TRUSTED_SECONDS", 0.0)
    with pytest.raises(CommitConflict, match="at version 2"):
        commit(idle, 3)


def test_reload_of_a_dropped_table(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for path in sorted(Path(local_path(table.uri)).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(UndefinedObject):
        table.reload()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"writerFeatures": ["rowTracking"]}, ["rowTracking", "DROP FEATURE"]),
        ({"writerFeatures": ["checkConstraints"], "property": "delta.constraints.c"}, ["check"]),
        ({"partitionColumns": ["id", "owner"]}, ["partitioned by all of its columns"]),
        ({"property": "delta.enableDeletionVectors", "value": "false"}, ["SET TBLPROPERTIES"]),
        ({"property": "delta.appendOnly", "value": "true"}, ["UNSET"]),
        ({"legacy": True}, ["deletion vectors", "SET TBLPROPERTIES"]),
    ],
)
def test_tables_that_we_would_damage_are_refused(
    tmp_path: Path, change: dict[str, Any], words: list[str]
) -> None:
    table = accounts(tmp_path)
    path = Path(local_path(entry_uri(table.uri, 0)))
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if body := action.get("protocol"):
            body["writerFeatures"] += change.get("writerFeatures", [])
            if "legacy" in change:
                action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 2}
        if body := action.get("metaData"):
            body["partitionColumns"] = change.get("partitionColumns", [])
            if "property" in change:
                body["configuration"][change["property"]] = change.get("value", "id > 0")
    path.write_text("\n".join(json.dumps(action) for action in actions))
    with pytest.raises(FeatureNotSupported) as caught:
        again(table)
    report = caught.value.report()
    assert "public.accounts" in report and "HINT" in report
    assert all(word in report for word in words)


class Stages(RuleBasedStateMachine):
    """Any order of stages, commits, discards and reloads against a model of sets."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.table = accounts(self.folder, name=f"t{len(list(self.folder.glob('public/*')))}")
        self.next_id = 0
        self.lsn = 0
        self.staged: set[int] = set()
        self.committed: set[int] = set()
        self.ids: dict[str, list[int]] = {}

    @rule(count=st.integers(1, 4), share=st.integers(0, 3), everything=st.booleans())
    def stage(self, count: int, share: int, everything: bool) -> None:
        files = list(self.table.files.items())
        deleted = {
            path: BitMap(set(range(share % file.rows + 1)) - set(file.positions_deleted()))
            for path, file in files[::2]
        }
        ids = range(self.next_id, self.next_id + count)
        self.next_id += count
        written = write(self.table, ids)
        self.ids[written[0].path] = list(ids)
        if everything:
            self.table.stage(remove_all=True, written=written)
            self.staged = set(ids)
            return
        self.table.stage(deleted=deleted, written=written)
        self.staged -= {self.ids[path][at] for path, gone in deleted.items() for at in gone}
        self.staged |= set(ids)

    @rule()
    def commit(self) -> None:
        self.lsn += 1
        commit(self.table, self.lsn)
        self.committed = set(self.staged)

    @rule()
    def discard(self) -> None:
        self.table.discard()
        self.staged = set(self.committed)

    @rule()
    def reload(self) -> None:
        self.table.reload()
        self.staged = set(self.committed)

    @precondition(lambda self: self.lsn)
    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    @invariant()
    def the_view_holds_the_staged_rows(self) -> None:
        live = {
            self.ids[path][at]
            for path, file in self.table.files.items()
            for at in set(range(file.rows)) - set(file.positions_deleted())
        }
        assert live == self.staged
        assert self.table.rows == len(live)

    def teardown(self) -> None:
        assert set(delta_rs_ids(self.table)) == self.committed


def test_any_order_of_stages(tmp_path: Path) -> None:
    Stages.folder = tmp_path
    (tmp_path / "public").mkdir()
    machine = Stages.TestCase()
    Stages.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
    machine.runTest()
