"""Relations as Delta tables, and which changes of a relation a table can follow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, RelationChanged
from penstock.lakehouse.describe import describe
from penstock.lakehouse.schema import (
    KEY,
    Column,
    TableSchema,
    alter_schema_json,
    arrow_type,
    delta_type,
    recorded_type,
)
from penstock.lakehouse.schema_changes import (
    NewColumns,
    check_no_variant,
    check_same_key,
    columns_to_add,
    schema_of_copy,
)
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.variant import VARIANT
from penstock.relation import Relation, ReplicaIdentity
from penstock.walsender.lake_columns import columns_of

INT8, TEXT, NUMERIC, TIMESTAMP, DATE = 20, 25, 1700, 1114, 1082


def relation(
    *attributes: Attribute, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
) -> Relation:
    return Relation(16385, "public", "orders", identity, attributes)


ID = Attribute("id", INT8, -1, key=True)
NOTE = Attribute("note", TEXT)


def test_of_relation() -> None:
    schema = TableSchema.of_relation(relation(ID, Attribute("a b", TEXT), Attribute("A_B", TEXT)))
    assert [c.name for c in schema.columns] == ["id", "a_b_2", "A_B"]
    assert schema.key == schema.source_key == ("id",)
    assert schema.renamed == (("a b", "a_b_2"),)
    assert schema.arrow() == pa.schema(
        [("id", pa.int64()), ("a_b_2", pa.string()), ("A_B", pa.string())]
    )


def test_types_of_the_node_and_of_publishers_are_told_apart() -> None:
    """Both count their types from 16384 on."""
    theirs = TableSchema.of_relation(relation(ID, Attribute("mood", 16390)))
    made_here = TableSchema(tuple(replace(c, local=True) for c in theirs.columns), theirs.key)
    metadata = [
        [field["metadata"] for field in json.loads(schema.delta_json())["fields"]]
        for schema in (theirs, made_here)
    ]
    assert [recorded_type(each) for each in metadata[0]] == [(20, -1), (16390 | 1 << 31, -1)]
    assert [recorded_type(each) for each in metadata[1]] == [(20, -1), (16390, -1)]
    assert recorded_type({}) == (0, -1)


def test_a_column_made_here_keeps_its_type_when_it_is_copied_again() -> None:
    made = TableSchema.of_relation(
        relation(ID, Attribute("mood", 16390), Attribute("n", INT8), Attribute("own", TEXT))
    )
    columns = (
        replace(c, local=True, attribute=replace(c.attribute, default="'x'")) for c in made.columns
    )
    own = TableSchema(tuple(columns), made.key)
    published = relation(ID, Attribute("mood", 16777), Attribute("n", TEXT))
    again = schema_of_copy(own, TableSchema.of_relation(published), table="public.t")
    types = {c.name: (c.attribute.type_oid, c.local, c.attribute.default) for c in again.columns}
    assert types == {
        "id": (INT8, True, "'x'"),
        "mood": (16390, True, "'x'"),
        "n": (INT8, True, "'x'"),
        "own": (TEXT, True, "'x'"),
    }


def test_a_type_that_was_chosen_here_is_not_replaced_by_a_copy() -> None:
    point = replace(Column("c", Attribute("c", 600), pa.string()), local=True)
    own = TableSchema((Column("id", Attribute("id", INT8), pa.int64(), local=True), point), ("id",))
    wanted = TableSchema.of_relation(relation(ID, Attribute("c", TEXT)))
    with pytest.raises(FeatureNotSupported, match="cannot be converted to the type"):
        schema_of_copy(own, wanted, table="public.t")
    same = TableSchema.of_relation(relation(ID, Attribute("c", 600)))
    assert schema_of_copy(own, same, table="public.t").columns[1].attribute.type_oid == 600


def test_full_and_nothing_have_no_key_unless_one_is_named() -> None:
    every = [Attribute("id", INT8, key=True), Attribute("n", INT8, key=True)]
    full = relation(*every, identity=ReplicaIdentity.FULL)
    assert TableSchema.of_relation(full).key == ()
    assert TableSchema.of_relation(full, ["id"]).key == ("id",)
    assert TableSchema.of_relation(relation(NOTE, identity=ReplicaIdentity.NOTHING)).key == ()


def test_round_trip_through_delta() -> None:
    schema = TableSchema.of_relation(
        relation(ID, Attribute("x y", NUMERIC, (10 << 16 | 2) + 4), Attribute("at", TIMESTAMP))
    )
    properties = {KEY: json.dumps(schema.key)}
    assert TableSchema.of_delta(schema.delta_json(), properties) == schema
    assert schema.needs_timestamp_ntz
    fields = json.loads(schema.delta_json())["fields"]
    assert [f["type"] for f in fields] == ["long", "decimal(10,2)", "timestamp_ntz"]
    assert fields[1]["metadata"]["penstock.source"] == "x y"


@pytest.mark.parametrize(
    ("arrow", "delta"),
    [
        (pa.int16(), "short"),
        (pa.decimal128(38, 38), "decimal(38,38)"),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            {"type": "array", "elementType": "timestamp", "containsNull": True},
        ),
        (VARIANT, "variant"),
    ],
)
def test_types(arrow: pa.DataType, delta: object) -> None:
    assert delta_type(arrow) == delta
    assert arrow_type(delta) == arrow


def test_types_that_delta_has_and_we_do_not_write() -> None:
    with pytest.raises(FeatureNotSupported, match="struct"):
        arrow_type({"type": "struct", "fields": []})
    with pytest.raises(FeatureNotSupported, match="array<variant>"):
        arrow_type({"type": "array", "elementType": "variant", "containsNull": True})


def test_same_and_reordered_relations_fit() -> None:
    have = TableSchema.of_relation(relation(ID, NOTE))
    assert columns_to_add(have, have, table="public.orders") == ()
    assert columns_to_add(have, TableSchema.of_relation(relation(NOTE, ID)), table="t") == ()
    varchar = TableSchema.of_relation(relation(ID, Attribute("note", 1043, 14)))
    assert columns_to_add(have, varchar, table="t") == (), "text and varchar are both strings"


def test_added_columns_get_names_that_are_free() -> None:
    have = TableSchema.of_relation(relation(ID, Attribute("a_b", TEXT)))
    wanted = TableSchema.of_relation(relation(ID, Attribute("a b", INT8), Attribute("a_b", TEXT)))
    (added,) = columns_to_add(have, wanted, table="public.orders")
    assert (added.source, added.name, added.type) == ("a b", "a_b_2", pa.int64())
    assert columns_to_add(have.with_columns([added]), wanted, table="public.orders") == ()


def test_a_column_that_another_writer_has_added() -> None:
    wanted = TableSchema.of_relation(relation(ID))
    have = wanted.with_columns([Column("note", Attribute("note", 0), pa.string())])
    with pytest.raises(RelationChanged, match="is not published") as caught:
        columns_to_add(have, wanted, table="public.orders")
    assert "Another writer has made it" in str(caught.value.detail)


def test_rows_that_are_there_have_the_key_of_the_replica_identity() -> None:
    have = TableSchema.of_relation(relation(ID, NOTE))
    check_same_key(have, ["id"], "public.orders")
    with pytest.raises(RelationChanged, match=r"public\.orders") as caught:
        check_same_key(have, ["note"], "public.orders")
    assert caught.value.detail == "The target table's key is (id), the publisher's (note)."


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ((ID,), ["note", "no longer published", "string"]),
        ((ID, Attribute("note", INT8)), ["note", "changed its type", "string", "long"]),
        ((ID, Attribute("remark", TEXT)), ["note", "no longer published"]),
    ],
)
def test_other_changes_stop_with_table_column_types_and_remedy(
    attributes: tuple[Attribute, ...], words: list[str]
) -> None:
    have = TableSchema.of_relation(relation(ID, NOTE))
    with pytest.raises(RelationChanged) as caught:
        columns_to_add(have, TableSchema.of_relation(relation(*attributes)), table="public.orders")
    report = caught.value.with_statement("ALTER SUBSCRIPTION s").report()
    assert all(word in report for word in ["public.orders", *words]), report


def test_a_column_of_the_nodes_own_that_was_published_and_may_be_renamed() -> None:
    """What ALTER TABLE tells of it survives a restart, and ends with a new copy."""
    theirs = TableSchema.of_relation(relation(ID, NOTE))
    made = TableSchema(tuple(replace(c, local=True) for c in theirs.columns), theirs.key)
    renamed = TableSchema.of_relation(relation(ID, Attribute("remark", TEXT), Attribute("a", TEXT)))
    assert [c.source for c in columns_to_add(made, renamed, table="t")] == ["remark", "a"]
    fields = alter_schema_json(made.delta_json(), made.with_published(["id", "note"]).columns, ())
    sent = TableSchema.of_delta(fields, {KEY: '["id"]'})
    with pytest.raises(RelationChanged) as caught:
        columns_to_add(sent, renamed, table="public.t")
    assert str(caught.value.message) == (
        'logical replication target relation "public.t" is missing replicated columns: '
        '"remark", "a"'
    )
    assert '"note" is no longer published' in str(caught.value.detail)
    assert columns_to_add(sent, TableSchema.of_relation(relation(ID)), table="t") == ()
    assert theirs.with_published(["note"]) == theirs
    again = schema_of_copy(sent, renamed, table="t")
    assert {c.source: c.published for c in again.columns} == {
        "id": True,
        "remark": False,
        "a": False,
        "note": False,
    }


def test_columns_that_spark_maintains_are_refused() -> None:
    generated = json.dumps(
        {
            "type": "struct",
            "fields": [
                {
                    "name": "day",
                    "type": "date",
                    "nullable": True,
                    "metadata": {"delta.generationExpression": "cast(at as date)"},
                }
            ],
        }
    )
    with pytest.raises(FeatureNotSupported, match="day"):
        TableSchema.of_delta(generated, {})


def test_columns_of_others_keep_their_names() -> None:
    foreign = '{"fields": [{"name": "a", "type": "long", "nullable": true, "metadata": {}}]}'
    assert TableSchema.of_delta(foreign, {}).columns == (
        Column("a", Attribute("a", 0), pa.int64()),
    )
    with pytest.raises(FeatureNotSupported, match="NOT NULL") as caught:
        TableSchema.of_delta(foreign.replace("true", "false"), {})
    assert "DROP NOT NULL" in caught.value.report()


def test_appended_columns_leave_the_others_alone() -> None:
    commented = '{"type": "long", "name": "a", "nullable": true, "metadata": {"comment": "x"}}'
    longer = alter_schema_json(
        f'{{"fields": [{commented}]}}',
        [Column("a", Attribute("a", 0), pa.int64())],
        [Column("b", Attribute("b", TEXT), pa.string())],
    )
    first, second = json.loads(longer)["fields"]
    assert first == json.loads(commented)
    assert second["metadata"] == {"penstock.source": "b", "penstock.type": "25,-1"}


def test_nobody_sees_the_column_of_a_table_without_columns(tmp_path: Path) -> None:
    """Neither the catalogs nor a publication, and nobody takes it for a column of the table."""
    warehouse = Warehouse(str(tmp_path), False)
    made = TableSchema.of_relation(relation()).with_row()
    table = warehouse.create("public", "t", made)
    table.add_columns(made.lacking(TableSchema.of_relation(relation(ID)).columns))
    table.commit(app_id="APP", operation="TEST")
    described = describe(warehouse, table.uri)
    assert described is not None
    assert [field["name"] for field in described.fields] == ["id"]
    assert [column.attribute.name for column in columns_of(table.state)] == ["id"]
    assert [column.name for column in table.schema.taken().columns if column.local] == []
    wanted = TableSchema.of_relation(relation(ID), ())
    assert columns_to_add(table.schema, wanted, table="t") == ()


def test_columns_as_text_where_a_type_does_not_hold_all_values() -> None:
    plain = TableSchema.of_relation(relation(ID, Attribute("d", DATE), Attribute("n", NUMERIC)))
    new = NewColumns(as_text=True)
    made = new.schema(plain)
    assert [(c.attribute.type_oid, c.as_text) for c in made.columns] == [
        (ID.type_oid, False),
        (TEXT, True),
        (NUMERIC, False),
    ]
    again = TableSchema.of_delta(made.delta_json(), {"penstock.key": '["id"]'})
    assert again == made
    # The relation fits it, columns that are added are text, too, and those that are there stay.
    more = TableSchema.of_relation(
        relation(ID, Attribute("d", DATE), Attribute("n", NUMERIC), Attribute("e", DATE))
    )
    (added,) = columns_to_add(made, more, table="t", new=new)
    assert (added.source, added.attribute.type_oid, added.as_text) == ("e", TEXT, True)
    assert columns_to_add(plain, plain, table="t", new=new) == ()
    assert columns_to_add(made, plain, table="t") == ()
    assert schema_of_copy(plain, plain, table="t", new=new) == made
    assert schema_of_copy(made, plain, table="t") == plain
    own = TableSchema((*plain.columns[:1], replace(plain.columns[1], local=True)), plain.key)
    wanted = TableSchema(plain.columns[:2], plain.key)
    assert schema_of_copy(own, wanted, table="t", new=new).columns[1].attribute.type_oid == DATE


JSONB, JSON, JSONB_ARRAY = 3802, 114, 3807


def test_jsonb_as_variants() -> None:
    attributes = (ID, Attribute("a", JSONB), Attribute("b", JSON), Attribute("c", JSONB_ARRAY))
    plain, new = TableSchema.of_relation(relation(*attributes)), NewColumns(variants=True)
    made = new.schema(plain)
    text, list_ = pa.string(), pa.list_(pa.string())
    assert [c.type for c in made.columns] == [pa.int64(), VARIANT, text, list_]
    assert made.has_variants
    assert not plain.has_variants
    written = TableSchema.of_delta(made.delta_json(), {KEY: '["id"]'})
    assert written == made
    assert columns_to_add(written, plain, table="t") == ()
    more = TableSchema.of_relation(relation(*attributes, Attribute("d", JSONB)))
    assert [c.type for c in columns_to_add(made, more, table="t", new=new)] == [VARIANT]
    assert columns_to_add(plain, plain, table="t", new=new) == ()
    assert schema_of_copy(plain, plain, table="t", new=new) == made
    for other in (JSON, TEXT):
        changed = TableSchema.of_relation(relation(ID, Attribute("a", other), *attributes[2:]))
        with pytest.raises(RelationChanged, match="changed its type"):
            columns_to_add(made, changed, table="t")


def test_a_column_that_spark_has_made_takes_jsonb_only() -> None:
    have = TableSchema(
        (Column("id", Attribute("id", 0), pa.int64()), Column("v", Attribute("v", 0), VARIANT)),
        ("id",),
    ).taken()
    wanted = TableSchema.of_relation(relation(ID, Attribute("v", JSONB)))
    assert columns_to_add(have, wanted, table="t") == ()
    assert schema_of_copy(have, wanted, table="t").columns[1].type == VARIANT
    with pytest.raises(FeatureNotSupported, match="cannot be converted"):
        columns_to_add(have, TableSchema.of_relation(relation(ID, Attribute("v", JSON))), table="t")


def test_a_partition_copied_again_has_the_types_of_its_root() -> None:
    """In columns that a subscription has made; those of CREATE TABLE are the node's."""
    own = Column("id", Attribute("id", INT8), pa.int64(), local=True)
    leaf = TableSchema(
        (
            own,
            Column("v1", Attribute("v", JSONB), pa.string()),
            Column("n", Attribute("n", INT8), pa.int64()),
        ),
        ("id",),
    )
    root = TableSchema(
        (replace(own, type=pa.int32()), Column("v", Attribute("v", JSONB), VARIANT)), ("id",)
    )
    assert leaf.as_leaf_of(root) == TableSchema(
        (own, Column("v1", Attribute("v", JSONB), VARIANT)), ("id",)
    )


def test_a_variant_is_no_key() -> None:
    wanted = TableSchema.of_relation(relation(Attribute("v", JSONB, key=True)))
    made = NewColumns(variants=True).schema(wanted)
    with pytest.raises(FeatureNotSupported, match='column "v" of table "t" cannot be a variant'):
        check_no_variant(made, table="t")
    check_no_variant(wanted, table="t")
    with pytest.raises(FeatureNotSupported, match="variant"):
        schema_of_copy(wanted, wanted, table="t", new=NewColumns(variants=True))
