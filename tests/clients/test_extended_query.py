"""The same messages of the extended query protocol to a server and to a node: the same answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from clients.conftest import Both
from clients.wire import Wire, query
from penstock.embedded import wait_until
from penstock.protocol import frontend_messages as m

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_BY_ID = "SELECT id, name FROM goods WHERE id = $1"


def _int4(number: int) -> bytes:
    return struct.pack("!i", number)


def _bound(*executions: m.FrontendMessage) -> list[m.FrontendMessage]:
    return [m.Bind("", "", (), (), ()), *executions]


CONVERSATIONS: dict[str, list[m.FrontendMessage]] = {
    "catalog, binary": query(
        "SELECT oid, typname, typlen FROM pg_type WHERE oid = $1",
        struct.pack("!I", 23),
        formats=[1],
        results=[1],
    ),
    "typed, mixed formats": query(
        "SELECT $1::text, $2 + 1", b"x", _int4(4), types=[0, 23], formats=[0, 1], results=[0, 1]
    ),
    "parameter of a column's type": query(_BY_ID, b"1"),
    "binary": query(_BY_ID, _int4(2), formats=[1], results=[1, 0]),
    "smaller than the column": query(
        _BY_ID, struct.pack("!h", 2), types=[21], formats=[1], results=[1]
    ),
    "all columns in binary": query(
        "SELECT * FROM goods WHERE id = $1", _int4(1), formats=[1], results=[1]
    ),
    "limit": query("SELECT id FROM goods ORDER BY id LIMIT $1 OFFSET $2", b"1", b"1"),
    "no limit": query("SELECT id FROM goods ORDER BY id LIMIT $1", None),
    "any": query("SELECT id FROM goods WHERE id = ANY ($1) ORDER BY id", b"{1,3}"),
    "in": query(
        "SELECT id FROM goods WHERE id IN ($1,$2) AND name <> $3 ORDER BY id", b"1", b"2", b"x"
    ),
    "several types": query(
        "SELECT id FROM goods WHERE name LIKE $1 AND price > $2 AND added >= $3 AND ok = $4"
        " AND sold BETWEEN $5 AND $6 AND at < $7 ORDER BY id",
        *(b"%n%", b"1.5", b"2000-01-01", b"t", b"1", b"9", b"2030-01-01 00:00:00"),
    ),
    "null": query("SELECT id FROM goods WHERE id = $1", None),
    "text beside char(n)": query("SELECT id FROM goods WHERE code = $1", b"ab ", types=[25]),
    "char(n)": query("SELECT id FROM goods WHERE code = $1", b"ab ", types=[1042]),
    "varchar": query(
        "SELECT $1, id FROM goods WHERE name = $1 AND name LIKE $2", b"ink", b"i%", types=[1043] * 2
    ),
    "no text for a number": query("SELECT id FROM goods WHERE id = $1", b"1", types=[25]),
    "a delimiter": query("SELECT string_agg(name, $1 ORDER BY id) FROM goods", b"-", types=[1043]),
    "no delimiter": query("SELECT string_agg(name, $1 ORDER BY id) FROM goods", None),
    "a computed limit": query("SELECT id FROM goods ORDER BY id LIMIT $1 + 1", b"1"),
    "ordered by a subquery": query(
        "SELECT id, (SELECT max(o.id) FROM goods o WHERE o.id < g.id) FROM goods g ORDER BY 2, $1",
        b"1",
        types=[23],
    ),
    "without a table": query("SELECT upper($1), $2::int8, $3", b"a", b"5", b"z"),
    "portions": [
        *query("SELECT id FROM goods ORDER BY id", rows=2),
        *(m.Execute("", 1), m.Execute("", 5), m.Execute("", 0)),
    ],
    "as many as there are": [
        *query("SELECT id FROM goods ORDER BY id", rows=3),
        m.Execute("", 0),
    ],
    "portion of a catalog": [
        *query(
            "SELECT nspname FROM pg_namespace WHERE nspname IN ('public', 'pg_catalog') ORDER BY 1",
            rows=1,
        ),
        *(m.Execute("", 1), m.Execute("", 1)),
    ],
    "a portal ends with its transaction": [m.Execute("", 0)],
    "too many values": query(_BY_ID, b"1", b"2"),
    "too many formats": query(_BY_ID, b"1", results=[0, 1, 0]),
    "two statements": [m.Parse("", "SELECT 1; SELECT 2", ())],
    "syntax": [m.Parse("", "SELEC 1", ()), m.Parse("", "SELECT 1", ())],
    "no such table": query("SELECT * FROM nowhere WHERE id = $1", b"1"),
    "no number": query(_BY_ID, b"x"),
    "too short": query(_BY_ID, b"xxx", formats=[1]),
    "too long": query(_BY_ID, b"xxxxx", formats=[1]),
    "a command runs once": [
        m.Parse("", "SET extra_float_digits = 2", ()),
        *_bound(m.Execute("", 0), m.Execute("", 0)),
    ],
    "begin": [*query("BEGIN"), *query("SELECT id FROM goods ORDER BY id", rows=1)],
    "a portal of the block": [m.Execute("", 1)],
    "commit": [*query("COMMIT"), m.Execute("", 0)],
    "the same name": [m.Parse("a", "SELECT 1", ()), m.Parse("a", "SELECT 2", ())],
    "close": [
        m.Bind("p", "a", (), (), ()),
        m.Execute("p", 0),
        m.Close(m.STATEMENT, "a"),
        m.Close(m.PORTAL, "none"),
        m.Bind("p2", "a", (), (), ()),
    ],
    "deallocate": [
        m.Parse("b", "SELECT 1", ()),
        *query("DEALLOCATE b"),
        m.Bind("", "b", (), (), ()),
    ],
    "deallocate nothing": query("DEALLOCATE nothing"),
    "empty": query(""),
    "show": query("SHOW server_encoding", results=[1]),
    "arrays in binary": query(
        "SELECT '1 2'::int2vector, '3 4'::oidvector, ARRAY['a', 'b']::name[], '{1,2}'::oid[],"
        " 'x'::\"char\", true, 1.5::numeric, now() IS NULL, '{1,NULL}'::int4[]",
        results=[1],
    ),
    "failed block": [*query("BEGIN"), *query("SELECT nothing"), *query("SELECT 1")],
    "in the failed block": query("SELECT 1"),
    "rolled back": query("ROLLBACK"),
}


@pytest.fixture(scope="module")
def sessions(both: Both) -> Iterator[tuple[Wire, Wire]]:
    with Wire(both.server, "lake", "lake") as server, Wire(both.node, "lake", "lake") as node:
        yield server, node


def test_every_conversation_has_a_servers_answers(sessions: tuple[Wire, Wire]) -> None:
    server, node = sessions
    wrong = []
    for name, messages in CONVERSATIONS.items():
        theirs, ours = server.say(*messages), node.say(*messages)
        if theirs != ours:
            wrong.append(f"{name}\n    {theirs}\n    {ours}")
    assert not wrong, "\n".join(wrong)


def test_a_table_that_is_made_again(sessions: tuple[Wire, Wire]) -> None:
    """A prepared statement has the columns that it was described with, or is refused."""
    found = []
    for wire in sessions:
        wire.ask("CREATE TABLE swapped (a int, b int)")
        said = [wire.say(m.Parse("all", "SELECT * FROM swapped", ()))]
        wire.ask("DROP TABLE swapped")
        wire.ask("CREATE TABLE swapped (b int, a int)")
        wire.ask("INSERT INTO swapped VALUES (1, 2)")
        said.append(wire.say(m.Bind("", "all", (), (), ()), m.Execute("", 0))[-2:])
        wire.ask("DROP TABLE swapped")
        found.append(said)
    assert found[0] == found[1]


SEARCHED = """
CREATE SCHEMA "Of One"
CREATE TABLE "Of One".goods (n int)
INSERT INTO "Of One".goods VALUES (42)
SET search_path = "Of One", public
SHOW search_path
SELECT * FROM goods
INSERT INTO goods VALUES (43)
UPDATE goods SET n = n + 1 WHERE n = 43
SELECT g.n FROM "Of One".goods AS g ORDER BY n
CREATE TABLE made (id serial, a int)
INSERT INTO made (a) VALUES (1)
SELECT current_schema, current_schemas(false), 'made'::regclass::text
SELECT id, a FROM "Of One".made
COPY made TO STDOUT
TRUNCATE made
SELECT * FROM made
DROP TABLE made
SELECT id FROM public.goods ORDER BY id
SET search_path = public, "Of One"
SELECT id FROM goods ORDER BY id
SELECT public.goods.id FROM public.goods ORDER BY id
SELECT set_config('search_path', '"Of One"', false)
DELETE FROM goods WHERE n = 44
SELECT * FROM goods
SET search_path = nowhere
SELECT * FROM goods
INSERT INTO goods VALUES (1)
CREATE TABLE made (a int)
SELECT set_config('search_path', '', false)
SELECT * FROM goods
TRUNCATE goods
CREATE TABLE made (a int)
SELECT id FROM public.goods ORDER BY id
SET search_path = 'a, b'
SHOW search_path
RESET search_path
SELECT id FROM goods ORDER BY id
CREATE SCHEMA lake
CREATE TABLE lake.goods (of_user int)
SELECT * FROM goods
DROP TABLE lake.goods
DROP SCHEMA lake
DROP TABLE "Of One".goods
DROP SCHEMA "Of One"
SELECT id FROM elsewhere.public.goods
SELECT id FROM lake.public.goods ORDER BY id
SELECT oid FROM elsewhere.pg_catalog.pg_class
DELETE FROM elsewhere.public.goods
"""


def test_names_are_searched_in_the_search_path(sessions: tuple[Wire, Wire]) -> None:
    server, node = sessions
    wrong = []
    for statement in SEARCHED.strip().splitlines():
        theirs, ours = server.ask(statement), node.ask(statement)
        if theirs != ours:
            wrong.append(f"{statement}\n    {theirs}\n    {ours}")
    assert not wrong, "\n".join(wrong)


def test_flush_brings_what_is_there(both: Both) -> None:
    for port in (both.server, both.node):
        with Wire(port, "lake", "lake") as wire:
            wire.send(m.Parse("", "SELECT 1", ()), m.Flush())
            frames = wire.frames()
            assert chr(next(frames).kind) == "1"
            wire.send(m.Describe(m.STATEMENT, ""), m.Flush())
            assert [chr(next(frames).kind) for _ in range(2)] == ["t", "T"]


def test_text_is_in_the_clients_encoding(both: Both) -> None:
    for port in (both.server, both.node):
        with Wire(port, "lake", "lake") as wire:
            wire.ask("SET client_encoding = 'LATIN1'")
            wire.send(
                m.Parse("", "SELECT $1::text", ()),
                m.Bind("", "", (), (b"\xe9",), (1,)),
                m.Execute("", 0),
                m.Sync(),
            )
            assert ("D", b"\xe9") in wire.until_ready()


_PEEK = (
    "SELECT octet_length(data) FROM pg_logical_slot_peek_binary_changes('rows', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'nowhere', 'messages', 'true')"
)
_PORTIONS: list[list[m.FrontendMessage]] = [
    [*query("BEGIN"), *query(_PEEK, rows=2)],
    [m.Execute("", 2)],
    [m.Execute("", 4)],
    [m.Execute("", 0)],
    query("COMMIT"),
    [*query("BEGIN"), *query(_PEEK, rows=9)],
    [m.Execute("", 1)],
    query("ROLLBACK"),
    [*query("BEGIN"), m.Parse("a", _PEEK, ()), m.Bind("p", "a", (), (), ()), m.Execute("p", 1)],
    [m.Execute("p", 0), m.Execute("p", 0)],
    query("COMMIT"),
    [m.Bind("q", "a", (), (), ()), m.Execute("q", 1)],
    [m.Execute("q", 0)],
    [*query("BEGIN"), *query(_PEEK.replace("peek", "get"), rows=4)],
    [m.Execute("", 4)],
    [m.Execute("", 4)],
    query("COMMIT"),
    query(_PEEK),
]
"""What pgjdbc sends with a fetch size: rows of a slot in portions."""


def test_rows_of_a_slot_in_portions(sessions: tuple[Wire, Wire]) -> None:
    for wire in sessions:
        wire.ask("SELECT pg_create_logical_replication_slot('rows', 'pgoutput')")
        for _ in range(3):
            wire.ask("SELECT pg_logical_emit_message(true, 'p', 'content')")
    for said in _PORTIONS:
        server, node = (wire.say(*said) for wire in sessions)
        assert node == server, said
    for wire in sessions:
        wire.ask("SELECT pg_drop_replication_slot('rows')")


def test_a_portal_that_is_left_gives_its_slot_back(both: Both) -> None:
    """Nor does the slot move: the client has not taken all rows."""
    both.lake.execute(
        "SELECT pg_create_logical_replication_slot('left', 'test_decoding')",
        "SELECT pg_logical_emit_message(true, 'p', 'content')",
    )
    get = "SELECT data FROM pg_logical_slot_get_changes('left', NULL, NULL)"
    held = "SELECT count(*) FROM pg_replication_slots WHERE active"

    def given_back() -> bool:
        return both.lake.rows(held) == [(0,)]

    with Wire(both.node, "lake", "lake") as wire:
        assert wire.say(*query(get, rows=1))[-2:] == [("s",), ("Z", "I")]
        assert given_back()
        assert wire.say(*query("BEGIN"), *query(get, rows=1))[-2:] == [("s",), ("Z", "T")]
        assert both.lake.rows(held) == [(1,)]
        assert ("D", b"1") in wire.say(*query("SELECT 1"))
        wire.say(m.Close(m.PORTAL, ""))
        assert given_back()
        wire.say(*query(get, rows=1))
    wait_until(given_back, "the end of the session")
    assert len(both.lake.rows(get)) == 3
    both.lake.execute("SELECT pg_drop_replication_slot('left')")
