"""An older copy of a folder in the place of a newer one, and torn entries: nothing goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.tables import APP, accounts, again, write
from penstock.errors import StorageError
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.log import entry_uri, list_log
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn


def commit(table: DeltaTable, lsn: int) -> int:
    table.stage(written=write(table, [lsn]))
    return table.commit(app_id=APP, version_marker=lsn, operation="REPLICATION")


def entry(uri: str, version: int) -> Path:
    return Path(local_path(entry_uri(uri, version)))


def test_no_entry_is_put_behind_a_gap(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for lsn in (1, 2, 3):
        commit(table, lsn)
    entry(table.uri, 3).unlink()
    with pytest.raises(StorageError, match=r"version 3 of table .* is gone") as raised:
        commit(table, 4)
    assert raised.value.sqlstate == "XX001"
    assert list_log(table.storage, table.uri).entries == (0, 1, 2)


def test_a_checkpoint_stands_for_the_entries_that_were_cleaned_up(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for lsn in (1, 2):
        commit(table, lsn)
    table.checkpoint()
    for version in range(3):
        entry(table.uri, version).unlink()
    assert commit(table, 3) == 3
    assert again(table).rows == 3


def test_cuts_are_not_written_behind_a_gap(tmp_path: Path) -> None:
    cuts, owner = Warehouse(str(tmp_path), False).cuts, CutOwner("s", "id")
    for lsn in (1, 2):
        cuts.append(owner, Lsn(lsn), None, {})
    entry(cuts.uri, 2).unlink()
    with pytest.raises(StorageError, match="is gone"):
        cuts.append(owner, Lsn(3), None, {})
    last = Warehouse(str(tmp_path), False).cuts.last(owner)
    assert last is not None and last.lsn == 1


def test_a_torn_entry_is_told_by_its_name(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    commit(table, 1)
    torn = entry(table.uri, 1)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"could not read log entry .*accounts") as raised:
        again(table)
    assert (raised.value.sqlstate, bool(raised.value.hint)) == ("XX001", True)
