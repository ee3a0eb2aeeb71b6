"""Publications, roles and tables where a Delta lake has its own ways; what is as in PostgreSQL is
in test_publishing_oracle.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from commands.both import POSTGRES, Ours, done
from penstock.attribute import Attribute
from penstock.catalog import LakeTable, SubscriptionRelState
from penstock.commands import (
    CommandScope,
    CurrentRole,
    execute,
    is_command,
    register_all,
    table_columns,
)
from penstock.commands.aclchk import may_select
from penstock.errors import FeatureNotSupported, InsufficientPrivilege, StorageError
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.protocol.scram import ScramVerifier
from penstock.relation import ReplicaIdentity
from penstock.sql import parse
from penstock.walreceiver.publisher import Publisher


def refused(node: Ours, text: str, sqlstate: str) -> str:
    ((severity, code, message, *_),) = node.run(text)
    assert (severity, code) == ("ERROR", sqlstate)
    return message


def warehouse(node: Ours) -> Warehouse:
    assert node.scope.warehouse is not None
    return node.scope.warehouse


def lake_table(node: Ours, name: str, schema: str = "public") -> LakeTable:
    with node.catalog.read() as t:
        return t.tables.get(schema, name)


# Tables


def test_a_created_table_is_a_delta_table_with_postgresql_types(node: Ours) -> None:
    done(
        node,
        'CREATE TABLE "My t" (id bigint, "a b" varchar(5), n numeric(10,2)[], PRIMARY KEY (id))',
    )
    table = lake_table(node, "My t")
    assert table.uri == warehouse(node).table_uri("public", "My t")
    delta = warehouse(node).open("public", "My t")
    assert delta is not None
    assert delta.schema.source_key == ("id",)
    assert delta.schema.arrow().types == [pa.int64(), pa.string(), pa.list_(pa.decimal128(10, 2))]
    assert table_columns(node.scope, table) == (
        Attribute("id", 20),
        Attribute("a b", 1043, 9),
        Attribute("n", 1231, (10 << 16 | 2) + 4),
    )


def test_not_null_is_kept_with_the_table(node: Ours) -> None:
    """In the metadata of its columns, where Delta's writers see nothing of it."""
    done(
        node,
        "CREATE TABLE t (a int NOT NULL, b int PRIMARY KEY, s serial, c int)",
        "CREATE TABLE liked (LIKE t)",
        "ALTER TABLE t ADD COLUMN d int NOT NULL DEFAULT 1",
    )
    for name, missing in (("t", ["a", "s", "d"]), ("liked", ["a", "b", "s"])):
        columns = table_columns(node.scope, lake_table(node, name))
        assert [column.name for column in columns if column.not_null] == missing
        delta = warehouse(node).open("public", name)
        assert delta is not None
        fields = json.loads(delta.schema.delta_json())["fields"]
        assert all(field["nullable"] for field in fields)


def test_columns_are_added_to_a_table_and_its_partitions(node: Ours) -> None:
    done(
        node,
        "CREATE TABLE p (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        'ALTER TABLE p ADD COLUMN "b c" date, ADD "b;c" int[]',
    )
    for name in ("p", "p1"):
        delta = warehouse(node).open("public", name)
        assert delta is not None
        assert [c.source for c in delta.schema.columns] == ["a", "b c", "b;c"]
        assert [c.name for c in delta.schema.columns] == ["a", "b_c", "b_c_2"]
    assert lake_table(node, "p").uri is None
    assert lake_table(node, "p1").parent == lake_table(node, "p").oid


def test_a_column_that_spark_has_to_add(node: Ours) -> None:
    """Tables of others may have what a node does not write; the message is of the table."""
    uri = warehouse(node).table_uri("public", "mapped")
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableDeletionVectors": "true",
        "delta.minReaderVersion": "3",
        "delta.minWriterVersion": "7",
    }
    DeltaTable.create(uri, pa.schema([("id", pa.int64())]), mode="error")
    log = Path(local_path(uri)) / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"] = properties
        if "protocol" in action:
            action["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["columnMapping", "deletionVectors"],
                "writerFeatures": ["columnMapping", "deletionVectors"],
            }
    log.write_text("\n".join(map(json.dumps, actions)))
    with node.catalog.write() as t:
        t.tables.create("public", "mapped", uri)
    before = node.state()
    ((_, sqlstate, message, detail, hint, *_),) = node.run(
        'ALTER TABLE mapped ADD COLUMN n numeric(5,2), ADD "A b" int[]'
    )
    assert (sqlstate, message) == (
        "0A000",
        'ALTER TABLE ... ADD COLUMN is not supported for table "mapped"',
    )
    assert detail == (
        "Its Delta table has table features that replication does not maintain: columnMapping."
    )
    assert hint == (
        "Add the column by Spark, the node follows: "
        f"ALTER TABLE delta.`{uri}` ADD COLUMNS (`n` DECIMAL(5,2), `A b` ARRAY<INTEGER>);"
    )
    assert node.state() == before


