"""Statements on publications while a table of the warehouse cannot be read; and DROP SCHEMA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.init(tmp_path / "node") as made:
        yield made


def folder(node: Node, schema: str, table: str) -> Path:
    return Path(node.folder) / "warehouse" / schema / table


@pytest.mark.parametrize("objects", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_what_cannot_be_read_is_left_out_with_a_warning(node: Node, objects: str) -> None:
    write_deltalake(str(folder(node, "public", "good")), pa.table({"id": [1]}))
    log = folder(node, "public", "bad") / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_bytes(b'{"torn')
    result = node.sql(f"CREATE PUBLICATION p FOR {objects}")
    (warning,) = result.notices
    assert warning.severity == "WARNING" and '"public.bad" is left out' in warning.message
    tables = node.sql("SELECT tablename FROM pg_publication_tables").rows
    assert tables == (("good",),)


def test_drop_schema_takes_partitions_in_other_schemas_along(node: Node) -> None:
    for statement in (
        "CREATE SCHEMA whole",
        "CREATE SCHEMA parts",
        "CREATE TABLE whole.t (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts.t1 PARTITION OF whole.t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts.other (id integer PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE parts.t1, parts.other",
    ):
        node.sql(statement)
    (notice,) = node.sql("DROP SCHEMA whole CASCADE").notices
    assert notice.message == "drop cascades to table whole.t"
    found = node.sql("SELECT relname FROM pg_class WHERE relkind IN ('r', 'p')").rows
    assert found == (("other",),)
    assert not (folder(node, "parts", "t1") / "_delta_log").exists()
    assert node.sql("SELECT tablename FROM pg_publication_tables").rows == (("other",),)
