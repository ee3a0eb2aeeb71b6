"""The same statements on a node and on stock servers: what their slots say of them is equal.

By test_decoding, where a server has it, and by pgoutput. Changes of a statement come in no order on
the node (a commit has none), so they are compared sorted, transaction by transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import psycopg
import pytest

from faults.heavy import HEAVY
from fix_postgres import Database
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TYPES: dict[str, tuple[str, Callable[[random.Random], str]]] = {
    "i2": ("smallint", lambda r: str(r.randint(-32768, 32767))),
    "i8": ("bigint", lambda r: str(r.randint(-(1 << 63), (1 << 63) - 1))),
    "n": ("numeric(12,3)", lambda r: f"{r.randint(-(10**9), 10**9)}.{r.randint(0, 999):03}"),
    "nn": ("numeric", lambda r: r.choice(["'NaN'", "1e-20", "12345678901234567890.5", "0"])),
    "f4": ("real", lambda r: r.choice(["0.1", "'Infinity'", "-1e-30", "3", "'NaN'"])),
    "f8": ("double precision", lambda r: repr(r.uniform(-1e9, 1e9))),
    "b": ("boolean", lambda r: r.choice(["true", "false"])),
    "t": ("text", lambda r: r.choice(["'it''s'", "''", r"'back\slash'", "'zwölf'", "E'a\\nb'"])),
    "v": ("varchar(20)", lambda r: f"'{'x' * r.randint(0, 20)}'"),
    "c": ("char(5)", lambda r: r.choice(["'ab'", "''", "'12345'"])),
    "y": ("bytea", lambda r: rf"'\x{r.randbytes(r.randint(0, 6)).hex()}'"),
    "d": ("date", lambda r: f"'{r.randint(1, 9999):04}-{r.randint(1, 12):02}-28'"),
    "ts": ("timestamp", lambda r: f"'2020-{r.randint(1, 12):02}-03 04:05:06.{r.randint(0, 999)}'"),
    "tz": ("timestamptz", lambda r: f"'2020-01-02 03:04:05+{r.randint(0, 12):02}'"),
    "u": ("uuid", lambda r: f"'{r.getrandbits(128):032x}'"),
    "a": ("integer[]", lambda r: r.choice(["'{}'", "'{1,NULL,3}'", "'{-5}'"])),
}
_POOL = 120
"""Rows of random values, of which the others are copies: a literal takes long to read."""
_COPIES = 8
_VERSIONS = (14, 15, 16, 17, 18)
_TEST_DECODING = (14, 15, 17)
"""Of the servers here, the others have been built without it."""
_PLAIN, _WHOLE, _NONE = "story.plain", "story.whole", "story.none"
_LEAST_CHANGES = 70_000 if HEAVY else 20_000
Transactions = list[list[str]]


class Story:
    """Statements over a table with a key, one with REPLICA IDENTITY FULL, and one with NOTHING."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.next_id = {_PLAIN: 1, _WHOLE: 1, _NONE: 1}
        self._names = ", ".join(f'"{name}"' for name in _TYPES)

    def tables(self) -> Iterator[str]:
        yield "CREATE SCHEMA story"
        columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in _TYPES.items())
        for table in self.next_id:
            yield f"CREATE TABLE {table} (id integer PRIMARY KEY, {columns})"
        yield f"ALTER TABLE {_WHOLE} REPLICA IDENTITY FULL"
        yield f"ALTER TABLE {_NONE} REPLICA IDENTITY NOTHING"
        yield f"CREATE TABLE story.pool (p integer PRIMARY KEY, {columns})"
        rows = ", ".join(
            f"({number}, {', '.join(map(self._value, _TYPES))})" for number in range(_POOL)
        )
        yield f"INSERT INTO story.pool VALUES {rows}"
        yield f"CREATE PUBLICATION story FOR TABLE {_PLAIN}, {_WHOLE}"

    def transactions(self, count: int) -> Iterator[list[str]]:
        """Statements of each. A block changes no table twice: of a row that it changes twice, a
        lake tells the outcome."""
        for _ in range(count):
            tables = self.random.sample([*self.next_id], self.random.choice((1, 1, 1, 2, 3)))
            statements = [self._statement(table) for table in tables]
            block = len(statements) > 1
            yield ["BEGIN", *statements, "COMMIT"] if block else statements

    def _statement(self, table: str) -> str:
        kinds = [self._insert, self._insert, self._update, self._update, self._delete]
        if table == _PLAIN:
            kinds.append(self._move)
        return self.random.choice(kinds)(table)

    def _value(self, name: str) -> str:
        return "NULL" if self.random.random() < 0.15 else _TYPES[name][1](self.random)

    def _insert(self, table: str) -> str:
        first = self.next_id[table]
        self.next_id[table] += _POOL * _COPIES
        copies = ", ".join(f"({first + number * _POOL})" for number in range(_COPIES))
        part = f"p % 7 <> {self.random.randrange(7)}"
        return (
            f"INSERT INTO {table} SELECT p + k, {self._names} "
            f"FROM story.pool, (VALUES {copies}) AS v (k) WHERE {part}"
        )

    def _range(self, table: str) -> str:
        first = self.random.randrange(self.next_id[table] + 1)
        return f"id BETWEEN {first} AND {first + self.random.randrange(_COPIES * _POOL)}"

    def _update(self, table: str) -> str:
        """One column, and one that certainly changes: a row that stays as it is did not change."""
        name = self.random.choice([name for name in _TYPES if name != "i8"])
        values = f'"{name}" = {self._value(name)}, i8 = {_TYPES["i8"][1](self.random)}'
        return f"UPDATE {table} SET {values} WHERE {self._range(table)}"

    def _move(self, table: str) -> str:
        first = self.next_id[table]
        if first > 1 << 28:  # the next one would be no integer
            return self._delete(table)
        self.next_id[table] += 2 * first
        return f"UPDATE {table} SET id = id + {2 * first} WHERE {self._range(table)}"

    def _delete(self, table: str) -> str:
        return f"DELETE FROM {table} WHERE {self._range(table)}"