def test_drop_table_removes_the_rows(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int)", "GRANT SELECT ON t TO PUBLIC")
    folder = Path(local_path(warehouse(node).table_uri("public", "t")))
    assert folder.is_dir()
    done(node, "DROP TABLE t")
    assert not folder.exists()
    done(node, "CREATE TABLE t (b int)")
    assert [c.name for c in table_columns(node.scope, lake_table(node, "t"))] == ["b"]


def test_a_table_that_cannot_be_removed_stays(node: Ours, monkeypatch: pytest.MonkeyPatch) -> None:
    done(node, "CREATE TABLE t (a int)", "CREATE PUBLICATION p FOR TABLE t")
    before = node.state()

    def fail(_warehouse: Warehouse, schema: str, table: str) -> None:
        raise StorageError(f"could not remove {schema}.{table}")

    monkeypatch.setattr(Warehouse, "remove", fail)
    refused(node, "DROP TABLE t", "58030")
    assert node.state() == before


@pytest.mark.parametrize("drop", ["DROP TABLE s.t", "DROP SCHEMA s CASCADE"])
def test_a_table_of_a_subscription_leaves_it(node: Ours, drop: str) -> None:
    done(node, "CREATE TABLE t (a int)", "CREATE SCHEMA s", "CREATE TABLE s.t (a int)")
    with node.catalog.write() as t:
        subscription = t.subscriptions.create(
            "sub", conninfo="", publications=("p",), slot_name=None
        )
        t.relations.add(subscription.oid, [("s", "t")], SubscriptionRelState.INIT)
    folder = Path(local_path(warehouse(node).table_uri("s", "t")))
    message = refused(node, drop, "55000")
    assert message == 'could not drop relation mapping for subscription "sub"'
    assert folder.is_dir()
    with node.catalog.write() as t:
        for rel in t.relations.all(subscription.oid):
            t.relations.remove(rel)
        t.relations.add(subscription.oid, [("s", "t")], SubscriptionRelState.READY)
    node.run(drop)
    assert not folder.exists()
    with node.catalog.read() as r:
        assert r.relations.all(subscription.oid) == ()


def test_replica_identity_by_columns(node: Ours) -> None:
    done(
        node,
        "CREATE TABLE t (a int, b int)",
        "ALTER TABLE t REPLICA IDENTITY USING KEY (b, a)",
    )
    table = lake_table(node, "t")
    assert table.replica_identity is ReplicaIdentity.INDEX
    assert table.identity == ("b", "a")
    refused(node, "ALTER TABLE t REPLICA IDENTITY USING KEY (c)", "42703")
    refused(node, "ALTER TABLE t REPLICA IDENTITY USING KEY (a, a)", "42P16")
    done(node, "ALTER TABLE t REPLICA IDENTITY FULL")
    assert lake_table(node, "t").identity == ()


@pytest.mark.parametrize(
    "text",
    [
        "CREATE INDEX i ON known (a)",
        "CREATE UNIQUE INDEX i ON known (a) WHERE a > 1",
        "CREATE UNIQUE INDEX i ON known ((a + 1))",
        "CREATE UNIQUE INDEX i ON known (abs(a))",
        "CREATE UNIQUE INDEX i ON known (a) NULLS NOT DISTINCT",
        "CREATE UNIQUE INDEX CONCURRENTLY i ON known (a)",
        "ALTER TABLE known ADD UNIQUE (a) DEFERRABLE",
        "CREATE ROLE r CREATEDB",
        "CREATE ROLE r IN ROLE q",
        "CREATE ROLE r PASSWORD 'md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
        "INSERT INTO known VALUES (1)",
        "BEGIN",
    ],
)
def test_refused_plainly(node: Ours, text: str) -> None:
    done(node, "CREATE TABLE known (a int)")
    refused(node, text, "0A000")


# Tables that others have made


