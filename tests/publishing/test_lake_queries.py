"""SELECT on tables of the lake beside a server: what is not refused gives the same rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from penstock.sql.grammar import libpg_query
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_TABLES = (
    "CREATE TABLE goods (id int PRIMARY KEY, name text, price numeric(8,2), sold bigint,"
    " ok boolean, added date, at timestamp)",
    "CREATE TABLE stock (good int, place text, pieces int)",
    "INSERT INTO goods VALUES (1, 'ink', 3.50, 7, true, '2024-02-29', '2024-02-29 10:00:00.5'),"
    " (2, 'Pen', 12.00, NULL, false, '2023-12-31', '2023-12-31 23:59:59'),"
    " (3, 'paper', NULL, -3, NULL, NULL, NULL), (4, '', 0.05, 0, true, '1970-01-01', '1970-01-01')",
    "CREATE TABLE lists (id int, a int[], p numeric[], t text[])",
    "INSERT INTO lists VALUES (1, '{1,2}', '{1.5}', '{b}'), (2, '{1}', '{-1,10}', '{a,z}'),"
    " (3, '{1,NULL}', '{-1}', '{a,NULL}'), (4, NULL, NULL, NULL), (5, '{}', '{}', '{}'),"
    " (6, '{NULL}', '{9}', '{\"\"}'), (7, '{-1,5,6}', '{NULL,1}', '{a}')",
    "INSERT INTO stock VALUES (1, 'north', 5), (1, 'south', NULL), (2, 'north', 0), (9, 'x_y', 3)",
)
_QUERIES = [
    "SELECT * FROM goods ORDER BY id",
    "SELECT id, name FROM goods WHERE name <> 'ink' ORDER BY name",
    "SELECT id FROM goods ORDER BY sold",
    "SELECT id FROM goods ORDER BY sold DESC",
    "SELECT id FROM goods ORDER BY sold DESC NULLS LAST LIMIT 2 OFFSET 1",
    "SELECT count(*), count(sold), sum(sold), min(name), max(price) FROM goods",
    "SELECT ok, count(*) FROM goods GROUP BY ok HAVING count(*) > 0 ORDER BY ok",
    "SELECT g.name, s.place, s.pieces FROM goods g JOIN stock s ON g.id = s.good ORDER BY 1, 2",
    "SELECT g.id, s.pieces FROM goods g LEFT JOIN stock s ON s.good = g.id ORDER BY 1, 2",
    "SELECT g.id, s.good FROM goods g FULL JOIN stock s ON s.good = g.id ORDER BY 1, 2, s.place",
    "SELECT count(*) FROM goods g JOIN stock s JOIN stock z ON s.good = z.good ON g.id = z.good",
    "SELECT count(*) FROM goods CROSS JOIN (stock a JOIN stock b ON a.place = b.place)",
    "SELECT a, c FROM stock AS x(c, a, b) ORDER BY a, c",
    "SELECT id FROM goods WHERE id IN (SELECT good FROM stock) ORDER BY id",
    "SELECT id FROM goods WHERE NOT EXISTS (SELECT 1 FROM stock WHERE good = id) ORDER BY id",
    "SELECT id FROM goods WHERE id NOT IN (SELECT good FROM stock) ORDER BY id",
    "WITH big AS (SELECT * FROM goods WHERE id > 1) SELECT name FROM big ORDER BY id",
    "SELECT DISTINCT place FROM stock ORDER BY place",
    "SELECT DISTINCT ON (good) good, place, pieces / 3.0 FROM stock ORDER BY good, place DESC",
    "SELECT id, round(price / sold, 2) FROM goods WHERE sold <> 0 AND price / sold > 0.1",
    "SELECT avg(price), sum(price) / count(price) FROM goods",
    "SELECT current_user = session_user, now() = current_timestamp, now() > '2020-01-01'"
    " FROM goods WHERE current_date > '2020-01-01'",
    "SELECT id FROM goods UNION SELECT good FROM stock ORDER BY 1",
    "SELECT id FROM goods EXCEPT SELECT good FROM stock ORDER BY 1",
    "SELECT id FROM goods INTERSECT SELECT good FROM stock ORDER BY 1",
    "SELECT name FROM goods WHERE name LIKE 'p%' OR name ILIKE 'P%' ORDER BY id",
    r"SELECT place FROM stock WHERE place LIKE 'x\_y'",
    "SELECT place FROM stock WHERE place ~ '^[nx]' ORDER BY 1",
    "SELECT id FROM goods WHERE sold IS DISTINCT FROM 7 ORDER BY id",
    "SELECT id FROM goods WHERE id IS NOT NULL AND ok IS NOT FALSE ORDER BY id",
    "SELECT coalesce(sold, 0), nullif(id, 2), greatest(id, sold), least(id, 2) FROM goods"
    " ORDER BY id",
    "SELECT CASE WHEN sold > 0 THEN 'some' WHEN sold = 0 THEN 'none' END FROM goods ORDER BY id",
    "SELECT upper(name), lower(name), length(name), name || '!' FROM goods ORDER BY id",
    "SELECT 'n' || id, sold || name, (-5)::smallint || '!' FROM goods ORDER BY id",
    "SELECT substring(name from 2 for 2), left(name, 2), right(name, 2) FROM goods ORDER BY id",
    "SELECT trim(both 'i' from name), replace(name, 'p', 'q'), position('n' in name) FROM goods"
    " ORDER BY id",
    "SELECT abs(sold), sold % 2, -sold, sold + id, sold * 2, id - 5 FROM goods ORDER BY id",
    "SELECT price * 2, price + 1, round(price), floor(price), ceil(price) FROM goods ORDER BY id",
    "SELECT extract(year from added), extract(month from added) FROM goods ORDER BY id",
    "SELECT added + 1, added - 1 FROM goods ORDER BY id",
    "SELECT cast(id AS text), id::text, '7'::int, sold::int FROM goods ORDER BY id",
    "SELECT id, row_number() OVER (ORDER BY id DESC) FROM goods ORDER BY id",
    "SELECT id, sum(id) OVER (PARTITION BY ok ORDER BY id) FROM goods ORDER BY id",
    "SELECT sum(pieces) FILTER (WHERE place = 'north') FROM stock",
    "SELECT string_agg(place, ',' ORDER BY place) FROM stock",
    "SELECT bool_and(ok), bool_or(ok) FROM goods",
    "SELECT n FROM generate_series(1, 4) AS s(n) JOIN goods ON id = n WHERE ok ORDER BY n",
    "SELECT id FROM goods WHERE added BETWEEN '2023-01-01' AND '2024-12-31' ORDER BY id",
    "SELECT id FROM goods WHERE price > 3 AND NOT ok",
    "SELECT a FROM lists ORDER BY a",
    "SELECT a FROM lists ORDER BY a DESC",
    "SELECT p FROM lists ORDER BY p",
    "SELECT t FROM lists ORDER BY t DESC",
    "SELECT id FROM goods WHERE name = ANY (ARRAY['ink', 'paper']) ORDER BY id",
]


def test_queries_give_what_a_server_gives(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both(*_TABLES)
    wrong = []
    for query in _QUERIES:
        expected = server.execute(query)
        names, rows = [column.name for column in expected.description], expected.fetchall()
        try:
            found = ours.execute(query)
            if (found_rows := found.fetchall()) != rows:
                wrong.append(f"{query}\n    {rows}\n    {found_rows}")
            elif [column.name for column in found.description] != names:
                wrong.append(f"{query}\n    {names}\n    {[c.name for c in found.description]}")
        except psycopg.Error as error:
            wrong.append(f"{query}\n    {error}")
    assert not wrong, "\n".join(wrong)


def test_a_snapshot_has_the_columns_of_its_time(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE grows (id int)", "INSERT INTO grows VALUES (1)")
    with lake.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute("SELECT * FROM grows").fetchall() == [(1,)]
        lake.execute("ALTER TABLE grows ADD COLUMN more text", "INSERT INTO grows VALUES (2, 'x')")
        assert connection.execute("SELECT * FROM grows").fetchall() == [(1,)]
        connection.execute("COMMIT")
        assert connection.execute("SELECT * FROM grows ORDER BY 1").fetchall() == [
            (1, None),
            (2, "x"),
        ]


_WITH_PARAMETERS: list[tuple[str, tuple[Any, ...]]] = [
    ("SELECT id, %s FROM wares WHERE name = %s ORDER BY id LIMIT %s", (Decimal("1.5"), "ink", 3)),
    ("SELECT id FROM wares ORDER BY %s, id OFFSET %s", ("x", None)),
    ("SELECT added, count(*) FROM wares WHERE added < %s GROUP BY added", (date(2024, 1, 1),)),
    ("INSERT INTO wares (id, name, price) VALUES (%s, %s, %s)", (5, "%s it's $1", None)),
    ("INSERT INTO wares (id, added) SELECT %s, %s", (6, "2024-02-29")),
    ("UPDATE wares SET sold = %s, name = name || %s WHERE id = %s", (9, "!", 5)),
    ("SELECT * FROM wares ORDER BY id", ()),
    ("DELETE FROM wares WHERE id = ANY (%s)", ([5, 6],)),
    ("SELECT relkind FROM pg_class WHERE relname = %s", ("wares",)),
]


def test_a_statement_is_parsed_once(
    both: Callable[..., tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Parse to Execute, and when it is executed again, with parameters as on a server."""
    connections = both(
        "CREATE TABLE wares (id int PRIMARY KEY, name text, price numeric(8,2), sold int,"
        " added date)",
        "INSERT INTO wares VALUES (1, 'ink', 3.50, 7, '2023-12-31'), (2, 'pen', NULL, 1, NULL)",
    )
    parsed: list[str] = []
    library = libpg_query._library

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

        def pg_query_parse(self, text: bytes) -> Any:
            parsed.append(text.decode())
            return library.pg_query_parse(text)

    ours, server = (psycopg.Cursor[Any](connection) for connection in connections)
    monkeypatch.setattr(libpg_query, "_library", Counted())
    for query, values in _WITH_PARAMETERS:
        parsed.clear()
        for cursor in (ours, server):
            cursor.execute(query, values, prepare=True)
        assert ours.statusmessage == server.statusmessage
        if server.description is not None:
            assert [c.name for c in ours.description or ()] == [c.name for c in server.description]
            assert ours.fetchall() == server.fetchall()
            ours.execute(query, values, prepare=True)
        assert len(parsed) == 1, parsed


@pytest.mark.parametrize("cursor", [psycopg.ClientCursor, psycopg.Cursor])
def test_long_values(lake: LakeNode, cursor: type[psycopg.Cursor[Any]]) -> None:
    """As literals and as parameters: 1,100,000 characters, which the parser's JSON cannot print in
    one piece."""
    long = "x'" * 550_000
    name = f"long_{cursor.__name__.lower()}"
    lake.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    with lake.connect() as connection, cursor(connection) as asks:
        asks.execute(f"INSERT INTO {name} VALUES (1, %s), (2, 'short')", [long])
        asks.execute(f"UPDATE {name} SET v = %s WHERE id = 2", [long + "2"])
        rows = asks.execute(f"SELECT v FROM {name} ORDER BY id").fetchall()
        assert rows == [(long,), (long + "2",)]
        assert asks.execute(f"DELETE FROM {name} WHERE v = %s", [long]).rowcount == 1
