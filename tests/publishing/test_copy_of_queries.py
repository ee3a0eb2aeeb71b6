"""COPY (query) TO STDOUT beside a server: the bytes of every query that SELECT takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_TABLES = (
    "CREATE TYPE copied_mood AS ENUM ('sad', 'glad')",
    "CREATE TABLE copied (id int PRIMARY KEY, name text, price numeric(8,2), tags text[],"
    " mood copied_mood, added date, at timestamptz, twice int GENERATED ALWAYS AS (id * 2) STORED)",
    r"INSERT INTO copied VALUES (1, E'a\tb\\c\nd', 3.5, '{a,NULL}', 'glad', '2024-02-29',"
    " '2024-02-29 10:00+00'), (2, 'Ü', NULL, NULL, NULL, NULL, NULL), (3, '', 0, '{}', 'sad',"
    " '1970-01-01', '1970-01-01+00')",
    "CREATE TABLE pieces (good int, place text)",
    "INSERT INTO pieces VALUES (1, 'north'), (1, NULL), (3, 'south')",
)
_QUERIES = [
    "SELECT * FROM copied ORDER BY id DESC",
    "SELECT * FROM (SELECT id, name, twice FROM copied) AS s ORDER BY id",
    "SELECT c.id, p.place, c.tags FROM copied c JOIN pieces p ON c.id = p.good ORDER BY 1, 2",
    "SELECT id AS key, upper(name) FROM copied AS c WHERE c.id < 3 ORDER BY key",
    "SELECT id FROM copied ORDER BY id LIMIT 1 OFFSET 1",
    "SELECT count(*), max(name), sum(price) FROM copied",
    "SELECT mood, count(*) FROM copied GROUP BY mood ORDER BY mood",
    "SELECT id FROM copied UNION SELECT good FROM pieces ORDER BY 1",
    "WITH some AS (SELECT id FROM copied WHERE id > 1) SELECT * FROM some ORDER BY id",
    "VALUES (1, 'a'), (2, NULL)",
    "TABLE pieces ORDER BY 1, 2",
    "SELECT FROM copied ORDER BY id",
    "SELECT * FROM copied WHERE false ORDER BY id",
    "SELECT nspname FROM pg_namespace WHERE nspname = 'public'",
    "SELECT 1 / (id - 2) FROM copied ORDER BY id",
    "SELECT nowhere FROM copied c",
    "SELECT id FROM nowhere n ORDER BY id",
]


def _copied(connection: psycopg.Connection[Any], statement: str) -> tuple[bytes, str]:
    """What was sent, and the error's SQLSTATE, if any."""
    cursor, sent = connection.cursor(), b""
    try:
        with cursor.copy(statement) as copy:
            sent = b"".join(bytes(data) for data in copy)
    except psycopg.Error as error:
        return b"", error.sqlstate or ""
    return sent, ""


@pytest.mark.parametrize("form", ["text", "binary"])
def test_queries_are_copied_as_by_a_server(
    both: Callable[..., tuple[Any, Any]], lake: LakeNode, form: str
) -> None:
    setup = () if lake.rows("SELECT 1 FROM pg_class WHERE relname = 'copied'") else _TABLES
    ours, server = both(*setup)
    for statement in () if setup else _TABLES:
        server.execute(statement)
    wrong = []
    for query in _QUERIES:
        statement = f"COPY ({query}) TO STDOUT (FORMAT {form})"
        expected, found = _copied(server, statement), _copied(ours, statement)
        if found != expected:
            wrong.append(f"{query}\n    {expected}\n    {found}")
    assert not wrong, "\n".join(wrong)


def test_rights_are_those_of_select(both: Callable[..., tuple[Any, Any]], lake: LakeNode) -> None:
    ours, server = both(
        "CREATE TABLE open_to_all (id int)",
        "CREATE TABLE closed (id int)",
        "GRANT SELECT ON open_to_all TO PUBLIC",
        f"CREATE ROLE reads_little LOGIN PASSWORD '{PASSWORD}'",
    )
    server.execute("SET ROLE reads_little")
    queries = (
        "SELECT * FROM open_to_all o ORDER BY id",
        "SELECT o.id FROM open_to_all o JOIN closed c USING (id)",
        "SELECT (SELECT max(id) FROM closed)",
    )
    try:
        with lake.connect("reads_little") as reader:
            for query in queries:
                statement = f"COPY ({query}) TO STDOUT"
                assert _copied(reader, statement) == _copied(server, statement), query
    finally:
        server.execute("RESET ROLE")
        for session in (ours, server):
            session.execute("DROP TABLE open_to_all, closed")
            session.execute("DROP ROLE reads_little")


def test_a_copy_in_a_block_sees_its_rows(both: Callable[..., tuple[Any, Any]]) -> None:
    copies = []
    for session in both("CREATE TABLE copied_in_block (id int)"):
        session.execute("BEGIN")
        session.execute("INSERT INTO copied_in_block VALUES (2), (1)")
        copies.append(
            _copied(session, "COPY (SELECT id FROM copied_in_block ORDER BY id) TO STDOUT")
        )
        session.execute("ROLLBACK")
    assert copies[0] == copies[1] == (b"1\n2\n", "")
