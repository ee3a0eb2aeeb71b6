"""Which logs are read: those that have gone on, however coarse the clock of their folder is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.catalog import Catalog
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.commits import TableCommit
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.table_logs import TableLogs

_MANY = 40


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


def write(warehouse: Warehouse, name: str, number: int = 0) -> None:
    write_deltalake(warehouse.table_uri("public", name), pa.table({"id": [number]}), mode="append")


def moved(catalog: Catalog) -> list[tuple[int, int]]:
    """From version, to version, of each transaction."""
    with catalog.read() as t:
        log = t.transactions.after(Lsn(0), 1000)
    return [(m.from_version, m.to_version) for t in log for m in t.members]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of tables whose logs are read, in order."""
    names: list[str] = []
    original = TableLogs.after

    def after(self: TableLogs, table: Any, version: int) -> Iterator[tuple[TableCommit, int]]:
        names.append(table.name)
        yield from original(self, table, version)

    monkeypatch.setattr(TableLogs, "after", after)
    return names


def test_only_logs_that_have_gone_on_are_read(
    catalog: Catalog, warehouse: Warehouse, read: list[str]
) -> None:
    for number in range(_MANY):
        write(warehouse, f"t{number}")
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    read.clear()
    sequencer.step()
    assert read == []
    write(warehouse, "t7")
    sequencer.step()
    assert set(read) == {"t7"}
    assert moved(catalog) == [(0, 1)]


def test_commits_of_one_tick_of_a_coarse_clock_are_found(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    write(warehouse, "a")
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    log = Path(local_path(warehouse.table_uri("public", "a"))) / "_delta_log"
    for number in range(3):
        write(warehouse, "a", number)
        for path in (*log.iterdir(), log):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        sequencer.step()
        assert moved(catalog)[-1] == (number, number + 1)


def test_news_are_told_of_without_a_step(catalog: Catalog, warehouse: Warehouse) -> None:
    for name in ("a", "b"):
        write(warehouse, name)
    sequencer = Sequencer(catalog, warehouse)
    assert not sequencer.watches
    sequencer.step(discover=True)
    assert sequencer.watches
    assert not sequencer.has_news()
    for name in ("b", "a", "b"):
        write(warehouse, name)
        assert sequencer.has_news()
        sequencer.step()
        assert not sequencer.has_news()


def test_of_many_tables_those_that_have_changed_lately_are_watched(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    for number in range(_MANY):
        write(warehouse, f"t{number}")
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    write(warehouse, "t7")
    assert not sequencer.has_news(), "the next step will find it"
    sequencer.step()
    write(warehouse, "t7")
    assert sequencer.has_news()


def test_a_table_with_a_torn_entry_is_tried_again_by_steps_only(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    write(warehouse, "a")
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    entry = Path(local_path(warehouse.table_uri("public", "a"))) / "_delta_log" / f"{1:020}.json"
    entry.touch()
    assert sequencer.has_news()
    sequencer.step()
    assert [trouble.name for trouble in sequencer.troubles.all()] == ["public.a"]
    assert not sequencer.has_news()
    entry.unlink()
    sequencer.step()
    assert sequencer.troubles.all() == ()
    write(warehouse, "a")
    sequencer.step()
    assert moved(catalog) == [(0, 1)]


def test_commits_do_not_count_as_changes_of_the_catalog(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    """Else workers and streams would look at the whole catalog again for each of them."""
    write(warehouse, "a")
    sequencer = Sequencer(catalog, warehouse)
    sequencer.step(discover=True)
    generation = catalog.generation()
    write(warehouse, "a")
    sequencer.step()
    assert catalog.generation() == generation
    assert moved(catalog) == [(0, 1)]


def test_a_position_has_what_other_processes_have_put_into_the_log(
    catalog: Catalog, warehouse: Warehouse, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write(warehouse, name)
    sequencer = Sequencer(catalog, warehouse)
    begin = sequencer.position(discover=True)
    with Catalog.open(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        other = Sequencer(opened, warehouse)
        write(warehouse, "a")
        theirs = other.position()
        assert sequencer.position() == theirs != begin
        write(warehouse, "a")
        sequencer.step()
        DeltaTable(warehouse.table_uri("public", "a")).optimize.compact()
        theirs = other.position()  # which moves the table on, and not the log
        assert sequencer.position() == theirs
        write(warehouse, "b")
        write(warehouse, "a")
        ours = sequencer.position()
        assert other.position() == ours
        assert sorted(ours.versions.values()) == [1, 4]


def test_who_asks_for_a_position_does_not_wait_for_who_commits(
    catalog: Catalog, warehouse: Warehouse
) -> None:
    write(warehouse, "a")
    sequencer = Sequencer(catalog, warehouse)
    begin = sequencer.position(discover=True)
    with sequencer.one_transaction():
        assert asked(sequencer) == begin, "nothing of it is there yet"
        write(warehouse, "a")
    assert asked(sequencer).lsn > begin.lsn


def asked(sequencer: Sequencer) -> Position:
    """By another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(sequencer.position).result(timeout=30)
