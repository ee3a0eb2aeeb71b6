"""One table that cannot be read or published stops itself: not the others, nor any session."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.catalog import Catalog, LakeTransaction
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pg_catalog.node_catalogs import NodeCatalogs, SharedState
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.sql.grammar.raw_statements import parse_select
from penstock.stats.backend_status import Sessions
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots

TYPE_OF_ONE = pa.table({"id": [1]})


class Lake:
    def __init__(self, folder: Path) -> None:
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.warehouse = Warehouse(str(folder / "warehouse"))
        self.restart()

    def restart(self) -> None:
        self.sequencer = Sequencer(self.catalog, self.warehouse)
        self.slots = Slots(self.catalog, self.sequencer, 10)
        self.catalogs = NodeCatalogs(
            self.catalog,
            self.warehouse,
            SharedState(5, self.slots, Senders(), Sessions()),
        )

    def write(self, name: str, rows: pa.Table = TYPE_OF_ONE, **options: Any) -> None:
        uri = self.warehouse.table_uri("public", name)
        write_deltalake(uri, rows, mode="append", **options)

    def log_folder(self, name: str) -> Path:
        uri = self.warehouse.table_uri("public", name)
        return Path(uri.removeprefix("file://")) / "_delta_log"

    def entry(self, name: str, version: int) -> Path:
        return self.log_folder(name) / f"{version:020}.json"

    def log(self) -> list[tuple[str, int]]:
        with self.catalog.read() as t:
            tables = {table.oid: table.name for table in t.tables.all()}
            log: tuple[LakeTransaction, ...] = t.transactions.after(Lsn(0), 1000)
        return [(tables[m.relation], m.to_version) for t in log for m in t.members]

    def query(self, text: str) -> list[list[str | None]]:
        facts = SessionFacts(
            pid=1,
            user="u",
            role_oid=10,
            superuser=True,
            replication=True,
            database="lake",
            version=18,
            settings={"server_version": "18.0"},
            set_config=lambda name, value, is_local: value or "",
        )
        rows = self.catalogs.query(parse_select(text), (), facts).rows
        return [[None if c is None else bytes(c).decode() for c in row] for row in rows]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = Lake(tmp_path)
    yield lake
    lake.catalog.close()


def empty(lake: Lake) -> Callable[[], None]:
    return _content(lake, b"")


def torn(lake: Lake) -> Callable[[], None]:
    return _content(lake, lake.entry("bad", 1).read_bytes()[:100])


def no_actions(lake: Lake) -> Callable[[], None]:
    return _content(lake, b'{"add": {"size": 1}}\n[3]\n"x"')


def _content(lake: Lake, content: bytes) -> Callable[[], None]:
    whole = lake.entry("bad", 1).read_bytes()
    lake.entry("bad", 1).write_bytes(content)
    return lambda: void(lake.entry("bad", 1).write_bytes(whole))


def folder_for_entry(lake: Lake) -> Callable[[], None]:
    entry = lake.entry("bad", 1)
    away = entry.rename(entry.with_name("away"))
    entry.mkdir()

    def heal() -> None:
        entry.rmdir()
        away.rename(entry)

    return heal


def file_for_log(lake: Lake) -> Callable[[], None]:
    folder = lake.log_folder("bad")
    away = folder.rename(folder.with_name("away"))
    folder.write_bytes(b"no folder")

    def heal() -> None:
        folder.unlink()
        away.rename(folder)

    return heal


def void(_: object) -> None:
    pass


BREAKS = [empty, torn, no_actions, folder_for_entry, file_for_log]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("damage", BREAKS)
def test_a_table_that_cannot_be_read_waits_and_nothing_is_skipped(
    lake: Lake,
    damage: Callable[[Lake], Callable[[], None]],
    restarted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("bad", "good"):
        lake.write(name)
    lake.sequencer.step(discover=True)
    lake.write("bad")
    heal = damage(lake)
    if restarted:
        lake.restart()
    with caplog.at_level(logging.WARNING):
        lake.write("good")
        lake.sequencer.step(discover=True)
        lake.sequencer.check_logs()
        lake.sequencer.step()
        lake.slots.create("s", "pgoutput", pid=1, database=5)
        lake.write("good")
        lake.sequencer.step()
    assert lake.log() == [("good", 1), ("good", 2)]
    told = [m for m in caplog.messages if m.startswith('table "public.bad" cannot be read')]
    assert 1 <= len(told) <= 3, "once for each reason"
    rows = lake.query("SELECT relname, state, error IS NULL FROM pg_stat_lake_tables")
    assert sorted(rows) == [["bad", "unreadable", "f"], ["good", "followed", "t"]]
    heal()
    lake.write("bad")
    lake.sequencer.step()
    lake.sequencer.check_logs()
    lake.sequencer.step()
    assert lake.log() == [("good", 1), ("good", 2), ("bad", 1), ("bad", 2)]
    rows = lake.query("SELECT relname, state FROM pg_stat_lake_tables")
    assert sorted(rows) == [["bad", "followed"], ["good", "followed"]]


def test_a_table_that_could_never_be_read_is_listed_and_found_later(lake: Lake) -> None:
    lake.write("good")
    lake.write("bad")
    whole = lake.entry("bad", 0).read_bytes()
    for content in (b"", whole[:200]):
        lake.entry("bad", 0).write_bytes(content)
        lake.sequencer.step(discover=True)
        names = lake.query("SELECT relname, relid IS NULL, state FROM pg_stat_lake_tables")
        assert sorted(names) == [["good", "f", "followed"], ["public.bad", "t", "unreadable"]]
    lake.entry("bad", 0).write_bytes(whole)
    lake.sequencer.step(discover=True)
    names = lake.query("SELECT relname, state FROM pg_stat_lake_tables")
    assert sorted(names) == [["bad", "followed"], ["good", "followed"]]


def _set_schema(lake: Lake, name: str, fields: list[dict[str, Any]]) -> None:
    """A commit that changes nothing but the columns."""
    lines = [json.loads(line) for line in lake.entry(name, 0).read_text().splitlines()]
    (metadata,) = [line for line in lines if "metaData" in line]
    metadata["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    versions = len(list(lake.log_folder(name).glob("*.json")))
    lake.entry(name, versions).write_text(json.dumps(metadata))


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


PUBLISHED = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'every' ORDER BY tablename"


def test_columns_that_postgresql_cannot_have_hide_their_table_only(lake: Lake) -> None:
    with lake.catalog.write() as t:
        every = t.publications.create("every", all_tables=True)
        schema = t.publications.create("one_schema")
        t.publications.add_namespace(schema.oid, "public")
    lake.write("good")
    lake.write("nested", pa.table({"id": [1], "v": [[[1]]]}))
    lake.write("keyed")
    lake.sequencer.step(discover=True)
    with lake.catalog.write() as t:
        t.tables.save(_with_key(t.tables.get("public", "keyed")))
        named = t.publications.create("named")
        t.publications.add_relation(named.oid, t.tables.get("public", "nested").oid, None, None)
    assert every
    attributes = (
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "WHERE c.relkind = 'r' AND attnum > 0 ORDER BY 1, 2"
    )
    assert lake.query(attributes) == [["good", "id"], ["keyed", "id"]]
    assert lake.query(PUBLISHED) == [["good"], ["keyed"]]
    assert lake.query(PUBLISHED.replace("every", "one_schema")) == [["good"], ["keyed"]]
    assert lake.query(PUBLISHED.replace("every", "named")) == [["nested"]], "it was named"
    (state,) = lake.query("SELECT state, error FROM pg_stat_lake_tables WHERE relname = 'nested'")
    assert state[0] == "unpublishable" and "cannot be published" in (state[1] or "")
    assert lake.query("SELECT relname FROM pg_class WHERE relkind = 'i'") == [["keyed_pkey"]]
    _set_schema(lake, "keyed", [_field("other", "long")])  # the key's column goes
    assert lake.query(attributes) == [["good", "id"], ["keyed", "other"]]
    assert lake.query("SELECT relname FROM pg_class WHERE relkind = 'i'") == []
    lake.warehouse.remove("public", "keyed")  # and the folder, without DROP TABLE
    lake.restart()
    assert lake.query(attributes) == [["good", "id"]]
    assert lake.query(PUBLISHED) == [["good"], ["keyed"]], "absence is no DROP TABLE"


def _with_key(table: Any) -> Any:
    return replace(table, primary_key=("id",))


def test_a_table_keeps_its_columns_while_it_cannot_be_read(lake: Lake) -> None:
    lake.write("bad")
    lake.sequencer.step(discover=True)
    attributes = "SELECT attname FROM pg_attribute WHERE attnum > 0"
    assert lake.query(attributes) == [["id"]]
    lake.write("bad")
    torn(lake)
    assert lake.query(attributes) == [["id"]]


def test_a_table_that_is_made_again_shows_its_own_columns(lake: Lake) -> None:
    attributes = "SELECT attname FROM pg_attribute WHERE attnum > 0"
    lake.write("t", pa.table({"id": [1], "secret": [2]}))
    lake.sequencer.step(discover=True)
    assert lake.query(attributes) == [["id"], ["secret"]]
    lake.warehouse.remove("public", "t")
    lake.write("t", pa.table({"id": [1], "town": ["x"]}))
    assert lake.query(attributes) == [["id"], ["town"]]
    lake.sequencer.step(discover=True)
    assert lake.query(attributes) == [["id"], ["town"]]
