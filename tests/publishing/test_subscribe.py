"""Stock PostgreSQL 14 to 18 subscribe to Delta tables and follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.embedded import VERSIONS
from publishing.lake_node import LakeNode, eventually

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = (
    "CREATE TABLE {}.items (id integer PRIMARY KEY, name text, price numeric(10,2), "
    "made timestamp, at timestamptz, day date, ok boolean, ratio double precision, raw bytea)"
)
_OTHER = "CREATE TABLE {}.pairs (a bigint, b text, v smallint, PRIMARY KEY (a, b))"


def equal(lake: LakeNode, database: Database, schema: str, *tables: str) -> None:
    """Wait until the tables of the database are the lake's."""
    for table in tables:
        query = f"SELECT * FROM {schema}.{table}"
        wanted = Counter(lake.rows(query))
        eventually(
            lambda query=query, wanted=wanted: Counter(database.rows(query)) == wanted,  # type: ignore[misc]
            f"{table} like the lake's {wanted}: {database.rows(query)}",
        )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_follows_the_lake(
    lake: LakeNode, subscriber: Callable[..., Database], version: int
) -> None:
    schema = f"v{version}"
    database = subscriber(version)
    database.execute(f"CREATE SCHEMA {schema}")
    lake.execute(f"CREATE SCHEMA {schema}")
    for table in (_TABLE, _OTHER):
        database.execute(table.format(schema))
        lake.execute(table.format(schema))
    lake.execute(
        f"INSERT INTO {schema}.items VALUES "
        "(1, 'one', 1.5, '2020-01-01 10:00:00.25', '2020-01-01 12:00:00+02', '1999-12-31', true,"
        " 0.1, NULL), (2, 'tab\tand \\ back', -0.01, NULL, NULL, NULL, false, 1e300, NULL),"
        " (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        f"INSERT INTO {schema}.pairs VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3)",
        f"CREATE PUBLICATION p{version} FOR TABLE {schema}.items",
        f"CREATE PUBLICATION q{version} FOR TABLES IN SCHEMA {schema}"
        if version >= 15
        else f"CREATE PUBLICATION q{version} FOR TABLE {schema}.pairs",
    )
    options = ["streaming = parallel, binary = true"] if version >= 16 else ["streaming = on"]
    lake.subscribe(database, f"s{version}", f"p{version}, q{version}", *options)
    equal(lake, database, schema, "items", "pairs")
    lake.execute(
        f"INSERT INTO {schema}.items (id, name) VALUES (4, 'four'), (5, 'five')",
        f"UPDATE {schema}.items SET price = id * 2, name = 'x' WHERE id IN (1, 4)",
        f"DELETE FROM {schema}.items WHERE id = 2",
        f"UPDATE {schema}.items SET id = 50 WHERE id = 5",
        f"UPDATE {schema}.pairs SET b = 'z', v = 9 WHERE v = 3",
    )
    equal(lake, database, schema, "items", "pairs")
    database.execute(f"INSERT INTO {schema}.pairs VALUES (0, 'not the lake''s', 0)")
    lake.execute(f"TRUNCATE {schema}.pairs", f"INSERT INTO {schema}.pairs VALUES (7, 'n', 7)")
    equal(lake, database, schema, "pairs")
    database.execute(f"DROP SUBSCRIPTION s{version}")
    assert lake.rows("SELECT slot_name FROM pg_replication_slots") == []


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_lists_and_partitions_on_every_version(
    lake: LakeNode, subscriber: Callable[..., Database], version: int
) -> None:
    schema = f"f{version}"
    database = subscriber(version)
    filtered = f"{schema}.filtered (id integer PRIMARY KEY, region text, note text)"
    parted = f"{schema}.parted (id integer PRIMARY KEY, v text)"
    database.execute(f"CREATE SCHEMA {schema}")
    database.execute(f"CREATE TABLE {filtered}; CREATE TABLE {parted}")
    lake.execute(
        f"CREATE SCHEMA {schema}",
        f"CREATE TABLE {filtered}",
        f"CREATE TABLE {parted} PARTITION BY RANGE (id)",
        f"CREATE TABLE {schema}.low PARTITION OF {schema}.parted FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {schema}.high PARTITION OF {schema}.parted FOR VALUES FROM (10) TO (100)",
        f"INSERT INTO {schema}.filtered VALUES (5, 'a', 'x'), (15, 'b', 'y'), (25, 'c', 'z')",
        f"INSERT INTO {schema}.parted VALUES (1, 'one'), (11, 'eleven')",
        f"CREATE PUBLICATION {schema} FOR TABLE {schema}.filtered (id, region) WHERE (id > 10),"
        f" {schema}.parted WITH (publish_via_partition_root = true)",
    )
    lake.subscribe(database, schema, schema, "binary = true" if version >= 16 else "")
    copied = [(15, "b", None), (25, "c", None)]
    if version < 15:  # knows of neither filters nor lists when it copies
        copied = [(5, "a", "x"), (15, "b", "y"), (25, "c", "z")]
    assert database.rows(f"SELECT * FROM {schema}.filtered ORDER BY id") == copied
    lake.execute(
        f"INSERT INTO {schema}.filtered VALUES (6, 'd', 'n'), (30, 'e', 'n')",
        f"UPDATE {schema}.filtered SET region = 'B', note = 'n' WHERE id = 15",
        f"UPDATE {schema}.filtered SET id = 3 WHERE id = 25",  # leaves the filter
        f"UPDATE {schema}.filtered SET id = 50 WHERE id = 5",  # comes into it
        f"INSERT INTO {schema}.parted VALUES (2, 'two'), (12, 'twelve')",
        f"UPDATE {schema}.parted SET v = upper(v) WHERE id IN (1, 11)",
        f"DELETE FROM {schema}.parted WHERE id = 2",
    )
    lake.caught_up(schema)
    followed = [(15, "B", None), (30, "e", None), (50, "a", None)]
    if version < 15:
        followed = [(5, "a", "x"), (15, "B", "y"), (30, "e", None), (50, "a", None)]
    assert database.rows(f"SELECT * FROM {schema}.filtered ORDER BY id") == followed
    equal(lake, database, schema, "parted")
    database.execute(f"DROP SUBSCRIPTION {schema}")


