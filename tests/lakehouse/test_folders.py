"""Tables in folders that every reader opens; tables of earlier versions stay where they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.errors import DuplicateObject
from penstock.lakehouse.describe import table_names
from penstock.lakehouse.names import earlier_folder_name
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import Attribute, Relation, ReplicaIdentity

_INT4 = 23


def schema(name: str) -> TableSchema:
    relation = Relation(
        1, "public", name, ReplicaIdentity.DEFAULT, (Attribute("id", _INT4, key=True),)
    )
    return TableSchema.of_relation(relation)


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "wh"))


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
    text, count = re.subn(
        r'"penstock.source":"(\\"|[^"])*"', f'"penstock.source":"{source}"', entry.read_text()
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
