"""Whose warehouse it is: what a starting node takes, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.catalog import Catalog
from penstock.errors import ConfigurationError, DuplicateObject, StorageError
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node.claims import FoundWarehouse, refuse, take_warehouse

URI = "file:///srv/warehouse"


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (FoundWarehouse("me", URI, 2, True), None),
        (
            FoundWarehouse("me", None, 0, True),
            None,
        ),  # the state store is from before it was recorded
        (FoundWarehouse("you", URI, 2, True), ConfigurationError),
        (FoundWarehouse("you", None, 0, True), ConfigurationError),
        (FoundWarehouse(None, None, 0, False), None),  # a new node
        (FoundWarehouse(None, None, 2, True), None),  # a warehouse from before ids were written
        (FoundWarehouse(None, None, 2, False), StorageError),
        (FoundWarehouse(None, URI, 0, False), StorageError),
        (FoundWarehouse(None, URI, 2, True), StorageError),
        (FoundWarehouse(None, "file:///elsewhere", 0, False), None),  # the parameter was changed
        (FoundWarehouse(None, "file:///elsewhere", 2, True), None),
        (FoundWarehouse(None, "file:///elsewhere", 2, False), StorageError),
    ],
)
def test_decisions(found: FoundWarehouse, error: type[Exception] | None) -> None:
    refused = refuse(found, "me", Warehouse(URI))
    assert refused is None if error is None else isinstance(refused, error)


def test_an_id_for_life(tmp_path: Path) -> None:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        place = tmp_path / "warehouse"
        warehouse = Warehouse(str(place), fsync=False)
        take_warehouse(catalog, warehouse)
        take_warehouse(catalog, warehouse)
        assert warehouse.owner() == catalog.node_info.node_id
        assert catalog.warehouse() == warehouse.uri
        warehouse.create("public", "t", TableSchema((), key=()))

        place.rename(tmp_path / "away")
        with pytest.raises(StorageError, match="is not there"):
            warehouse.check_there()
        with pytest.raises(StorageError, match="is not there"):
            warehouse.create("public", "u", TableSchema((), key=()))
        with pytest.raises(StorageError, match="is not there"):
            warehouse.cuts.append(CutOwner("s", "id"), Lsn(1), None, {})
        with pytest.raises(StorageError, match="is not there"):
            take_warehouse(catalog, Warehouse(str(place), fsync=False))
        assert not place.exists()
        (tmp_path / "away").rename(place)
        warehouse.check_there()
        with pytest.raises(DuplicateObject):
            warehouse.create("public", "t", TableSchema((), key=()))


def test_the_hint_gives_the_warehouse_to_a_node_that_had_it(tmp_path: Path) -> None:
    """Its state was lost and made again elsewhere, and that node is gone; or the id is damaged."""
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        warehouse = Warehouse(str(tmp_path / "warehouse"), fsync=False)
        take_warehouse(catalog, warehouse)
        warehouse.claim("another")
        with pytest.raises(ConfigurationError, match="belongs to another node") as refused:
            take_warehouse(catalog, warehouse)
        told = re.search(r"write (\S+) to that file", refused.value.hint or "")
        assert told is not None
        file = tmp_path / "warehouse/_penstock/node_id"
        assert str(file) in (refused.value.detail or "")
        file.write_text(told[1])
        take_warehouse(catalog, warehouse)
