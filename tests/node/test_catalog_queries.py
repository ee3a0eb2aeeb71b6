"""PostgreSQL's catalogs and views by ``Node.sql``, without Spark and without a port."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from fix_postgres import Database
from penstock import Node
from penstock.catalog import SubscriptionRelState, SubscriptionStatistics
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lsn import Lsn

VIEWS = (
    "pg_subscription",
    "pg_subscription_rel",
    "pg_stat_subscription",
    "pg_stat_subscription_stats",
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


def test_subscriptions(node: Node) -> None:
    node.sql(
        "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=1 dbname=x user=u"
        " password=tops3cret'"
        ' PUBLICATION p, "Q," WITH (connect = off)'
    )
    (oid,) = node.sql("SELECT oid FROM pg_subscription").rows[0]
    everything = node.sql("SELECT * FROM pg_subscription")
    assert everything.tag == "SELECT 1"
    row = dict(zip(everything.columns, everything.rows[0], strict=True))
    assert (row["subname"], row["subenabled"], row["subslotname"]) == ("s", False, "s")
    assert row["subpublications"] == '{p,"Q,"}'
    assert row["subconninfo"] == "user=u dbname=x host=127.0.0.1 port=1"
    assert "tops3cret" not in repr(everything)
    assert node.sql("SELECT * FROM pg_subscription WHERE true") == everything
    with node._catalog.write() as t:
        t.relations.add(oid, [("public", "t")], SubscriptionRelState.INIT)
    tables = "SELECT subname, schemaname, relname, state, lsn FROM pg_stat_lake_subscription_rel"
    assert node.sql(tables).rows == (("s", "public", "t", "i", None),)


def test_numbers_of_subscriptions(node: Node) -> None:
    node.sql("CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = off)")
    (oid,) = node.sql("SELECT oid FROM pg_subscription").rows[0]
    query = (
        "SELECT pid, worker_type, received_lsn, lag_bytes FROM pg_stat_subscription"
        " JOIN pg_stat_lake_subscription USING (subid)"
    )
    assert node.sql(query).rows == ((None, None, None, None),)
    now = time.time()
    numbers = SubscriptionStatistics(
        subid=oid,
        pid=7,
        state="streaming",
        updated_at=now,
        received_lsn=Lsn(9),
        cut_lsn=Lsn(8),
        publisher_lsn=Lsn(10),
        publisher_at=now,
    )
    node._catalog.statistics.report([numbers])
    assert node.sql(query).rows == ((7, "apply", "0/9", 2),)
    node._catalog.statistics.report([replace(numbers, updated_at=now - 60)])
    assert node.sql(query).rows == ((None, None, None, 2),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM pg_klass", 'relation "pg_klass" does not exist'),
        ("SELECT subfoo FROM pg_subscription", 'column "subfoo" does not exist'),
    ],
)
def test_what_is_not_there(node: Node, text: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        node.sql(text)


def test_tables_of_the_lake_are_for_sessions(node: Node) -> None:
    with pytest.raises(FeatureNotSupported, match="SELECT of tables of the lake"):
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
