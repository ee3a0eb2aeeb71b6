"""Stock PostgreSQL 14 to 18 subscribe to Delta tables and follow them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fix_postgres import Database
from penstock.embedded import VERSIONS, wait_until
from publishing.lake_node import LakeNode

_VERSIONS = VERSIONS if "PENSTOCK_FAULT_CYCLES" in os.environ else (14, 16, 18)
"""All in ``make faults``. Between these, subscribers learn to filter and to stream in parallel."""

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
        wait_until(
            lambda query=query, wanted=wanted: Counter(database.rows(query)) == wanted,  # type: ignore[misc]
            f"{table} like the lake's {wanted}: {database.rows(query)}",
        )


@pytest.fixture
def subscribers(subscriber: Callable[..., Database]) -> dict[int, Database]:
    """A database on each version that there is; what the lake writes, all of them follow."""
    found = {}
    for version in _VERSIONS:
        with contextlib.suppress(pytest.skip.Exception):
            found[version] = subscriber(version)
    return found


def test_every_version_follows_the_lake(lake: LakeNode, subscribers: dict[int, Database]) -> None:
    runs: list[Callable[[str], object]] = [lake.execute]
    runs += [database.execute for database in subscribers.values()]
    for execute in runs:
        execute("CREATE SCHEMA every")
        for table in (_TABLE, _OTHER):
            execute(table.format("every"))
    lake.execute(
        "INSERT INTO every.items VALUES "
        "(1, 'one', 1.5, '2020-01-01 10:00:00.25', '2020-01-01 12:00:00+02', '1999-12-31', true,"
        " 0.1, NULL), (2, 'tab\tand \\ back', -0.01, NULL, NULL, NULL, false, 1e300, NULL),"
        " (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "INSERT INTO every.pairs VALUES (1, 'a', 1), (1, 'b', 2), (2, 'a', 3)",
        "CREATE PUBLICATION every FOR TABLE every.items",
        "CREATE PUBLICATION each FOR TABLE every.pairs",
        "CREATE PUBLICATION whole FOR TABLES IN SCHEMA every",
    )
    for version, database in subscribers.items():
        options = "streaming = on" if version < 16 else "streaming = parallel, binary = true"
        publications = "every, each" if version < 17 else "whole"
        lake.begin_to_subscribe(database, f"s{version}", publications, options)
    for version, database in subscribers.items():
        lake.copied(database, f"s{version}")
    same(lake, subscribers, "every", "items", "pairs")
    lake.execute(
        "INSERT INTO every.items (id, name) VALUES (4, 'four'), (5, 'five')",
        "UPDATE every.items SET price = id * 2, name = 'x' WHERE id IN (1, 4)",
        "DELETE FROM every.items WHERE id = 2",
        "UPDATE every.items SET id = 50 WHERE id = 5",
        "UPDATE every.pairs SET b = 'z', v = 9 WHERE v = 3",
    )
    same(lake, subscribers, "every", "items", "pairs")
    for database in subscribers.values():
        database.execute("INSERT INTO every.pairs VALUES (0, 'not the lake''s', 0)")
    lake.execute("TRUNCATE every.pairs", "INSERT INTO every.pairs VALUES (7, 'n', 7)")
    same(lake, subscribers, "every", "pairs")
    for version, database in subscribers.items():
        database.execute(f"DROP SUBSCRIPTION s{version}")
    assert lake.rows("SELECT slot_name FROM pg_replication_slots") == []


def same(lake: LakeNode, subscribers: dict[int, Database], schema: str, *tables: str) -> None:
    for database in subscribers.values():
        equal(lake, database, schema, *tables)


def test_filters_lists_and_partitions_on_every_version(
    lake: LakeNode, subscribers: dict[int, Database]
) -> None:
    filtered = "parts.filtered (id integer PRIMARY KEY, region text, note text)"
    parted = "parts.parted (id integer PRIMARY KEY, v text)"
    for database in subscribers.values():
        database.execute(f"CREATE SCHEMA parts; CREATE TABLE {filtered}; CREATE TABLE {parted}")
    lake.execute(
        "CREATE SCHEMA parts",
        f"CREATE TABLE {filtered}",
        f"CREATE TABLE {parted} PARTITION BY RANGE (id)",
        "CREATE TABLE parts.low PARTITION OF parts.parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts.high PARTITION OF parts.parted FOR VALUES FROM (10) TO (100)",
        "INSERT INTO parts.filtered VALUES (5, 'a', 'x'), (15, 'b', 'y'), (25, 'c', 'z')",
        "INSERT INTO parts.parted VALUES (1, 'one'), (11, 'eleven')",
        "CREATE PUBLICATION parts FOR TABLE parts.filtered (id, region) WHERE (id > 10),"
        " parts.parted WITH (publish_via_partition_root = true)",
    )
    for version, database in subscribers.items():
        options = "binary = true" if version > 15 else ""
        lake.begin_to_subscribe(database, f"p{version}", "parts", options)
    for version, database in subscribers.items():
        lake.copied(database, f"p{version}")
        copied: list[tuple[Any, ...]] = [(15, "b", None), (25, "c", None)]
        if version < 15:  # knows of neither filters nor lists when it copies
            copied = [(5, "a", "x"), (15, "b", "y"), (25, "c", "z")]
        assert database.rows("SELECT * FROM parts.filtered ORDER BY id") == copied
    lake.execute(
        "INSERT INTO parts.filtered VALUES (6, 'd', 'n'), (30, 'e', 'n')",
        "UPDATE parts.filtered SET region = 'B', note = 'n' WHERE id = 15",
        "UPDATE parts.filtered SET id = 3 WHERE id = 25",  # leaves the filter
        "UPDATE parts.filtered SET id = 50 WHERE id = 5",  # comes into it
        "INSERT INTO parts.parted VALUES (2, 'two'), (12, 'twelve')",
        "UPDATE parts.parted SET v = upper(v) WHERE id IN (1, 11)",
        "DELETE FROM parts.parted WHERE id = 2",
    )
    for version, database in subscribers.items():
        lake.caught_up(f"p{version}")
        followed: list[tuple[Any, ...]] = [(15, "B", None), (30, "e", None), (50, "a", None)]
        if version < 15:
            followed = [(5, "a", "x"), (15, "B", "y"), (30, "e", None), (50, "a", None)]
        assert database.rows("SELECT * FROM parts.filtered ORDER BY id") == followed
        equal(lake, database, "parts", "parted")
        database.execute(f"DROP SUBSCRIPTION p{version}")


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
