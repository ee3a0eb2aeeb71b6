"""Columns: added, renamed, generated, partition values, values at the edges of their types."""

from __future__ import annotations

import pytest

from faults.heavy import part_of_make_faults
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from pipeline.published import PublishingLake

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_an_added_column_is_a_new_relation(published: PublishingLake) -> None:
    table = published.table("added", "id INT, v STRING")
    table.run("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    subscriber = table.follow()
    table.run("INSERT INTO {t} VALUES (3, 'c')")
    assert subscriber.catch_up() == ["I 3,c"]
    table.run("ALTER TABLE {t} ADD COLUMNS (n BIGINT)")
    assert subscriber.catch_up() == []
    table.run("INSERT INTO {t} VALUES (4, 'd', 4)", "UPDATE {t} SET n = 1 WHERE id = 1")
    assert subscriber.catch_up() == ["I 4,d,4", "U 1,a,1"]
    names = [[a.name for a in relation.attributes] for relation in subscriber.relations]
    assert names == [["id", "v"], ["id", "v", "n"]]
    table.run("ALTER TABLE {t} ADD COLUMNS (d DATE)", "DELETE FROM {t} WHERE id = 2")
    assert subscriber.catch_up_at_once() == ["D 2,,,"]


@part_of_make_faults
def test_renamed_and_dropped_columns(published: PublishingLake) -> None:
    """Column mapping by name: the files keep the names that columns had at first."""
    table = published.table(
        "mapped", "id INT, v STRING, w STRING", **{"columnMapping.mode": "name"}
    )
    table.run("INSERT INTO {t} VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    subscriber = table.follow()
    table.run("UPDATE {t} SET v = 'c' WHERE id = 1")
    assert subscriber.catch_up() == ["U 1,c,x"]
    table.run("ALTER TABLE {t} RENAME COLUMN v TO name", "ALTER TABLE {t} DROP COLUMN w")
    table.run("INSERT INTO {t} VALUES (3, 'n')")
    subscriber.rename("v", "name")
    assert subscriber.catch_up() == ["I 3,n"]
    table.run("ALTER TABLE {t} ADD COLUMNS (w STRING)", "UPDATE {t} SET name = 'z' WHERE id = 2")
    assert subscriber.catch_up() == ["U 2,z,"]


def test_a_mapping_by_ids_is_refused(published: PublishingLake) -> None:
    table = published.table("ids", "id INT, v STRING", **{"columnMapping.mode": "id"})
    table.run("INSERT INTO {t} VALUES (1, 'a')")
    subscriber = table.follow()
    table.run("INSERT INTO {t} VALUES (2, 'b')")
    with pytest.raises(FeatureNotSupported, match='cannot publish changes of table "ids"'):
        subscriber.catch_up()


@part_of_make_faults
def test_partition_values_of_every_type(published: PublishingLake) -> None:
    columns = {
        "i": ("INT", "7", "-8"),
        "l": ("BIGINT", "-9223372036854775808", "0"),
        "s": ("STRING", "'a b/ü%=:'", "'x'"),
        "d": ("DATE", "DATE '0001-01-01'", "DATE '9999-12-31'"),
        "b": ("BOOLEAN", "true", "false"),
        "n": ("DECIMAL(10,2)", "1.50", "-0.01"),
        "f": ("DOUBLE", "1e300", "double('NaN')"),
        "r": ("FLOAT", "0.1f", "float('-Infinity')"),
        "t": (
            "TIMESTAMP",
            "TIMESTAMP '2020-02-29 23:59:59.999999'",
            "TIMESTAMP '1969-12-31 23:00:00'",
        ),
        "u": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2020-01-01 10:00:00.5'", "NULL"),
        "y": ("BINARY", "X'0102'", "X'C3A9'"),
    }
    names = ", ".join(columns)
    table = published.table(
        "parts",
        "id INT, " + ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items()),
        clauses=f"PARTITIONED BY ({names})",
    )
    subscriber = table.follow()
    for number in (1, 2):
        values = ", ".join(v[number] for v in columns.values())
        table.run("INSERT INTO {t} VALUES ({id}, {values})", id=str(number), values=values)
    table.run("INSERT INTO {t} (id, s) VALUES (3, '')")  # Delta makes it NULL
    assert len(subscriber.catch_up()) == 3
    table.run("UPDATE {t} SET s = 'y' WHERE id = 1", "DELETE FROM {t} WHERE id = 2")
    assert [change[0] for change in subscriber.catch_up()] == ["U", "D"]


@part_of_make_faults
def test_values_at_the_edges(published: PublishingLake) -> None:
    table = published.table(
        "edges", "id INT, f DOUBLE, t TIMESTAMP, n DECIMAL(38,10), a ARRAY<DOUBLE>"
    )
    subscriber = table.follow(by_spark=True)
    table.run(
        "INSERT INTO {t} VALUES "
        "(1, 0.0, TIMESTAMP '0001-01-01 00:00:00', 1.5, array(0.0D)),"
        "(2, double('NaN'), TIMESTAMP '9999-12-31 23:59:59.999999', -0.0000000001, NULL),"
        "(3, double('Infinity'), TIMESTAMP '1677-09-21 00:12:43.145224', NULL, array(NULL))"
    )
    assert len(subscriber.catch_up()) == 3
    table.run("UPDATE {t} SET f = -0.0D WHERE id = 1")
    assert subscriber.catch_up() == ["U 1,-0,0001-01-01 00:00:00+00,1.5000000000,{0}"]
    table.run("UPDATE {t} SET a = array(-0.0D) WHERE id = 1")
    assert len(subscriber.catch_up()) == 1
    table.run("UPDATE {t} SET f = f, n = n, t = t, a = a")
    assert subscriber.catch_up() == []


def test_generated_columns(published: PublishingLake) -> None:
    table = published.table("generated", "id INT, twice INT GENERATED ALWAYS AS (id * 2)")
    subscriber = table.follow(columns=("id",))
    table.run("INSERT INTO {t} (id) VALUES (1), (2)")
    assert sorted(subscriber.catch_up()) == ["I 1", "I 2"]
    published.sql("ALTER PUBLICATION p_generated SET (publish_generated_columns = stored)")
    table.run("INSERT INTO {t} (id) VALUES (3)")
    subscriber.version = subscriber.newest()
    assert subscriber.range(subscriber.version - 1, subscriber.version) == ["I 3,6"]


@part_of_make_faults
def test_replaced_by_other_columns(published: PublishingLake) -> None:
    table = published.table("replaced", "id INT, v STRING, w INT")
    table.run("INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b', 2)")
    subscriber = table.follow()
    table.run(
        "CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM "
        "VALUES (1L, 'a', 'one'), (3L, 'c', 'three') AS s(id, v, x)"
    )
    assert subscriber.catch_up() == ["D 2,,", "U 1,a,one", "I 3,c,three"]
    table.run(
        "CREATE OR REPLACE TABLE {t} USING delta AS SELECT * FROM VALUES ('1', 'a') AS s(id, v)"
    )
    with pytest.raises(NotInPrerequisiteState, match='column "id" had another type'):
        subscriber.catch_up()
    other = published.table("unkeyed", "id INT, v STRING")
    subscriber = other.follow()
    other.run("CREATE OR REPLACE TABLE {t} USING delta AS SELECT 'a' AS v")
    with pytest.raises(NotInPrerequisiteState, match='no longer has the column "id" of its key'):
        subscriber.catch_up()


def test_unpublished_tables_are_left_alone(published: PublishingLake) -> None:
    """Whatever kind they are, they do not stop a stream."""
    table = published.table("plain", "id INT")
    strange = published.table("strange", "id INT, s STRUCT<a: INT>", key=None)
    subscriber = table.follow()
    strange.run("INSERT INTO {t} VALUES (1, struct(1))")
    table.run("INSERT INTO {t} VALUES (1)")
    assert subscriber.catch_up() == ["I 1"]
    published.sql("ALTER PUBLICATION p_plain ADD TABLE strange")
    strange.run("INSERT INTO {t} VALUES (2, struct(2))")
    with pytest.raises(FeatureNotSupported, match='cannot publish changes of table "strange"'):
        subscriber.catch_up()