def _create(session: psycopg.Connection[Any], plugins: Iterable[str]) -> None:
    for plugin in plugins:
        create = "SELECT 1 FROM pg_create_logical_replication_slot(%s, %s)"
        session.execute(create, (f"beside_{plugin}", plugin))


def _drop(session: psycopg.Connection[Any], plugins: Iterable[str]) -> None:
    for plugin in plugins:
        session.execute("SELECT pg_drop_replication_slot(%s)", (f"beside_{plugin}",))


def _play(
    session: psycopg.Connection[Any],
    tables: Iterable[str],
    plugins: Sequence[str],
    transactions: Iterable[Iterable[str]],
) -> dict[str, Transactions]:
    """What each plugin says of the transactions."""
    for statement in tables:
        session.execute(statement.encode())
    _create(session, plugins)
    for transaction in transactions:
        for statement in transaction:
            session.execute(statement.encode())
    return {plugin: _READERS[plugin](session) for plugin in plugins}


def _by_test_decoding(session: psycopg.Connection[Any]) -> Transactions:
    """Lines of each transaction that has some, sorted."""
    found: Transactions = []
    call = "pg_logical_slot_get_changes('beside_test_decoding', NULL, NULL, 'include-xids', '0')"
    for (line,) in session.execute(f"SELECT data FROM {call}"):
        if line == "BEGIN":
            found.append([])
        elif line != "COMMIT":
            found[-1].append(line)
    return [sorted(lines) for lines in found if lines]


