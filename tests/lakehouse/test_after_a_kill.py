"""What a killed process leaves, what a store answers twice, and clocks that are set back."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faults.heavy import in_make_faults, part_of_make_faults
from lakehouse.tables import accounts, again, commit, delta_rs_ids, spark_ids, write
from penstock.errors import CommitConflict, FeatureNotSupported, StorageError
from penstock.lakehouse import cuts as cuts_module
from penstock.lakehouse import protocol, xact
from penstock.lakehouse.cuts import CutOwner, Cuts, CutTable
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.log_store import LocalLogStore, SparkLogStore, Unguarded
from penstock.lakehouse.state import load
from penstock.lakehouse.storage import Storage, local_path, write_temporary
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.xact import Elapsed
from penstock.lsn import Lsn

_OLD = 2 * 3600.0


class _Clocks:
    """The time of day and the time since the machine's start, both to be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.day, self.steady = time.time(), 1000.0
        monkeypatch.setattr(time, "time", lambda: self.day)
        monkeypatch.setattr(xact, "_steady", lambda: self.steady)


@pytest.mark.parametrize(("day", "steady"), [(-86400.0, 500.0), (500.0, 0.0), (500.0, 500.0)])
def test_the_clock_that_says_more_is_believed(
    monkeypatch: pytest.MonkeyPatch, day: float, steady: float
) -> None:
    """Set back by a day; a suspended machine, whose own clock stood still; neither."""
    clocks = _Clocks(monkeypatch)
    since = Elapsed()
    clocks.day += day
    clocks.steady += steady
    assert since.seconds == pytest.approx(500.0)


def test_a_state_is_loaded_again_though_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that another process has cleaned up meanwhile would be written a second time."""
    storage = Storage(str(tmp_path), fsync=False)
    owner = CutOwner("s", "pg_1")
    tables = {("public", "t"): CutTable("file:///t", 1)}
    sleeper, awake = (Cuts(storage, LocalLogStore(storage), f"{storage.uri}/cuts") for _ in "ab")
    clocks = _Clocks(monkeypatch)
    sleeper.append(owner, Lsn(1), None, tables)
    for lsn in range(2, 5):
        awake.append(owner, Lsn(lsn), None, tables)
    clocks.day -= 86400
    clocks.steady += 700
    loaded: list[str] = []

    def noted(storage: Storage, uri: str) -> Any:
        loaded.append(uri)
        return load(storage, uri)

    monkeypatch.setattr(cuts_module, "load", noted)
    sleeper.append(owner, Lsn(9), None, tables)
    assert loaded


def test_temporary_files_of_killed_processes_go(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(3)))
    commit(table, 1)
    left = []
    for folder, age in ((log_folder(table.uri), _OLD), (table.uri, _OLD), (table.uri, 0.0)):
        path = write_temporary(Path(local_path(folder), "0007.json"), b"half", fsync=False)
        os.utime(path, (time.time() - age,) * 2)
        left.append(path)
    assert delta_rs_ids(again(table)) == [0, 1, 2]  # no reader minds them
    table.checkpoint()
    assert [path.exists() for path in left] == [False, False, True]


def test_folders_of_a_killed_process_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed after mkdir(2) and before fsync(2): who finds the folder syncs it."""
    storage = Storage(str(tmp_path / "w"))
    (tmp_path / "w" / "s" / "t").mkdir(parents=True)
    synced: list[str] = []
    monkeypatch.setattr(
        "penstock.lakehouse.storage.fsync_folder", lambda path: synced.append(local_path(path))
    )
    storage.create_folder(f"{storage.uri}/s/t/_delta_log")
    expected = [tmp_path, tmp_path / "w", tmp_path / "w" / "s", tmp_path / "w" / "s" / "t"]
    assert synced == [str(path) for path in expected]


def test_an_entry_that_was_linked_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system links, loses the answer, and says EEXIST when it is asked again."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    table, rival = accounts(tmp_path), accounts(tmp_path, "rival")
    commit(rival, 1)
    monkeypatch.setattr(os, "link", twice)
    assert commit(table, 1) == 1
    with pytest.raises(CommitConflict):
        LocalLogStore(rival.storage).put(rival.uri, 1, ["{}"])


@pytest.mark.spark
def test_an_own_entry_in_an_object_store_is_not_lost(tmp_path: Path, spark: SparkSession) -> None:
    """The first answer was lost: the client asks again and finds the entry that it has put."""
    table = accounts(tmp_path)
    store = SparkLogStore(spark)
    lines = ['{"commitInfo":{"txnId":"one"}}', '{"txn":{"appId":"a","version":1}}']
    store.put(table.uri, 1, lines)
    store.put(table.uri, 1, lines)
    with pytest.raises(CommitConflict):
        store.put(table.uri, 1, [lines[0].replace("one", "two"), lines[1]])


@pytest.mark.spark
@pytest.mark.parametrize("format", ["json", in_make_faults("parquet")])
@part_of_make_faults
def test_v2_checkpoints_are_read(tmp_path: Path, spark: SparkSession, format: str) -> None:
    """Entries before it are gone: without it the state would be wrong, or no table be there."""
    table = accounts(tmp_path)
    name = f"delta.`{table.uri}`"
    spark.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", format)
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    spark.sql(
        f"ALTER TABLE {name} SET TBLPROPERTIES "
        "('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1')"
    )
    spark.sql(f"INSERT INTO {name} VALUES (3, 'c')")
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    spark.conf.unset("spark.databricks.delta.checkpointV2.topLevelFileFormat")
    folder = Path(local_path(log_folder(table.uri)))
    newest = max(int(path.name[:20]) for path in folder.glob("0*.checkpoint.*"))
    expected = load(table.storage, table.uri)
    for path in folder.glob("0*.json"):
        if "checkpoint" not in path.name and int(path.name[:20]) < newest:
            path.unlink()
    assert list(folder.glob(f"{newest:020d}.checkpoint.*.{format}"))
    state = load(table.storage, table.uri)
    assert state is not None
    assert expected is not None
    assert (state.version, state.files, state.metadata["id"]) == (
        expected.version,
        expected.files,
        expected.metadata["id"],
    )
    assert newest_table_id(table.storage, table.uri) == expected.metadata["id"]
    protocol.check_readable(state.protocol, state.metadata)
    with pytest.raises(FeatureNotSupported, match="v2Checkpoint"):
        again(table)
    assert spark_ids(spark, table) == [2, 3]


@dataclass(frozen=True)
class _Outage(Unguarded):
    """A store that takes an entry; after that nobody gets an answer from the warehouse."""

    storage: Storage
    monkeypatch: pytest.MonkeyPatch

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        LocalLogStore(self.storage).put(table_uri, version, lines)
        self.monkeypatch.setattr(Storage, "exists", self._no_answer)
        raise StorageError("the answer was lost")

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None: ...

    @staticmethod
    def _no_answer(storage: Storage, uri: str) -> bool:
        raise StorageError(f'could not stat file "{uri}": no answer')


def test_files_of_a_commit_that_nobody_can_ask_about_stay(tmp_path: Path) -> None:
    made = accounts(tmp_path)
    with pytest.MonkeyPatch.context() as outage:
        table = DeltaTable.load(
            made.storage, _Outage(made.storage, outage), made.uri, "public.accounts"
        )
        assert table is not None
        table.stage(written=write(table, range(5)))
        with pytest.raises(StorageError, match="the answer was lost"):
            commit(table, 1)
        table.discard()
        with pytest.raises(CommitConflict, match="it is unknown"):
            commit(table, 1)
    assert delta_rs_ids(again(made)) == list(range(5))
