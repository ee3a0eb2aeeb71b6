"""What the processes of ``test_races`` do: imported by name, wherever pytest was started."""

from __future__ import annotations

from lakehouse.tables import write
from penstock.errors import CommitConflict
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn

COMMITS = 25


def commit_many(folder: str, number: int) -> None:
    table = Warehouse(folder, False).open("public", "accounts")
    assert table is not None
    for i in range(COMMITS):
        while True:
            table.stage(written=write(table, [number * 1000 + i]))
            try:
                table.commit(app_id=f"app{number}", version_marker=i + 1, operation="TEST")
                break
            except CommitConflict:
                table.discard()
                table.reload()


def cut_many(folder: str, number: int) -> None:
    cuts = Warehouse(folder, False).cuts
    for i in range(COMMITS):
        tables = {("public", f"t{n}"): CutTable(f"file:///t{n}", i) for n in range(3)}
        cuts.append(CutOwner(f"sub{number}", f"sub{number}"), Lsn(i + 1), None, tables)