def _by_pgoutput(session: psycopg.Connection[Any]) -> Transactions:
    """Messages with names for OIDs, of each transaction that has some, sorted."""
    call = (
        "pg_logical_slot_get_binary_changes('beside_pgoutput', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'story')"
    )
    decoder, names = Decoder(1), dict[int, str]()
    found: Transactions = []
    for (data,) in session.execute(f"SELECT data FROM {call}"):
        match decoder.decode(bytes(data)):
            case m.Begin():
                found.append([])
            case m.RelationMessage(relation=relation):
                names[relation.oid] = str(replace(relation, oid=0))
            case m.Insert() | m.Update() | m.Delete() as change:
                found[-1].append(f"{names[change.relation_oid]} {replace(change, relation_oid=0)}")
            case m.Commit():
                pass
            case other:
                raise AssertionError(other)
    return [sorted(changes) for changes in found if changes]


_READERS: Final[dict[str, Callable[[psycopg.Connection[Any]], Transactions]]] = {
    "test_decoding": _by_test_decoding,
    "pgoutput": _by_pgoutput,
}


def test_random_changes(lake: LakeNode, database_on: Callable[..., Database]) -> None:
    story = Story(1)
    tables, transactions = [*story.tables()], [*story.transactions(140 if HEAVY else 40)]
    found = _play(lake.connection, tables, [*_READERS], transactions)
    assert sum(map(len, found["test_decoding"])) >= _LEAST_CHANGES
    for version in _VERSIONS:
        plugins = [p for p in _READERS if p == "pgoutput" or version in _TEST_DECODING]
        with database_on(version).connect() as server:
            server.execute("SET TimeZone = UTC")
            expected = _play(server, tables, plugins, transactions)
            _drop(server, plugins)
        for plugin in plugins:
            pairs = zip(found[plugin], expected[plugin], strict=True)
            wrong = [(ours, theirs) for ours, theirs in pairs if ours != theirs]
            assert not wrong, f"{plugin} of {version}"
    _drop(lake.connection, _READERS)
    lake.execute("DROP PUBLICATION story", "DROP SCHEMA story CASCADE")


def test_one_slot_twice_in_a_query(lake: LakeNode, database_on: Callable[..., Database]) -> None:
    """A server calls one function after the other; what is got is gone for the next one."""
    peek, get = (f"pg_logical_slot_{way}_changes('twice', NULL, NULL)" for way in ("peek", "get"))
    queries = (
        f"SELECT count(*) FROM {peek} a, {peek} b",
        f"SELECT count(*) FROM {peek} a JOIN {peek} b USING (data) WHERE data LIKE 'table%'",
        f"SELECT count(*) FROM (SELECT data FROM {peek} UNION ALL SELECT data FROM {peek}) x",
        f"SELECT count(*) FROM (SELECT data FROM {peek} UNION ALL SELECT data FROM {get}) x",
        f"SELECT count(*) FROM {peek} x",
        "INSERT INTO twice VALUES (3)",
        f"SELECT count(*) FROM {get} a, {get} b",
        f"SELECT count(*) FROM {peek} x",
        "INSERT INTO twice VALUES (4)",
        f"SELECT count(*) FROM (SELECT data FROM {get} UNION ALL SELECT data FROM {get}) x",
        f"SELECT count(*) FROM {peek} x",
    )
    said: dict[str, list[list[Any]]] = {"node": [], "server": []}
    with database_on(17).connect() as server:
        _count_twice(lake.connection, queries, said["node"])
        _count_twice(server, queries, said["server"])
    assert said["node"] == said["server"]


def _count_twice(session: Any, queries: Sequence[str], said: list[list[Any]]) -> None:
    session.execute("CREATE TABLE twice (id integer PRIMARY KEY)")
    session.execute("SELECT pg_create_logical_replication_slot('twice', 'test_decoding')")
    session.execute("INSERT INTO twice VALUES (1), (2)")
    for query in queries:
        cursor = session.execute(query)
        said.append(cursor.fetchall() if cursor.description else [])
    session.execute("SELECT pg_drop_replication_slot('twice')")