def test_two_subscriptions_and_refresh(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    first, second = subscriber(18), subscriber(17)
    lake.execute("CREATE SCHEMA two", "CREATE TABLE two.a (id integer PRIMARY KEY, v text)")
    lake.execute("INSERT INTO two.a VALUES (1, 'one')", "CREATE PUBLICATION two FOR TABLE two.a")
    for database in (first, second):
        database.execute(
            "CREATE SCHEMA two; CREATE TABLE two.a (id integer PRIMARY KEY, v text);"
            "CREATE TABLE two.b (id integer PRIMARY KEY)"
        )
        lake.subscribe(database, f"two_{database.name}", "two")
    lake.execute("INSERT INTO two.a VALUES (2, 'two')", "UPDATE two.a SET v = 'uno' WHERE id = 1")
    for database in (first, second):
        equal(lake, database, "two", "a")
    lake.execute(
        "CREATE TABLE two.b (id integer PRIMARY KEY)",
        "INSERT INTO two.b VALUES (1), (2)",
        "ALTER PUBLICATION two ADD TABLE two.b",
    )
    first.execute(f"ALTER SUBSCRIPTION two_{first.name} REFRESH PUBLICATION")
    lake.copied(first, f"two_{first.name}")
    lake.execute("DELETE FROM two.b WHERE id = 1", "INSERT INTO two.a VALUES (3, NULL)")
    for database in (first, second):
        equal(lake, database, "two", "a")
    equal(lake, first, "two", "b")
    assert second.rows("SELECT * FROM two.b") == []
