"""A binary stream goes on as text when it tells of a type that is read as text only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x');"
    "CREATE PUBLICATION p FOR ALL TABLES"
)
_MOOD = "CREATE TYPE mood AS ENUM ('sad', 'happy')"
_MADE = (
    f"{_MOOD}; CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
    "CREATE TYPE pair AS (x int, y mood); CREATE TYPE span AS RANGE (subtype = int);"
    "CREATE TABLE e (id int PRIMARY KEY, m mood, d positive, c pair, cs pair[], s span);"
    "INSERT INTO e VALUES (1, 'sad', 5, '(1,sad)', ARRAY['(2,)', NULL]::pair[], '[1,5)')"
)
_REFRESH = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
_HAPPY = "INSERT INTO a SELECT g, 'happy' FROM generate_series(10, 20) g"
_CASES = [
    pytest.param("", [_MADE, "INSERT INTO e VALUES (2)", _HAPPY], id="not in the subscription"),
    pytest.param(
        "",
        [_MOOD, "ALTER TABLE a ADD m mood; INSERT INTO a VALUES (2, 'y', 'sad')"],
        id="added column",
    ),
    in_make_faults(
        "schema_change = follow",
        [
            _MOOD,
            "UPDATE a SET v = 'happy'",
            "ALTER TABLE a ALTER v TYPE mood USING v::mood; INSERT INTO a VALUES (3, 'sad')",
        ],
        id="another type",
    ),
    in_make_faults(
        "schema_change = follow",
        [
            f"{_MOOD}; ALTER TABLE a ADD m mood; INSERT INTO a VALUES (2, 'y', 'sad')",
            "ALTER TYPE mood ADD VALUE 'late'",
            "INSERT INTO a VALUES (3, 'y', 'late')",
            "ALTER TABLE a DROP m; DROP TYPE mood",
            f"{_MOOD}; ALTER TABLE a ADD m mood; INSERT INTO a VALUES (4, 'y', 'happy')",
        ],
        id="a type made again",
    ),
    in_make_faults(
        "streaming = on",
        [
            f"{_MOOD}; ALTER TABLE a ADD m mood",
            "INSERT INTO a SELECT g, repeat(md5(g::text), 20), 'sad'"
            " FROM generate_series(10, 9000) g",
        ],
        id="streamed",
    ),
    in_make_faults(
        "out_of_range = text",
        ["ALTER TABLE a ADD d date; INSERT INTO a VALUES (2, 'y', 'infinity')"],
        id="values that their type here does not hold",
    ),
]


@part_of_make_faults
@pytest.mark.parametrize(("options", "changes"), _CASES)
def test_types_that_come_while_it_streams(
    local_node: Callable[..., LocalNode], database: Database, options: str, changes: list[str]
) -> None:
    node = local_node()
    database.execute(_SETUP)
    node.subscribe("s", database, "p", ", ".join(filter(None, ("binary = true", options))))
    node.caught_up("s", database)
    database.execute("INSERT INTO a VALUES (5, 'binary')")
    node.caught_up("s", database)
    with database.connect() as connection:
        for change in changes:
            for statement in change.split("; "):
                connection.execute(statement)
            node.caught_up("s", database)
    assert _rows(node, "a") == _published(database, "a")
    status = node.status("s")
    assert (status.error, status.error_count) == (None, 0)


def test_a_table_of_such_types_joins_and_is_copied_again(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = local_node()
    database.execute(_SETUP)
    node.subscribe("s", database, "p", "binary = true")
    node.caught_up("s", database)
    database.execute(_MADE)
    node.node.sql(_REFRESH)
    database.execute("INSERT INTO e (id, m) VALUES (2, 'happy')")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE e")
    database.execute("INSERT INTO e (id, d, c) VALUES (3, 7, '(,happy)')")
    node.caught_up("s", database)
    assert _rows(node, "e") == _published(database, "e")
    status = node.status("s")
    assert (status.error, status.error_count) == (None, 0)


def _rows(node: LocalNode, table: str) -> list[str]:
    columns = [c for c in node.node.read(table).schema.names if c != "id"]
    rows = node.node.read(table).select("id", *sorted(columns)).collect()
    return sorted(str(tuple(None if v is None else str(v) for v in row)) for row in rows)


def _published(database: Database, table: str) -> list[str]:
    (names,) = database.rows(
        'SELECT array_agg(attname ORDER BY attname::text COLLATE "C") FROM pg_attribute'
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
        " AND attname <> 'id'"
    )
    texts = [f"CASE WHEN num_nulls({n}) = 0 THEN format('%s', {n}) END" for n in names[0]]
    return sorted(map(str, database.rows(f"SELECT id::text, {', '.join(texts)} FROM {table}")))
