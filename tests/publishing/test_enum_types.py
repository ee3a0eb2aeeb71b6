"""Enum types beside a server: statements, queries, psql; and published to stock subscribers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.embedded.installation import clients
from penstock.errors import ProtocolViolation
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import Message, RelationMessage, TypeMessage
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP: Final = (
    "CREATE TYPE size AS ENUM ('tiny', 'small', 'large', 'huge')",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE boxes (id int PRIMARY KEY, s size, m mood, t text, d size DEFAULT 'large')",
)
_STATEMENTS: Final = (
    "INSERT INTO boxes VALUES (1, 'tiny', 'ok', 'tiny'), (2, 'huge', NULL, 'x'),"
    " (3, NULL, 'sad', NULL), (4, 'small', 'sad', 'small')",
    "INSERT INTO boxes VALUES (5, 'Tiny')",
    "INSERT INTO boxes VALUES (5, ' tiny')",
    "INSERT INTO boxes VALUES (5, '')",
    "INSERT INTO boxes VALUES (5, 7)",
    "INSERT INTO boxes (id, s) SELECT 5, t FROM boxes WHERE id = 1",
    "INSERT INTO boxes (id, s) SELECT 5, m FROM boxes WHERE id = 1",
    "INSERT INTO boxes (id, s) SELECT 5, s FROM boxes WHERE id = 1",
    "INSERT INTO boxes (id, s) SELECT 6, 'large'",
    "INSERT INTO boxes (id, s) SELECT 7, 'larger'",
    "INSERT INTO boxes (id, s) VALUES (7, 'small'::size), (8, 'huge'::public.size)",
    "INSERT INTO boxes (id, s) VALUES (9, 'larger'::size)",
    "INSERT INTO boxes (id, s, d) VALUES (9, DEFAULT, DEFAULT)",
    "INSERT INTO boxes (id, t) SELECT 10, s FROM boxes WHERE id = 2",
    "UPDATE boxes SET s = 'large' WHERE s = 'small'",
    "UPDATE boxes SET s = 'larger'",
    "UPDATE boxes SET s = t",
    "UPDATE boxes SET s = d, d = s WHERE s IS NULL",
    "UPDATE boxes SET s = 'large' WHERE s = 'larger'",
    "UPDATE boxes SET m = CASE WHEN s > 'small' THEN 'ok'::mood ELSE 'sad' END WHERE id < 3",
    "DELETE FROM boxes WHERE s = 'large' AND id > 5",
    "DELETE FROM boxes WHERE s IN ('tiny', 'nope')",
    "ALTER TYPE size ADD VALUE 'medium' BEFORE 'large'",
    "INSERT INTO boxes (id, s) VALUES (20, 'medium')",
    "UPDATE boxes SET s = t::size WHERE id = 4",
    "UPDATE boxes SET s = t::size",
    "INSERT INTO boxes (id, s) SELECT 30, t::size FROM boxes WHERE id = 4",
    "INSERT INTO boxes (id, s) SELECT id + 30, t::size FROM boxes",
    "CREATE TABLE made AS SELECT id, s FROM boxes",
    "INSERT INTO made VALUES (1, 'x')",
    "DROP TYPE size",
    "CREATE TYPE twice AS ENUM ('a', 'b', 'a')",
    "SELECT 'tiny'::twice",
)
_QUERIES: Final = (
    "SELECT * FROM boxes ORDER BY id",
    "SELECT id FROM boxes ORDER BY s, id",
    "SELECT id FROM boxes ORDER BY s DESC NULLS LAST, id",
    "SELECT id FROM boxes WHERE s = 'huge' ORDER BY id",
    "SELECT id FROM boxes WHERE s <> 'huge' ORDER BY id",
    "SELECT id FROM boxes WHERE s < 'large' ORDER BY id",
    "SELECT id FROM boxes WHERE s >= d ORDER BY id",
    "SELECT id FROM boxes WHERE s BETWEEN 'small' AND 'medium' ORDER BY id",
    "SELECT id FROM boxes WHERE s IN ('tiny', 'huge') ORDER BY id",
    "SELECT id FROM boxes WHERE s NOT IN ('tiny', 'huge') ORDER BY id",
    "SELECT id FROM boxes WHERE s = ANY ('{medium,huge}') ORDER BY id",
    "SELECT id FROM boxes WHERE s > ALL ('{tiny,small}') ORDER BY id",
    "SELECT id FROM boxes WHERE s IS DISTINCT FROM 'huge' ORDER BY id",
    "SELECT id FROM boxes WHERE s = (SELECT max(s) FROM boxes) ORDER BY id",
    "SELECT id FROM boxes WHERE s > ANY (SELECT d FROM boxes) ORDER BY id",
    "SELECT min(s), max(s), count(s), count(DISTINCT s) FROM boxes",
    "SELECT s, count(*) FROM boxes GROUP BY s ORDER BY s",
    "SELECT DISTINCT s FROM boxes ORDER BY s",
    "SELECT a.id, b.id FROM boxes a JOIN boxes b ON a.s = b.d ORDER BY 1, 2",
    "SELECT id, rank() OVER (ORDER BY s) FROM boxes ORDER BY id",
    "SELECT id, s::text || '!', upper(s::text) FROM boxes ORDER BY id",
    "SELECT coalesce(s, 'tiny'), nullif(s, 'huge') FROM boxes ORDER BY id",
    "SELECT array_agg(s ORDER BY s, id) FROM boxes",
    "SELECT s FROM boxes UNION SELECT d FROM boxes ORDER BY 1",
    "SELECT size 'small' AS s, 'ok'::mood, 'ok'::mood = 'sad' FROM boxes WHERE id = 2",
    "SELECT id, t::size FROM boxes WHERE id = 4",
    "SELECT id, t::size FROM boxes",
    "SELECT id FROM boxes WHERE t::size > s",
    "SELECT id FROM boxes WHERE s = 'nope'",
    "SELECT id FROM boxes WHERE s = m",
    "SELECT id FROM boxes WHERE s = t",
    "SELECT id FROM boxes WHERE s < 3",
    "SELECT sum(s) FROM boxes",
    "SELECT s || 'x' FROM boxes WHERE id = 2",
    "SELECT s::int FROM boxes",
    "SELECT id::size FROM boxes",
    "SELECT length(s) FROM boxes",
)
_REFUSED: Final = frozenset(
    {
        # concatenation of what is no text
        "SELECT s || 'x' FROM boxes WHERE id = 2",
    }
)
LABELS: Final = (
    *("", " ", "a", "A", "é😀", "a,b", '"quoted"', "it's", "\\", r"\N", "NULL", "null", "{x}"),
    *("tab\tand\nline", "%s", "$1", "x" * 63, "é" * 31, "1", "true", ";--"),
)
"""Labels as unlike one another as can be."""


def test_values_are_checked_and_compared_as_by_a_server(
    both: Callable[..., tuple[Any, Any]],
) -> None:
    ours, server = both(*_SETUP)
    for statement in _STATEMENTS:
        found, wanted = _outcome(ours, statement), _outcome(server, statement)
        assert (statement, found) == (statement, wanted)
    wrong = []
    for query in _QUERIES:
        found, wanted = _outcome(ours, query), _outcome(server, query)
        if found != wanted and not (query in _REFUSED and str(found).startswith("0A000")):
            wrong.append(f"{query}\n    {wanted}\n    {found}")
    assert not wrong, "\n".join(wrong)


def _outcome(connection: Any, statement: str) -> Any:
    """Rows with the names of their columns, the command tag, or the SQLSTATE with the message."""
    try:
        cursor = connection.execute(statement)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    if cursor.description is None:
        return cursor.statusmessage
    return [column.name for column in cursor.description], cursor.fetchall()


def test_parameters_and_results_in_both_formats(both: Callable[..., tuple[Any, Any]]) -> None:
    for connection in both(
        "CREATE TYPE way AS ENUM ('in', 'out')",
        "CREATE TABLE ways (id int, w way)",
        "INSERT INTO ways VALUES (1, 'in'), (2, 'out')",
    ):
        cursor = psycopg.RawCursor(connection)
        for binary, wanted in ((False, "out"), (True, b"out")):
            cursor.execute("SELECT id, w FROM ways WHERE w = $1", ("out",), binary=binary)
            assert cursor.fetchall() == [(2, wanted)]
        cursor.execute("INSERT INTO ways VALUES ($1, $2)", (3, "in"))
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            cursor.execute("SELECT id FROM ways WHERE w = $1", ("through",))
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            cursor.execute("INSERT INTO ways VALUES ($1, $2)", (4, "through"))


def test_psql_shows_types(pair: Pair) -> None:
    pair.both(
        r"""