def test_a_table_of_a_foreign_writer_is_known_from_its_first_mention(node: Ours) -> None:
    rows = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "price": pa.array([1], pa.decimal128(5, 2)),
            "at": pa.array([0], pa.timestamp("us", "UTC")),
            "tags": pa.array([["a"]], pa.list_(pa.string())),
        },
        schema=pa.schema(
            [
                pa.field("id", pa.int32(), nullable=False),
                pa.field("price", pa.decimal128(5, 2)),
                pa.field("at", pa.timestamp("us", "UTC")),
                pa.field("tags", pa.list_(pa.string())),
            ]
        ),
    )
    path = local_path(warehouse(node).table_uri("sales", "orders"))
    write_deltalake(path, rows, partition_by=["id"])
    refused(node, "CREATE PUBLICATION p FOR TABLE orders", "42P01")
    done(node, "CREATE PUBLICATION p FOR TABLE sales.orders (id, price) WHERE (id > 5)")
    table = lake_table(node, "orders", "sales")
    assert (table.owner, table.primary_key) == (None, ())
    assert [(c.type_oid, c.typmod) for c in table_columns(node.scope, table)] == [
        (23, -1),
        (1700, (5 << 16 | 2) + 4),
        (1184, -1),
        (1009, -1),
    ]
    refused(node, "CREATE TABLE sales.orders (a int)", "42P07")


def test_like_takes_over_not_null_of_a_foreign_writer(node: Ours) -> None:
    kinds = [pa.field("id", pa.int32(), nullable=False), pa.field("note", pa.string())]
    rows = pa.table({"id": [1], "note": ["a"]}, schema=pa.schema(kinds))
    write_deltalake(local_path(warehouse(node).table_uri("public", "theirs")), rows)
    done(node, "CREATE TABLE liked (LIKE theirs)")
    for name in ("theirs", "liked"):
        columns = table_columns(node.scope, lake_table(node, name))
        assert [column.name for column in columns if column.not_null] == ["id"]


def test_a_key_that_a_subscription_has_left_is_the_primary_key(node: Ours) -> None:
    columns = (
        Column("a_b", Attribute("a b", 20), pa.int64()),
        Column("c", Attribute("c", 1043, 9), pa.string()),
    )
    warehouse(node).create("public", "copied", TableSchema(columns, ("a_b",)))
    done(node, 'CREATE PUBLICATION p FOR TABLE copied ("a b")')
    assert lake_table(node, "copied").primary_key == ("a b",)


def test_all_tables_are_registered_under_their_own_names(node: Ours) -> None:
    schema = TableSchema((Column("a", Attribute("a", 20), pa.int64()),), ())
    names = [("public", "t"), ("public", "My t"), ("a.b", "c.d"), ("Ünï", "x-1")]
    for name in names:
        warehouse(node).create(*name, schema)
    warehouse(node).storage.create_folder(warehouse(node).staging)
    done(node, "CREATE PUBLICATION p FOR ALL TABLES")
    with node.catalog.write() as t:
        assert {(table.schema, table.name) for table in t.tables.all()} == set(names)
        before = t.tables.all()
        register_all(t, node.scope)
        assert t.tables.all() == before
        assert {n.name for n in t.namespaces.all()} == {"public", "a.b", "Ünï"}


def test_a_schema_with_tables_exists(node: Ours) -> None:
    write_deltalake(local_path(warehouse(node).table_uri("s", "t")), pa.table({"a": [1]}))
    refused(node, "CREATE PUBLICATION p FOR TABLES IN SCHEMA r", "3F000")
    done(node, "CREATE PUBLICATION p FOR TABLES IN SCHEMA s")
    assert lake_table(node, "t", "s")


# Publications


def test_a_filter_is_kept_as_the_catalog_shows_it(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int, b text)")
    done(node, "CREATE PUBLICATION p FOR TABLE t WHERE ( (a>5) AND b <> ')' -- no\n)")
    with node.catalog.read() as t:
        (rel,) = t.publications.relations()
        assert rel.row_filter == "((a > 5) AND (b <> ')'::text))"


def test_what_raises_leaves_nothing(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int)", "CREATE PUBLICATION p FOR TABLE t")
    before = node.state()
    refused(node, "ALTER PUBLICATION p SET TABLE nope", "42P01")
    refused(node, "ALTER PUBLICATION p SET TABLE t (a), TABLES IN SCHEMA public", "22023")
    refused(node, "DROP PUBLICATION p, q", "42704")
    assert node.state() == before


