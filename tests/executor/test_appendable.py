"""To which tables of others files may be added: delta-rs makes them, and reads what was added."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported
from penstock.executor.block import LakeBlock
from penstock.lakehouse.change import INSERT, StagedCommit
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.protocol import check_appendable
from penstock.lakehouse.warehouse import Warehouse

_ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", None]})


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path / "warehouse"))


@pytest.fixture
def block(warehouse: Warehouse) -> LakeBlock:
    return LakeBlock(warehouse)


def leaf(uri: str) -> LakeTable:
    return LakeTable(5, "public", "t", uri)


def stage(block: LakeBlock, uri: str) -> StagedCommit:
    table = block.open(leaf(uri), None, to_insert=True)
    rows = _ROWS.cast(table.schema.arrow())
    block.stage(leaf(uri), INSERT, {}, FileWriter(table.storage, uri, rows.schema).write([rows]))
    (change,) = block.changes
    return StagedCommit(table.storage, block.warehouse.store, change)


@pytest.mark.parametrize("configuration", [{}, {"delta.appendOnly": "true"}])
def test_rows_are_added_to_a_table_without_deletion_vectors(
    block: LakeBlock, warehouse: Warehouse, configuration: dict[str, str]
) -> None:
    uri = warehouse.table_uri("public", "t")
    write_deltalake(uri, _ROWS, configuration=configuration)
    assert stage(block, uri).put() == 1
    found = pa.table(DeltaTable(uri).to_pyarrow_table()).sort_by("id")
    assert found.to_pydict() == {"id": [1, 1, 2, 2], "name": ["a", "a", None, None]}


def test_a_table_with_constraints_is_left_to_delta(block: LakeBlock, warehouse: Warehouse) -> None:
    uri = warehouse.table_uri("public", "t")
    write_deltalake(uri, _ROWS)
    before = stage(block, uri)
    DeltaTable(uri).alter.add_constraint({"small": "id < 10"})
    with pytest.raises(FeatureNotSupported, match="checkConstraints"):
        block.open(leaf(uri), None, to_insert=True)
    with pytest.raises(FeatureNotSupported):
        before.put()  # it was opened before there was one
    assert DeltaTable(uri).version() == 1


def test_columns_that_are_not_null_are_left_to_delta(
    block: LakeBlock, warehouse: Warehouse
) -> None:
    uri = warehouse.table_uri("public", "t")
    write_deltalake(uri, pa.table([pa.array([1])], pa.schema([pa.field("id", pa.int64(), False)])))
    with pytest.raises(FeatureNotSupported, match="NOT NULL"):
        block.open(leaf(uri), None, to_insert=True)


@pytest.mark.parametrize(
    ("version", "properties", "refused"),
    [
        (1, {}, None),
        (2, {"delta.appendOnly": "true"}, None),
        (3, {}, None),
        (3, {"delta.constraints.small": "id < 10"}, "checkConstraints"),
        (4, {"delta.enableChangeDataFeed": "true"}, None),
        (5, {}, "columnMapping"),
        (6, {}, "columnMapping, identityColumns"),
        (7, {}, None),
        (8, {}, "writer version 8"),
    ],
)
def test_writer_versions_imply_features(
    version: int, properties: dict[str, str], refused: str | None
) -> None:
    protocol = {"minReaderVersion": 1, "minWriterVersion": version}
    metadata = {"configuration": properties}
    if refused is None:
        check_appendable("t", protocol, metadata)
        return
    with pytest.raises(FeatureNotSupported, match=refused):
        check_appendable("t", protocol, metadata)
