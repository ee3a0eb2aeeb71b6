"""What is asked of the publisher, on every server version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, UndefinedObject, WrongObjectType
from penstock.relation import ReplicaIdentity
from penstock.walreceiver.publisher import Publisher, missing_publications_message

VERSIONS = [14, 15, 16, 17, 18]
INT, TEXT, NUMERIC = 23, 25, 1700

SCHEMA = """
CREATE TABLE plain (id int PRIMARY KEY, "Mixed Case" text, n numeric(10,2), gone int);
ALTER TABLE plain DROP COLUMN gone;
INSERT INTO plain SELECT i, repeat('x', 1000), i FROM generate_series(1, 1000) i;
CREATE TABLE composite (b text NOT NULL, a int NOT NULL, c int, PRIMARY KEY (b, a));
CREATE TABLE full_identity (id int PRIMARY KEY, v text);
ALTER TABLE full_identity REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int PRIMARY KEY, u int NOT NULL UNIQUE, v text);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_u_key;
CREATE TABLE nothing_identity (v text);
ALTER TABLE nothing_identity REPLICA IDENTITY NOTHING;
CREATE TABLE zero ();
CREATE TABLE generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v text);
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (extra int) INHERITS (parent);
CREATE SCHEMA "Odd ""schema";
CREATE TABLE "Odd ""schema"."it's a \\ table" (id int PRIMARY KEY, "a""b" text);
CREATE TABLE root (id int, region text, v text, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE leaf_eu PARTITION OF root FOR VALUES IN ('eu');
CREATE TABLE branch PARTITION OF root FOR VALUES IN ('us', 'ca') PARTITION BY LIST (region);
CREATE TABLE leaf_us PARTITION OF branch FOR VALUES IN ('us');
CREATE TABLE "Leaf ca" (v text, region text, id int NOT NULL, PRIMARY KEY (id, region));
ALTER TABLE "Leaf ca" ALTER region SET NOT NULL;
ALTER TABLE branch ATTACH PARTITION "Leaf ca" FOR VALUES IN ('ca');
INSERT INTO root SELECT i, (ARRAY['eu','us','ca'])[i % 3 + 1], 'v' FROM generate_series(1, 3000) i;
CREATE PUBLICATION everything FOR ALL TABLES;
CREATE PUBLICATION via_root FOR TABLE root WITH (publish_via_partition_root);
CREATE PUBLICATION leaves FOR TABLE root;
CREATE PUBLICATION "quo'ted ""name" FOR TABLE plain;
"""


@pytest.fixture(params=VERSIONS)
def publisher(request: pytest.FixtureRequest, database_on: Callable[..., Database]) -> Publisher:
    database = database_on(request.param)
    database.execute(SCHEMA)
    request.addfinalizer(lambda: opened.close())
    opened = Publisher.connect(database.conninfo, "asks")
    opened.database = database  # type: ignore[method-assign, assignment]
    return opened


def execute(publisher: Publisher, sql: str) -> None:
    publisher.database.execute(sql)  # type: ignore[attr-defined]


def test_publications_and_tables(publisher: Publisher) -> None:
    names = ["everything", "no", "quo'ted \"name", "nor"]
    assert publisher.missing_publications(names) == ["no", "nor"]
    tables = publisher.tables(["everything"])
    assert ("public", "plain") in tables
    assert ('Odd "schema', "it's a \\ table") in tables
    assert ("public", "leaf_eu") in tables
    assert ("public", "root") not in tables
    assert list(publisher.tables(["via_root"])) == [("public", "root")]
    assert list(publisher.tables(["leaves"])) == [
        ("public", "Leaf ca"),
        ("public", "leaf_eu"),
        ("public", "leaf_us"),
    ]
    assert list(publisher.tables(["quo'ted \"name"])) == [("public", "plain")]
    assert publisher.tables(["no"]) == {}


def test_columns_and_keys(publisher: Publisher) -> None:
    plain = publisher.table_info(["everything"], "public", "plain")
    assert plain.relation.attributes == (
        Attribute("id", INT, key=True),
        Attribute("Mixed Case", TEXT),
        Attribute("n", NUMERIC, (10 << 16) + 2 + 4),
    )
    assert plain.relation.replica_identity is ReplicaIdentity.DEFAULT
    assert plain.primary_key == ("id",)
    assert plain.row_filter is None
    composite = publisher.table_info(["everything"], "public", "composite")
    assert composite.relation.key == ("b", "a")
    assert composite.primary_key == ("b", "a")
    full = publisher.table_info(["everything"], "public", "full_identity")
    assert full.relation.key == ("id", "v")
    assert full.primary_key == ("id",)
    by_index = publisher.table_info(["everything"], "public", "by_index")
    assert by_index.relation.key == ("u",)
    assert by_index.primary_key == ("id",)
    nothing = publisher.table_info(["everything"], "public", "nothing_identity")
    assert (nothing.relation.key, nothing.primary_key) == ((), ())
    assert publisher.table_info(["everything"], "public", "zero").relation.attributes == ()
    odd = publisher.table_info(["everything"], 'Odd "schema', "it's a \\ table")
    assert [a.name for a in odd.relation.attributes] == ["id", 'a"b']


def test_generated_columns_are_not_published_by_default(publisher: Publisher) -> None:
    info = publisher.table_info(["everything"], "public", "generated")
    assert [a.name for a in info.relation.attributes] == ["id", "v"]


def test_generated_columns_from_18_on(publisher: Publisher) -> None:
    if publisher.server_version < 180000:
        pytest.skip("18 publishes stored generated columns")
    execute(
        publisher,
        "CREATE PUBLICATION gen FOR TABLE generated WITH (publish_generated_columns = stored);"
        "CREATE PUBLICATION listed FOR TABLE generated (id, g)",
    )
    gen = publisher.table_info(["gen"], "public", "generated")
    assert [a.name for a in gen.relation.attributes] == ["id", "g", "v"]
    listed = publisher.table_info(["listed"], "public", "generated")
    assert [a.name for a in listed.relation.attributes] == ["id", "g"]


def test_heaps_to_copy(publisher: Publisher) -> None:
    plain = publisher.table_info(["everything"], "public", "plain")
    (leaf,) = plain.leaves
    assert (leaf.schema, leaf.name, leaf.by_ctid, leaf.only) == ("public", "plain", True, True)
    assert leaf.blocks >= 1000 * 1000 // 8192
    assert leaf.size >= leaf.blocks * plain.block_size
    root = publisher.table_info(["via_root"], "public", "root")
    assert root.relkind == "p"
    assert {leaf.name for leaf in root.leaves} == {"leaf_eu", "leaf_us", "Leaf ca"}
    assert all(leaf.blocks > 0 for leaf in root.leaves)
    parent = publisher.table_info(["everything"], "public", "parent")
    assert [leaf.name for leaf in parent.leaves] == ["parent"]


def test_a_role_that_may_read_the_root_only(publisher: Publisher) -> None:
    execute(
        publisher,
        "DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN REPLICATION;"
        "GRANT SELECT ON root TO reader",
    )
    conninfo = publisher.database.conninfo + " user=reader"  # type: ignore[attr-defined]
    with Publisher.connect(conninfo) as reader:
        info = reader.table_info(["via_root"], "public", "root")
    assert [(leaf.name, leaf.by_ctid, leaf.only) for leaf in info.leaves] == [
        ("root", False, False)
    ]
    execute(publisher, "DROP OWNED BY reader; DROP ROLE reader")


def test_filters_and_column_lists(publisher: Publisher) -> None:
    if publisher.server_version < 150000:
        pytest.skip("14 has neither")
    execute(
        publisher,
        """
        CREATE PUBLICATION f1 FOR TABLE plain (id, n) WHERE (id > 10);
        CREATE PUBLICATION f2 FOR TABLE plain (id, n) WHERE (n < 5);
        CREATE PUBLICATION unfiltered FOR TABLE plain (id, n);
        CREATE PUBLICATION other_list FOR TABLE plain (id);
        CREATE PUBLICATION without_key FOR TABLE composite (a, c) WITH (publish = 'insert');
        CREATE PUBLICATION all_columns FOR TABLE plain (id, "Mixed Case", n);
        """,
    )
    one = publisher.table_info(["f1"], "public", "plain")
    assert [a.name for a in one.relation.attributes] == ["id", "n"]
    assert one.row_filter == "((id > 10))"
    both = publisher.table_info(["f1", "f2"], "public", "plain")
    assert both.row_filter == "((id > 10)) OR ((n < (5)::numeric))"
    assert publisher.table_info(["f1", "unfiltered"], "public", "plain").row_filter is None
    assert publisher.table_info(["without_key"], "public", "composite").primary_key == ()
    whole = publisher.table_info(["all_columns"], "public", "plain")
    assert [a.name for a in whole.relation.attributes] == ["id", "Mixed Case", "n"]
    text = 'cannot use different column lists for table "public.plain" in different publications'
    for ask in (
        lambda: publisher.tables(["f1", "other_list"]),
        lambda: publisher.table_info(["f1", "other_list"], "public", "plain"),
    ):
        with pytest.raises(FeatureNotSupported) as caught:
            ask()
        assert (caught.value.message, caught.value.sqlstate) == (text, "0A000")


def test_what_is_no_table(publisher: Publisher) -> None:
    execute(publisher, "CREATE VIEW a_view AS SELECT 1 AS x; CREATE SEQUENCE a_sequence")
    with pytest.raises(WrongObjectType) as caught:
        publisher.table_info(["everything"], "public", "a_view")
    assert caught.value.message == (
        'cannot use relation "public.a_view" as logical replication target'
    )
    assert caught.value.detail == "This operation is not supported for views."
    with pytest.raises(WrongObjectType, match="a_sequence"):
        publisher.table_info(["everything"], "public", "a_sequence")
    with pytest.raises(UndefinedObject) as missing:
        publisher.table_info(["everything"], "public", "nope")
    assert missing.value.message == 'table "public.nope" not found on publisher'


def test_positions(publisher: Publisher) -> None:
    before = publisher.current_wal_lsn()
    execute(publisher, "INSERT INTO parent VALUES (1, 'x')")
    assert publisher.current_wal_lsn() > before > 0
    identity = publisher.identify_system()
    assert identity.database == publisher.database.name  # type: ignore[attr-defined]
    assert int(identity.system_id) > 0
    assert identity.timeline == 1
    publisher.check_wal_level()


def test_warning_about_missing_publications() -> None:
    assert missing_publications_message(["a"]) == (
        'publication "a" does not exist on the publisher'
    )
    assert missing_publications_message(["a", "b"]) == (
        'publications "a", "b" do not exist on the publisher'
    )
