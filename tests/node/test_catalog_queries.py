"""PostgreSQL's catalogs and views by ``Node.sql``, without Spark and without a port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from fix_postgres import Database
from penstock import Node
from penstock.errors import UndefinedObject

VIEWS = (
    "pg_publication",
    "pg_publication_rel",
    "pg_publication_namespace",
    "pg_publication_tables",
    "pg_replication_slots",
    "pg_stat_replication",
    "pg_stat_replication_slots",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.init(tmp_path / "node") as made:
        yield made


@pytest.fixture
def published(node: Node, tmp_path: Path) -> Node:
    table = str(tmp_path / "node/warehouse/public/t")
    write_deltalake(table, pa.table({"id": [1], "v": ["a"]}))
    node.sql("CREATE PUBLICATION p FOR TABLE t (id) WHERE (id > 5)")
    node.sql("CREATE PUBLICATION s FOR TABLES IN SCHEMA public WITH (publish = 'insert')")
    return node


def test_publications(published: Node) -> None:
    found = published.sql("SELECT pubname, pubinsert, pubupdate, puballtables FROM pg_publication")
    assert found.columns == ("pubname", "pubinsert", "pubupdate", "puballtables")
    assert found.rows == (("p", True, True, False), ("s", True, False, False))
    tables = published.sql("SELECT * FROM pg_publication_tables ORDER BY pubname").rows
    assert tables == (
        ("p", "public", "t", "{id}", "(id > 5)"),
        ("s", "public", "t", "{id,v}", None),
    )
    (rel,) = published.sql("SELECT prattrs, prrelid::regclass FROM pg_publication_rel").rows
    assert rel == ("1", "t")
    (schema,) = published.sql("SELECT pnnspid::regnamespace FROM pg_publication_namespace").rows
    assert schema == ("public",)


def test_a_query_may_join(published: Node) -> None:
    found = published.sql(
        "SELECT p.pubname, count(*) FROM pg_publication p"
        " JOIN pg_publication_tables t USING (pubname) GROUP BY 1 ORDER BY 1"
    )
    assert found.rows == (("p", 1), ("s", 1))


def test_own_views_keep_their_columns(node: Node) -> None:
    assert "suberror" in node.sql("SELECT * FROM pg_subscription").columns


def test_what_is_no_catalog_is_not_there(node: Node) -> None:
    with pytest.raises(UndefinedObject, match='relation "orders" does not exist'):
        node.sql("SELECT * FROM orders")


@pytest.mark.postgres
@pytest.mark.parametrize("view", VIEWS)
def test_columns_are_those_of_18(
    view: str, node: Node, database_on: Callable[..., Database]
) -> None:
    with psycopg.connect(database_on(18).conninfo) as server:
        described = server.execute(f"SELECT * FROM {view}").description
    assert described is not None
    assert list(node.sql(f"SELECT * FROM {view}").columns) == [c.name for c in described]
