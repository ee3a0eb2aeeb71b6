"""Which version of a table belongs to a transaction, of whatever tables that one is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.catalog import Catalog, LakeTransaction
from penstock.errors import VersionGone
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.logical_decoding import HistoricCatalogs
from penstock.sqlstate import UndefinedTable
from penstock.walsender import historic_tables
from penstock.walsender.historic_tables import HistoricTables
from penstock.walsender.sequencer import Sequencer


class Lake:
    """Tables ``a`` and ``b``, written by delta-rs, and the log of their commits."""

    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.warehouse = Warehouse(str(folder / "warehouse"))
        self.sequencer = Sequencer(self.catalog, self.warehouse)
        self.write("a", "id")
        self.write("b", "id")
        self.sequencer.position(discover=True)
        self.write("a", "id")
        for columns in (("id", "v"), ("id", "v"), ("id", "v", "w")):
            self.write("b", *columns)
            self.write("a", "id")
        self.tables = HistoricTables(self.warehouse, self.catalog)

    def write(self, name: str, *columns: str) -> None:
        rows = pa.table({column: [1] for column in columns})
        uri = self.warehouse.table_uri("public", name)
        write_deltalake(uri, rows, mode="append", schema_mode="merge")
        self.sequencer.step()

    def log(self) -> tuple[LakeTransaction, ...]:
        with self.catalog.read() as t:
            return t.transactions.after(Lsn(0), 1000)

    def oid(self, name: str) -> int:
        with self.catalog.read() as t:
            return t.tables.get("public", name).oid

    def widths(self, log: tuple[LakeTransaction, ...]) -> list[int]:
        found = [self.tables.relation(transaction, self.oid("b")) for transaction in log]
        return [0 if relation is None else len(relation.attributes) for relation in found]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path)
    with made.catalog:
        yield made


@pytest.mark.parametrize("page", [1, 500])
def test_versions(lake: Lake, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(historic_tables, "_PAGE", page)
    log = lake.log()
    assert lake.widths(log) == [1, 2, 2, 2, 2, 3, 3]
    assert lake.widths(tuple(reversed(log))) == [3, 3, 2, 2, 2, 2, 1], "in any order"
    lake.write("b", "id", "v", "w", "x")
    assert lake.widths(lake.log()) == [1, 2, 2, 2, 2, 3, 3, 4], "what is known is not relied upon"
    assert lake.tables.relation(log[0], 1) is None


def test_nothing_is_read_before_it_is_asked_for(lake: Lake) -> None:
    log = lake.log()
    catalogs = HistoricCatalogs(log[0], lake.tables, lake.catalog, 18)
    with pytest.raises(UndefinedTable):
        catalogs.rows("b")
    folder = Path(lake.warehouse.table_uri("public", "b").removeprefix("file://")) / "_delta_log"
    for entry in folder.glob("*.json"):
        entry.unlink()
    rows = catalogs.rows("pg_class")
    with pytest.raises(VersionGone):
        list(rows)


def test_one_that_is_dropped_meanwhile_is_not_there(lake: Lake) -> None:
    """As DROP TABLE does it: the files go before the catalog says so."""
    first, oid = lake.log()[0], lake.oid("b")
    found = lake.tables.tables(first)
    assert next(found).table.name == "a"
    files_gone = threading.Event()

    def drop() -> None:
        with lake.catalog.write() as t:
            t.delete_table(t.tables.get("public", "b"))
            lake.warehouse.remove("public", "b")
            files_gone.set()
            time.sleep(0.2)

    dropping = threading.Thread(target=drop)
    dropping.start()
    assert files_gone.wait(10)
    assert list(found) == []
    dropping.join()
    assert lake.tables.relation(first, oid) is None


def test_another_name_counts_from_where_the_log_was(lake: Lake) -> None:
    with lake.catalog.write() as t:
        table = t.tables.get("public", "b")
        version = t.transactions.versions()[table.oid]
        end = t.transactions.end()
        t.tables.save(replace(table, schema="s"))
        t.tables.keep_former(table, version, end)
    lake.write("a", "id")
    *_, before, after = lake.log()
    found = [lake.tables.relation(transaction, table.oid) for transaction in (before, after)]
    assert [relation and relation.schema for relation in found] == ["public", "s"]
