"""The same statements on a node and on a stock server: what test_decoding says of both is equal.

Changes of a statement come in no order on the node (a commit has none), so they are compared
sorted, transaction by transaction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from faults.heavy import HEAVY, in_make_faults
from fix_postgres import Database
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
_ROWS = 500 if HEAVY else 150


_PLAIN = "story.plain"


class Story:
    """Statements over a table with a key, one with REPLICA IDENTITY FULL, and one with NOTHING."""

    def __init__(self, seed: int, rows: int) -> None:
        self.random = random.Random(seed)
        self.rows = rows
        self.next_id = {_PLAIN: 1, "story.whole": 1, "story.none": 1}

    def tables(self) -> Iterator[str]:
        columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in _TYPES.items())
        for table in self.next_id:
            yield f"CREATE TABLE {table} (id integer PRIMARY KEY, {columns})"
        yield "ALTER TABLE story.whole REPLICA IDENTITY FULL"
        yield "ALTER TABLE story.none REPLICA IDENTITY NOTHING"

    def statements(self, count: int) -> Iterator[str]:
        for _ in range(count):
            table = self.random.choice([*self.next_id, _PLAIN])
            kinds = [self._insert, self._insert, self._update, self._update, self._delete]
            if table == _PLAIN:
                kinds.append(self._move)
            yield self.random.choice(kinds)(table)

    def _value(self, name: str) -> str:
        return "NULL" if self.random.random() < 0.15 else _TYPES[name][1](self.random)

    def _insert(self, table: str) -> str:
        first = self.next_id[table]
        self.next_id[table] += self.rows
        rows = ", ".join(
            f"({id_}, {', '.join(map(self._value, _TYPES))})"
            for id_ in range(first, first + self.rows)
        )
        return f"INSERT INTO {table} VALUES {rows}"

    def _range(self, table: str) -> str:
        first = self.random.randrange(self.next_id[table] + 1)
        return f"id BETWEEN {first} AND {first + self.random.randrange(self.rows)}"

    def _update(self, table: str) -> str:
        """One column, and one that certainly changes: a row that stays as it is did not change."""
        name = self.random.choice([name for name in _TYPES if name != "i8"])
        values = f'"{name}" = {self._value(name)}, i8 = {_TYPES["i8"][1](self.random)}'
        return f"UPDATE {table} SET {values} WHERE {self._range(table)}"

    def _move(self, table: str) -> str:
        first = self.next_id[table]
        self.next_id[table] += 2 * first
        return f"UPDATE {table} SET id = id + {2 * first} WHERE {self._range(table)}"

    def _delete(self, table: str) -> str:
        return f"DELETE FROM {table} WHERE {self._range(table)}"


def _transactions(lines: list[str]) -> list[list[str]]:
    """Changes of each transaction that has some, sorted."""
    found: list[list[str]] = []
    for line in lines:
        if line == "BEGIN":
            found.append([])
        elif line != "COMMIT":
            found[-1].append(line)
    return [sorted(changes) for changes in found if changes]


@pytest.mark.parametrize(
    ("version", "seed"), [(17, 1), in_make_faults(14, 2), in_make_faults(15, 3)]
)
def test_random_changes(
    version: int, seed: int, lake: LakeNode, database_on: Callable[..., Database]
) -> None:
    server, slot = database_on(version), f"beside_{version}"
    story = Story(seed, _ROWS)
    server.execute("CREATE SCHEMA story")
    lake.execute("CREATE SCHEMA story")
    statements = [*story.tables()]
    for statement in statements:
        lake.execute(statement)
    create = f"SELECT 1 FROM pg_create_logical_replication_slot('{slot}', 'test_decoding')"
    with server.connect() as connection:
        connection.execute("SET TimeZone = UTC")
        for statement in statements:
            connection.execute(statement)
        connection.execute(create)
        lake.execute(create)
        for statement in story.statements(120 if HEAVY else 24):
            connection.execute(statement.encode())
            lake.connection.execute(statement.encode())
        call = f"pg_logical_slot_get_changes('{slot}', NULL, NULL, 'include-xids', '0')"
        read = f"SELECT data FROM {call}"
        expected = [data for (data,) in connection.execute(read)]
        connection.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    found = [data for (data,) in lake.rows(read)]
    assert len(expected) > (20_000 if HEAVY else 1_000)
    for one, other in zip(_transactions(found), _transactions(expected), strict=True):
        assert one == other
    lake.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        *(f"DROP TABLE {table}" for table in story.next_id),
        "DROP SCHEMA story",
    )