def test_current_schema_is_the_first_of_the_search_path(node: Ours) -> None:
    done(node, "CREATE SCHEMA s", "CREATE SCHEMA r")
    node.scope = replace(node.scope, search_path=("nowhere", "s", "public"))
    done(node, "CREATE TABLE t (a int)", "CREATE PUBLICATION p FOR TABLES IN SCHEMA CURRENT_SCHEMA")
    assert lake_table(node, "t", "s")
    with node.catalog.read() as t:
        assert [n.schema for n in t.publications.namespaces()] == ["s"]
    node.scope = replace(node.scope, search_path=())
    refused(node, "CREATE PUBLICATION q FOR TABLES IN SCHEMA CURRENT_SCHEMA", "3F000")
    refused(node, "CREATE TABLE u (a int)", "3F000")


# Roles


def test_a_password_becomes_a_verifier(node: Ours) -> None:
    done(node, "CREATE ROLE r LOGIN PASSWORD 'tops3cret'")
    with node.catalog.read() as t:
        text = t.roles.get("r").verifier
    assert text is not None
    verifier = ScramVerifier.parse(text)
    assert verifier == ScramVerifier.of_password("tops3cret", verifier.salt)
    done(node, f"CREATE ROLE q PASSWORD '{text}'")
    with node.catalog.read() as t:
        assert t.roles.get("q").verifier == text
        assert "tops3cret" not in json.dumps(repr(t.roles.all()))


def test_who_may_read(node: Ours) -> None:
    done(node, "CREATE TABLE t (a int)", "CREATE TABLE u (a int)", "CREATE ROLE r", "CREATE ROLE q")
    done(node, "GRANT SELECT ON t TO r", "ALTER TABLE u OWNER TO q")

    def readers(name: str) -> set[str]:
        with node.catalog.read() as t:
            table = t.tables.get("public", name)
            roles = [CurrentRole.of(role) for role in t.roles.all()]
            return {role.name for role in (POSTGRES, *roles) if may_select(t, role, table)}

    assert readers("t") == {"postgres", "r"}
    assert readers("u") == {"postgres", "q"}
    done(node, "GRANT SELECT ON u TO PUBLIC", "REVOKE SELECT ON t FROM r")
    assert readers("u") == {"postgres", "q", "r"}
    assert readers("t") == {"postgres"}
    assert "could be revoked" in str(_as(node, "r", "REVOKE SELECT ON u FROM q"))


def _as(node: Ours, role: str, text: str) -> object:
    done(node, f"SET ROLE {role}")
    try:
        return node.run(text)
    finally:
        done(node, "SET ROLE NONE")


def test_others_do_not_touch_subscriptions(node: Ours) -> None:
    done(node, "CREATE ROLE r")
    with node.catalog.write() as t:
        t.subscriptions.create("sub", conninfo="", publications=("p",), slot_name=None)
        role = CurrentRole.of(t.roles.get("r"))
    scope = replace(node.scope, role=role)
    for text, message in (
        ("CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p", "permission denied to create"),
        ("DROP SUBSCRIPTION sub", "must be owner of subscription sub"),
        ("ALTER SUBSCRIPTION sub DISABLE", "must be owner of subscription sub"),
    ):
        with pytest.raises(InsufficientPrivilege, match=message):
            execute(parse(text), node.catalog, Publisher.connect, scope)


# The dispatcher


def test_without_a_warehouse_tables_are_refused(node: Ours) -> None:
    with pytest.raises(FeatureNotSupported, match="warehouse"):
        execute(parse("CREATE TABLE t (a int)"), node.catalog, Publisher.connect)
    assert CommandScope().role.superuser


def test_which_statements_are_commands() -> None:
    for text in ("CREATE PUBLICATION p", "DROP TABLE t", "ALTER SUBSCRIPTION s ENABLE"):
        assert is_command(parse(text))
    for text in ("SELECT 1", "BEGIN", "COPY t TO STDOUT", "SET a = 1", "TRUNCATE t"):
        assert not is_command(parse(text))


def test_long_names_are_cut_with_a_notice(node: Ours) -> None:
    ((_, code, message, *_),) = node.run(f"CREATE PUBLICATION {'p' * 70}")
    assert code == "42622"
    assert "will be truncated" in message
    with node.catalog.read() as t:
        assert t.publications.get("p" * 63)