CREATE TYPE shown AS ENUM ('first', 'second');
CREATE SCHEMA elsewhere;
CREATE TYPE elsewhere.shown AS ENUM ('other');
CREATE TYPE elsewhere."Its own" AS ENUM ();
CREATE TABLE shows (id int PRIMARY KEY, a shown, b elsewhere."Its own", c elsewhere.shown);
\dT sh*
\dT+ shown
\dT elsewhere.*
\d shows
SELECT typname, typtype, typcategory, typlen, typalign, typstorage, typbyval
    FROM pg_type WHERE typname IN ('shown', '_shown') ORDER BY typname, typlen;
SELECT enumlabel, enumsortorder FROM pg_enum WHERE enumtypid = 'shown'::regtype ORDER BY 2;
SELECT 'elsewhere.shown'::regtype, 'elsewhere."Its own"'::regtype, to_regtype('nothing');
SELECT data_type, udt_schema, udt_name FROM information_schema.columns
    WHERE table_name = 'shows' ORDER BY ordinal_position;
CREATE PUBLICATION shows FOR TABLE shows WHERE (a = 'first');
CREATE PUBLICATION shows FOR TABLE shows (id, a);
\dRp+ shows
DROP PUBLICATION shows;
DROP TYPE elsewhere.shown, shown;
DROP SCHEMA elsewhere;
DROP TABLE shows;
DROP TYPE shown;
DROP SCHEMA elsewhere CASCADE;
\dT sh*
\dT elsewhere.*
"""
    )


@pytest.mark.parametrize("options", ["", "binary = true", "streaming = on"])
def test_stock_subscribers_get_the_values(
    lake: LakeNode, subscriber: Callable[..., Database], options: str
) -> None:
    name = "enums_" + "".join(filter(str.isalpha, options))
    target = subscriber(18)
    labels = ", ".join(sql.Literal(label).as_string(None) for label in LABELS)
    statements = (
        f"CREATE SCHEMA {name}",
        f"CREATE TYPE {name}.label AS ENUM ({labels})",
        f"CREATE TABLE {name}.of (id int PRIMARY KEY, v {name}.label, w {name}.label)",
    )
    for execute in (lake.execute, target.execute):
        for statement in statements:
            execute(statement)
    rows = [
        f"({n}, {sql.Literal(label).as_string(None)}, {sql.Literal(LABELS[-n]).as_string(None)})"
        for n, label in enumerate(LABELS, 1)
    ]
    lake.execute(
        f"INSERT INTO {name}.of VALUES {', '.join(rows)}",
        f"CREATE PUBLICATION {name} FOR TABLE {name}.of",
    )
    lake.subscribe(target, name, name, options)
    query = f"SELECT id, v, w FROM {name}.of ORDER BY id"
    assert target.rows(query) == lake.rows(query) and len(lake.rows(query)) == len(LABELS)
    lake.execute(
        f"INSERT INTO {name}.of SELECT id + 100, w, v FROM {name}.of",
        f"INSERT INTO {name}.of VALUES (0, NULL, '')",
        f"UPDATE {name}.of SET v = w, w = v WHERE id < 10",
        f"DELETE FROM {name}.of WHERE v = 'a,b'",
    )
    lake.caught_up(name)
    wait_until(lambda: target.rows(query) == lake.rows(query), f"{target.rows(query)}")
    target.execute(f"DROP SUBSCRIPTION {name}")


def test_the_stream_names_the_types(
    lake: LakeNode, subscriber: Callable[..., Database], tmp_path: Path
) -> None:
    """A Type message for each column of an enum, in front of the relation, as a server sends."""
    server = subscriber(18)
    for execute in (lake.execute, server.execute):
        for statement in _NAMED:
            execute(statement)
    sent = []
    for conninfo, execute in ((lake.conninfo(), lake.execute), (server.conninfo, server.execute)):
        _recvlogical(conninfo, "-P", "pgoutput", "--create-slot")
        execute("INSERT INTO named.t VALUES (1, 'a', 'b', NULL), (2, NULL, NULL, 'a')")
        with psycopg.connect(conninfo) as connection:
            end = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        execute("INSERT INTO named.t VALUES (3)")
        output = tmp_path / "out"
        start = ("--start", "-f", str(output), "--endpos", end[0] if end else "", "--no-loop")
        plugin = ("-o", "proto_version=1", "-o", "publication_names=named")
        _recvlogical(conninfo, *start, *plugin)
        _recvlogical(conninfo, "--drop-slot")
        sent.append(_shown(output.read_bytes()))
        output.unlink()
    assert sent[0] == sent[1]
    assert sent[0][:5] == [
        "Begin",
        *("type named.first", "type public.Second", "type named.first"),
        "relation named.t of 1 2 1",
    ]


_NAMED: Final = (
    "CREATE SCHEMA named",
    "CREATE TYPE named.first AS ENUM ('a')",
    "CREATE TYPE \"Second\" AS ENUM ('b')",
    'CREATE TABLE named.t (id int PRIMARY KEY, a named.first, b "Second", c named.first)',
    "CREATE PUBLICATION named FOR TABLE named.t",
)


def _recvlogical(conninfo: str, *arguments: str) -> None:
    command = [str(clients().program("pg_recvlogical")), "-d", conninfo, "--slot", "named"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def _messages(output: bytes) -> Iterator[Message]:
    """A message may have newlines in it, as numbers have all bytes."""
    decoder, begun = Decoder(1), b""
    for line in output.split(b"\n")[:-1]:
        try:
            yield decoder.decode(begun + line)
            begun = b""
        except ProtocolViolation:
            begun += line + b"\n"
    assert begun == b""


def _shown(output: bytes) -> list[str]:
    """Messages, types by the order in which they came; each ends with a newline."""
    found, oids = [], [23]
    for message in _messages(output):
        match message:
            case TypeMessage(oid, schema, name):
                assert oid >= 16384
                oids += [] if oid in oids else [oid]
                found.append(f"type {schema}.{name}")
            case RelationMessage(relation):
                kinds = [str(oids.index(a.type_oid)) for a in relation.attributes[1:]]
                found.append(f"relation {relation.qualified_name} of {' '.join(kinds)}")
            case _:
                found.append(type(message).__name__)
    return found
