"""New tables of a transaction block: read through its own warehouse, and not there for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DuplicateObject, FeatureNotSupported, StorageError
from penstock.lakehouse.describe import describe, table_names
from penstock.lakehouse.log import list_log, log_folder, read_entry
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.state import load, load_at
from penstock.lakehouse.warehouse import BlockWarehouse, Warehouse, remove_empty_folders

_SCHEMA = TableSchema((), ())


def test_a_table_is_in_its_own_warehouse_only(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    own = BlockWarehouse(warehouse, {})
    uri = own.table_uri("public", "t")
    assert own.create("public", "t", _SCHEMA).version == 0
    for mine in (own, BlockWarehouse(warehouse, own.entries)):
        assert list_log(mine.storage, uri).entries == (0,)
        assert mine.storage.exists(log_folder(uri))
        state, described = load(mine.storage, uri), describe(mine, uri)
        assert state is not None and described is not None
        assert state.metadata == load_at(mine.storage, uri, 0).metadata
        assert (described.name, described.key) == ("public.t", ())
        assert mine.table_uri("public", "t") == uri
        with pytest.raises(DuplicateObject):
            mine.create("public", "t", _SCHEMA)
    assert describe(warehouse, uri) is None
    assert list(table_names(warehouse)) == []
    assert list(tmp_path.iterdir()) == []
    own.remove("public", "t")
    assert own.entries == {}
    assert read_entry(own.storage, uri, 0) is None
    with pytest.raises(FeatureNotSupported):
        own.remove("public", "t")


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    warehouse.create("public", "t", _SCHEMA)
    with pytest.raises(DuplicateObject):
        BlockWarehouse(warehouse, {}).create("public", "t", _SCHEMA)
    remove_empty_folders(warehouse.storage, warehouse.table_uri("public", "t"))
    assert warehouse.open("public", "t") is not None


def test_where_it_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FeatureNotSupported, match="in an object store"):
        BlockWarehouse(Warehouse("s3://bucket/lake"), {}).create("public", "t", _SCHEMA)
    unmounted = Warehouse(str(tmp_path), node_id="a node")
    with pytest.raises(StorageError, match="is not there"):
        BlockWarehouse(unmounted, {}).create("public", "t", _SCHEMA)
