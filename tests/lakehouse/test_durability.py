"""Law 1: everything that a commit names is synced before its log entry has a name, and the entry's
folder before ``commit`` returns.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from lakehouse.tables import accounts, commit, write
from penstock.lakehouse.change import StagedChange, StagedCommit
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.log import entry_uri, log_folder
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn


@dataclass
class Journal:
    """What was synced and which names came to be, in their order."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def synced(self, path: str | Path) -> bool:
        return ("fsync", str(path)) in self.events

    def at(self, kind: str, path: str | Path) -> int:
        """The place of the last such event."""
        return max(i for i, event in enumerate(self.events) if event == (kind, str(path)))

    @property
    def fsyncs(self) -> int:
        return sum(kind == "fsync" for kind, _ in self.events)


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    journal = Journal()
    fsync, link, replace, mkdir = os.fsync, os.link, Path.replace, Path.mkdir

    def spy_fsync(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)
        journal.events.append(("fsync", path))

    def spy_link(source: Path, target: Path) -> None:
        assert journal.synced(source), "a log entry gets its name before its content is durable"
        link(source, target)
        journal.events.append(("name", str(target)))

    def spy_replace(self: Path, target: Path) -> Path:
        assert journal.synced(self), "a file gets its name before its content is durable"
        journal.events.append(("name", str(target)))
        return replace(self, target)

    def spy_mkdir(self: Path, *args: Any, **more: bool) -> None:
        mkdir(self, *args, **more)
        journal.events.append(("name", str(self)))

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spy_link)
    monkeypatch.setattr(Path, "replace", spy_replace)
    monkeypatch.setattr(Path, "mkdir", spy_mkdir)
    return journal


def log_entry(table: DeltaTable) -> Path:
    return Path(local_path(entry_uri(table.uri, table.version)))


def test_every_file_of_a_commit(tmp_path: Path, journal: Journal) -> None:
    table = accounts(tmp_path, fsync=True)
    folder = Path(local_path(table.uri))
    (old,) = write(table, range(10))
    table.stage(written=[old])
    commit(table, 1)
    journal.events.clear()

    (new,) = write(table, range(10, 20))
    assert journal.synced(folder / new.path), "a task's file is durable when it is reported"
    assert journal.at("fsync", folder) > journal.at("fsync", folder / new.path)
    table.stage(written=[new], deleted={old.path: BitMap([0])})
    table.stage(deleted={new.path: BitMap([0])})
    commit(table, 2)
    put = journal.at("name", log_entry(table))
    (vectors,) = folder.glob("deletion_vector_*.bin")
    assert journal.at("name", vectors) < journal.at("fsync", folder) < put
    assert journal.at("fsync", log_entry(table).parent) > put
    # data file, its folder; vectors, their folder; log entry, its folder
    assert journal.fsyncs == 6


def test_new_folders(tmp_path: Path, journal: Journal) -> None:
    """A folder's name lies in its parent."""
    table = accounts(tmp_path / "deep" / "warehouse", fsync=True)
    put = journal.at("name", log_entry(table))
    folder = log_entry(table).parent
    while folder != tmp_path:
        assert journal.at("name", folder) < journal.at("fsync", folder.parent)
        assert journal.events.index(("fsync", str(folder.parent))) < put
        folder = folder.parent
    assert journal.at("fsync", log_entry(table).parent) > put


def test_cuts(tmp_path: Path, journal: Journal) -> None:
    cuts = Warehouse(str(tmp_path)).cuts
    cuts.append(CutOwner("s", "id"), Lsn(1), None, {("public", "t"): CutTable("file:///t", 1)})
    journal.events.clear()
    cuts.append(CutOwner("s", "id"), Lsn(2), None, {("public", "t"): CutTable("file:///t", 2)})
    put = journal.at("name", local_path(entry_uri(cuts.uri, 2)))
    folder = Path(local_path(cuts.uri))
    data = [p for kind, p in journal.events[:put] if kind == "fsync" and p.endswith(".parquet")]
    assert len(data) == 1 and journal.at("fsync", folder) < put
    assert journal.at("fsync", folder / "_delta_log") > put
    assert journal.fsyncs == 4


def test_checkpoint(tmp_path: Path, journal: Journal) -> None:
    table = accounts(tmp_path, fsync=True)
    commit(table, 1)
    journal.events.clear()
    table.checkpoint()
    log = log_entry(table).parent
    assert journal.synced(log / f"{1:020d}.checkpoint.parquet")
    assert journal.synced(log / "_last_checkpoint") and journal.synced(log)


def test_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    table = accounts(tmp_path, fsync=False)
    table.stage(written=write(table, [1]))
    commit(table, 1)
    table.checkpoint()
    Warehouse(str(tmp_path), fsync=False).cuts.append(CutOwner("s", "id"), Lsn(1), None, {})


def test_a_commit_that_is_found_after_a_kill(tmp_path: Path, journal: Journal) -> None:
    """The process may have ended before it synced the entry's name."""
    table = accounts(tmp_path, fsync=True)
    change = StagedChange.of(7, table.uri, table.name, table.state)
    change = change.with_rows("insert", table.state, {}, write(table, range(3)))

    def again() -> StagedCommit:
        journal.events.clear()
        return StagedCommit(table.storage, table._store, change, "the block", [7, 8])

    log = Path(local_path(log_folder(table.uri)))
    version = again().put()
    assert again().put() == version and journal.synced(log)
    assert again().there() and journal.synced(log)
    again().undo()
    again().undo()
    assert journal.synced(log)
