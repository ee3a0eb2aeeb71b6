"""Tables in folders that every reader opens; tables of earlier versions stay where they are."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from end_to_end.compare import delta_rows
from penstock.attribute import Attribute
from penstock.errors import DuplicateObject
from penstock.lakehouse.describe import table_names
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.names import earlier_folder_name
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import Relation, ReplicaIdentity

_INT4 = 23
ODD = (
    *("_delta_log", "_change_data", "_SUCCESS", ".hidden", "_", "a=1", "year=2024", "50%", "a%20b"),
    *("order items", "größe", "Größe", "a#b", "a?b", "a:b", "a*b", "{a}", "[a]", "t.parquet", "-"),
    *("ta\u0308", "x.json", "a/b", "a\\b", "it's", 'a"b', "_penstock", "order_items-98f422a4"),
)


def schema(name: str) -> TableSchema:
    relation = Relation(
        1, "public", name, ReplicaIdentity.DEFAULT, (Attribute("id", _INT4, key=True),)
    )
    return TableSchema.of_relation(relation)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "wh"))


@pytest.fixture
def odd_tables(warehouse: Warehouse) -> list[str]:
    """URIs of tables with odd names; table number n has one row, n."""
    uris = []
    for number, name in enumerate(ODD):
        table = warehouse.create("_delta_log" if number % 2 else "public", name, schema(name))
        rows = pa.table({"id": pa.array([number], pa.int32())})
        table.stage(written=FileWriter(table.storage, table.uri, rows.schema).write([rows]))
        table.commit(app_id="test", version_marker=1, operation="TEST")
        uris.append(table.uri)
    return uris


def test_tables_are_found_again(warehouse: Warehouse, odd_tables: list[str]) -> None:
    assert len(set(odd_tables)) == len(ODD)
    names = [("_delta_log" if number % 2 else "public", name) for number, name in enumerate(ODD)]
    for name in names:
        found = warehouse.open(*name)
        assert found is not None
        assert found.rows == 1
    # By whoever looks at the folders only, too.
    assert sorted(table_names(warehouse)) == sorted(names)


def test_delta_rs_and_duckdb_open_every_table(odd_tables: list[str]) -> None:
    for number, uri in enumerate(odd_tables):
        path = local_path(uri)
        assert delta_rows(path) == [(number,)]
        assert duckdb.execute(f"SELECT * FROM read_parquet('{path}/*.parquet')").fetchall() == [
            (number,)
        ]


def lies_as_before(warehouse: Warehouse, schema_name: str, name: str, *, source: str) -> Path:
    """A table where an earlier version has put it."""
    uri = warehouse.create(schema_name, name, schema(name)).uri
    here = Path(local_path(uri))
    folders = (earlier_folder_name(schema_name), earlier_folder_name(name))
    there = Path(local_path(warehouse.uri)).joinpath(*folders)
    if there != here:
        there.parent.mkdir(exist_ok=True)
        here.rename(there)
    entry = there / "_delta_log" / f"{0:020d}.json"
    plain = re.sub(r'"penstock.crc32":"[0-9a-f]{8}",', "", entry.read_text())
    text, count = re.subn(
        r'"penstock.source":"(\\"|[^"])*"', f'"penstock.source":"{source}"', plain
    )
    assert count == 1, entry.read_text()
    entry.write_text(text)
    return there


def test_a_table_of_an_earlier_version_stays_where_it_is(warehouse: Warehouse) -> None:
    known = {
        ("public", "order items"): "public.order items",
        ("public", "_t"): "public._t",
        ("public", "Orders-98f422a4"): "public.Orders-98f422a4",
        ("a.b", "c d"): "a.b.c d",
    }
    places = {
        name: lies_as_before(warehouse, *name, source=source) for name, source in known.items()
    }
    for name, place in places.items():
        found = warehouse.open(*name)
        assert found is not None
        assert Path(local_path(found.uri)) == place
        with pytest.raises(DuplicateObject):
            warehouse.create(*name, schema(name[1]))
    assert set(table_names(warehouse)) == set(known)
    # The table whose name is that folder's gets one of its own.
    assert warehouse.open("public", "order_items-98f422a4") is None
    warehouse.create("public", "order_items-98f422a4", schema("x"))
    assert set(table_names(warehouse)) == {*known, ("public", "order_items-98f422a4")}


def test_a_folder_that_the_file_system_takes_for_anothers(warehouse: Warehouse) -> None:
    lies_as_before(warehouse, "public", "t", source="public.T")
    with pytest.raises(DuplicateObject, match=r'folder of table "public.t" holds table "public.T"'):
        warehouse.open("public", "t")
    # Moved here by hand from elsewhere: that is for its owner to know.
    lies_as_before(warehouse, "public", "u", source="public.old")
    assert warehouse.open("public", "u") is not None
