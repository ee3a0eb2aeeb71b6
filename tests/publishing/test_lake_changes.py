"""INSERT, UPDATE and DELETE on tables of the lake beside a server: the same rows afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_TABLES = (
    "CREATE TABLE c (id int PRIMARY KEY, s varchar(5), p numeric(8,2), n numeric, b bigint,"
    " f float8, ok boolean, d date, at timestamp, tz timestamptz, u uuid, x bytea, a int[],"
    " t text[])",
    "CREATE TABLE o (id int, note text)",
)
_CHANGES = (
    "INSERT INTO c VALUES (1, 'ink', 3.505, 1e30, 7, 'NaN', true, '2024-02-29',"
    " '2024-02-29 10:00:00.5', '2024-02-29 10:00:00+02', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11',"
    r" '\x00ff', '{1,NULL,3}', ARRAY['a b', NULL, 'c'])",
    "INSERT INTO c (id) VALUES (2), (3)",
    "INSERT INTO c (b, id, s) VALUES (-1, 4, 'abc  '), (DEFAULT, 5, NULL)",
    "INSERT INTO c (id, s, p) SELECT id + 10, upper(s), p * 2 FROM c WHERE id < 4",
    "INSERT INTO c (id, s, d) SELECT 20, 'x', date '2020-01-01' UNION SELECT 21, 'y', NULL",
    "INSERT INTO o SELECT n, repeat('é', 3) || n::text FROM generate_series(1, 5) AS g(n)",
    "INSERT INTO o TABLE o",
    "UPDATE c SET s = 'all', p = 1.005 WHERE id IN (2, 3)",
    "UPDATE c SET b = b + 1, f = 2.5, ok = NOT ok, n = '-Infinity', d = d + 1",
    "UPDATE c AS z SET s = left(z.s, -1), t = ARRAY['q'] WHERE z.s IS NOT NULL",
    "UPDATE c SET s = DEFAULT, at = NULL, x = '\\x61' WHERE id = 1",
    "UPDATE c SET s = (SELECT max(note) FROM o WHERE o.id = c.id) WHERE id < 4",
    "UPDATE c SET b = 9 WHERE EXISTS (SELECT FROM o WHERE o.id = c.id AND o.id > 1)",
    "DELETE FROM o WHERE id = 2 AND note LIKE '%2'",
    "DELETE FROM c WHERE id IN (SELECT id + 10 FROM o)",
    "DELETE FROM c WHERE d IS DISTINCT FROM NULL AND f = 2.5",
    "DELETE FROM o",
)
_TARGET = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM) (c|o)\b")
_REFUSED = (
    ("INSERT INTO c (id, s) VALUES (90, 'too long')", "22001"),
    ("INSERT INTO c (id, p) VALUES (90, 1234567.5)", "22003"),
    ("INSERT INTO c (id, b) SELECT 90, b * 9223372036854775807 FROM c WHERE b > 1", "22003"),
    ("UPDATE c SET b = 1 / (id - id)", "22012"),
    ("UPDATE c SET s = s || 'too long' WHERE s IS NOT NULL", "22001"),
    ("UPDATE c SET b = (SELECT id FROM c)", "21000"),
    ("DELETE FROM c WHERE 1 / (id - id) = 1", "22012"),
    ("INSERT INTO c (id) VALUES ('x')", "22P02"),
)


def test_changes_do_what_a_server_does(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both(*_TABLES)
    for change in _CHANGES:
        expected, found = server.execute(change).statusmessage, ours.execute(change).statusmessage
        assert (change, found) == (change, expected)
        _same_rows(ours, server, change, _target(change))
        if change.startswith("UPDATE c SET b = b + 1"):
            _nothing_is_done(ours, server)
    for table in ("c", "o"):
        _same_rows(ours, server, "all of them", table)


def _target(change: str) -> str:
    found = _TARGET.match(change)
    assert found is not None, change
    return found[1]


def _same_rows(ours: Any, server: Any, change: str, table: str) -> None:
    query = f"SELECT * FROM {table} ORDER BY 1, 2"
    assert (change, _texts(ours, query)) == (change, _texts(server, query))


def _nothing_is_done(ours: Any, server: Any) -> None:
    before = _texts(ours, "SELECT * FROM c ORDER BY 1")
    for change, sqlstate in _REFUSED:
        for connection in (ours, server):
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(change)
            assert (change, refused.value.sqlstate) == (change, sqlstate)
    assert _texts(ours, "SELECT * FROM c ORDER BY 1") == before


def _texts(connection: Any, query: str) -> list[tuple[bytes | None, ...]]:
    result = connection.pgconn.exec_(query.encode())
    assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    width = range(result.nfields)
    return [tuple(result.get_value(r, n) for n in width) for r in range(result.ntuples)]
