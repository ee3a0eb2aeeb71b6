"""Random transactions over tables of every family of types and every replica identity.

In: a seed. Out: statements, each list of them one transaction. Values are made by the server.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

_VALUES: Final = {
    "boolean": "i % 3 = 0",
    "smallint": "(i % 60000 - 30000)::smallint",
    "integer": "i * 7919 - 100000",
    "bigint": "i * 12345678901 - 5000000000",
    "oid": "(i * 97)::oid",
    "real": "CASE i % 17 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' ELSE i / 7.0 END::real",
    "double precision": "CASE WHEN i % 19 = 0 THEN 'Infinity' ELSE i * 1e300 / 3 END::float8",
    "numeric": "CASE WHEN i % 11 = 0 THEN 'NaN' ELSE i / 7.0 END::numeric",
    "numeric(12,3)": "(i / 7.0)::numeric(12,3)",
    "text": "CASE WHEN i % 5 = 0 THEN '' ELSE 'it''s \\ \"' || i || E'\\n\\tÄ€😀 null' END",
    "varchar(40)": "('v''' || i)::varchar(40)",
    "char(12)": "('c ' || i % 1000)::char(12)",
    '"char"': 'chr(65 + i % 26)::"char"',
    "name": "('Name ' || i)::name",
    "bytea": "decode(md5(i::text), 'hex')",
    "date": "CASE WHEN i % 23 = 0 THEN 'infinity' ELSE date '2000-01-01' + i % 90000 - 40000 END",
    "time": "time '00:00' + i % 9999 * interval '1.37 s'",
    "timetz": "timetz '12:00:00.5-03:30' + i % 9999 * interval '1 s'",
    "timestamp": "timestamp '1999-12-31 23:59:59.999999' + i % 90000 * interval '1 day 1.01 s'",
    "timestamptz": "timestamptz '0044-03-15 12:00+00 BC' + i % 3000 * interval '3 years 1.001 s'",
    "interval": "i % 9999 * interval '1 mon -1 day 00:00:01.5'",
    "uuid": "md5(i::text)::uuid",
    "json": "('{\"a\": [' || i || ', \"it''s\"]}')::json",
    "jsonb": "('{\"b\":' || i || ',\"a\":null}')::jsonb",
    "xml": "('<a b=\"' || i || '\">''</a>')::xml",
    "bit(5)": "(i % 32)::bit(5)",
    "varbit": "(i % 8)::bit(3)::varbit",
    "inet": "('10.0.' || i % 256 || '.1')::inet",
    "cidr": "('10.' || i % 256 || '.0.0/16')::cidr",
    "macaddr": "'08:00:2b:01:02:03'::macaddr",
    "money": "(i / 100.0)::numeric::money",
    "point": "point(i, i / 4.0)",
    "pg_lsn": "('0/' || to_hex(i + 1))::pg_lsn",
    "tsvector": "to_tsvector('simple', 'a fat cat''s ' || i)",
    "int4range": "int4range(i, i + 5)",
    "integer[]": "ARRAY[i, NULL, -i]",
    "text[]": "ARRAY['a,b', 'null', '\"q\"', i::text, NULL]",
    "timestamp[]": "ARRAY[timestamp '2024-01-01' + i * interval '1 h']",
    "int[][]": "ARRAY[[i, 1], [2, 3]]",
    "mood": "(ARRAY['happy', 'so, so', 'it''s'])[i % 3 + 1]::mood",
    "mood[]": "ARRAY['so, so', 'happy']::mood[]",
    "positive": "(i + 1)::positive",
    "pair": "ROW(i, 'x ' || i)::pair",
    '"Odd"."Type"': '\'a\'::"Odd"."Type"',
}
_NAMES: Final = ("plain", "Upper", 'q"uote', "select", "über", "with space", "order")
IDENTITIES: Final = ("DEFAULT", "FULL", "USING INDEX", "NOTHING")

TYPES: Final = """
    CREATE TYPE mood AS ENUM ('happy', 'so, so', 'it''s');
    CREATE DOMAIN positive AS int CHECK (VALUE > 0);
    CREATE TYPE pair AS (a int, b text);
    CREATE SCHEMA "Odd";
    CREATE TYPE "Odd"."Type" AS ENUM ('a', 'b');
"""
WITHOUT_IDENTITY: Final = "nothing"
"""In the names of tables of which pgoutput tells no UPDATE and no DELETE."""


class History:
    """Tables and what happens to them."""

    def __init__(
        self, seed: int, tables: int = 8, identities: Sequence[str] = IDENTITIES, without: str = ""
    ) -> None:
        """``without``: a type that the server has not."""
        self._random = random.Random(seed)
        kinds = [kind for kind in _VALUES if kind != without]
        self._random.shuffle(kinds)
        share = -(-len(kinds) // tables)
        self.tables: list[tuple[str, dict[str, str]]] = []
        self.setup = [TYPES]
        self._next = 1
        self._prepared = 0
        self._undo = self._ddl = True
        for number in range(tables):
            mine = kinds[number * share : (number + 1) * share]
            columns = {self._column(n): kind for n, kind in enumerate(mine)}
            self._create(number, identities[number % len(identities)], columns)
        with_identity = [n for n, _ in self.tables if WITHOUT_IDENTITY not in n]
        lacking = [n for n, _ in self.tables if WITHOUT_IDENTITY in n]
        of_tables = f"FOR TABLE {', '.join(lacking)}" if lacking else ""
        self.setup += [
            f"CREATE PUBLICATION p FOR TABLE {', '.join(with_identity)}",
            f"CREATE PUBLICATION p_inserts {of_tables} WITH (publish = 'insert, truncate')",
        ]

    def _column(self, number: int) -> str:
        name = _NAMES[number % len(_NAMES)] + ("" if number < len(_NAMES) else str(number))
        return '"' + name.replace('"', '""') + '"'

    def _create(self, number: int, identity: str, columns: dict[str, str]) -> None:
        kind = identity.split()[0].lower()
        schema = '"Odd"' if number % 3 == 2 else "public"
        name = f'{schema}."{kind.title() if number % 2 else kind} {number}"'
        if identity == "NOTHING":
            name = f"public.{WITHOUT_IDENTITY}_{number}"
        key = "" if identity == "FULL" else " PRIMARY KEY"
        parts = [f"id int{key}", "k2 int NOT NULL", "dropped text", "toast text"]
        parts += [f"{column} {type_}" for column, type_ in columns.items()]
        self.setup += [
            f"CREATE TABLE {name} ({', '.join(parts)})",
            f"ALTER TABLE {name} DROP COLUMN dropped, ALTER toast SET STORAGE EXTERNAL",
        ]
        if identity == "USING INDEX":
            self.setup.append(f"CREATE UNIQUE INDEX index_{number} ON {name} (k2, id)")
            identity = f"USING INDEX index_{number}"
        self.setup.append(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
        self.tables.append((name, columns))

    def transactions(
        self,
        count: int,
        *,
        prepare: bool = False,
        nodecode: bool = False,
        undo: bool = True,
        ddl: bool = True,
    ) -> Iterator[list[str]]:
        """Statements of each, BEGIN and COMMIT among them. ``undo``: some are rolled back, or a
        part of them; ``ddl``: some change tables, or truncate them."""
        self._undo, self._ddl = undo, ddl
        for _ in range(count):
            steps = ["BEGIN", *self._steps(self._random.randrange(1, 6))]
            if prepare and self._random.random() < 0.4:
                yield from self._prepare(steps, nodecode)
            elif undo and self._random.random() < 0.1:
                yield [*steps, "ROLLBACK"]
            else:
                yield [*steps, "COMMIT"]

    def warm(self) -> Iterator[list[str]]:
        """A little of everything. A transaction that is decoded when it has been rolled back
        already, streamed or prepared, ends for a plugin where it looks something up in the
        catalogs; what caches hold is not looked up."""
        for name, columns in self.tables:
            first, self._next = self._next, self._next + 40
            yield [self._insert(name, columns, first, 40)]
            yield [f"UPDATE {name} SET id = -id WHERE id BETWEEN {first} AND {first + 5}"]
            yield [f"DELETE FROM {name} WHERE id < 0"]

    def _prepare(self, steps: list[str], nodecode: bool) -> Iterator[list[str]]:
        self._prepared += 1
        mark = "_nodecode" if nodecode and self._random.random() < 0.3 else ""
        gid = f"'it''s {self._prepared}{mark}'"
        verdict = "ROLLBACK" if self._undo and self._random.random() < 0.3 else "COMMIT"
        yield [*steps, f"PREPARE TRANSACTION {gid}"]
        yield [f"{verdict} PREPARED {gid}"]

    def _steps(self, count: int) -> Iterator[str]:
        for _ in range(count):
            lot = self._random.random()
            if lot < 0.1:
                yield "SAVEPOINT a"
                yield self._change()
                yield "ROLLBACK TO a" if self._undo and lot < 0.05 else "RELEASE a"
            elif lot < 0.2:
                transactional = self._random.choice(["true", "false"])
                yield f"SELECT pg_logical_emit_message({transactional}, 'a b', 'it''s é')"
            elif lot < 0.23 and self._ddl:
                yield self._truncate()
            elif lot < 0.26 and self._ddl:
                name, _ = self._random.choice(self.tables)
                yield f"ALTER TABLE {name} ADD IF NOT EXISTS added_{lot * 1000:.0f} int DEFAULT 7"
            else:
                yield self._change()

    def _truncate(self) -> str:
        chosen = self._random.sample([n for n, _ in self.tables], 2)
        flags = self._random.choice(["", " RESTART IDENTITY", " CASCADE"])
        return f"TRUNCATE {', '.join(chosen)}{flags}"

    def _change(self) -> str:
        name, columns = self._random.choice(self.tables)
        lot = self._random.random()
        first = self._random.randrange(max(1, self._next))
        some = f"id BETWEEN {first} AND {first + self._random.choice([0, 3, 40])}"
        if lot < 0.55:
            count = self._random.choice([1, 1, 5, 30, 200])
            first, self._next = self._next, self._next + count
            return self._insert(name, columns, first, count)
        if lot < 0.7:
            return f"UPDATE {name} SET k2 = k2 + 1 WHERE {some}"
        if lot < 0.8:
            return f"UPDATE {name} SET id = -id, toast = 'x' WHERE {some} AND id > 0"
        if lot < 0.9 and columns:
            column = self._random.choice(list(columns))
            return f"UPDATE {name} SET {column} = NULL WHERE {some}"
        return f"DELETE FROM {name} WHERE {some}"

    def _insert(self, name: str, columns: dict[str, str], first: int, count: int) -> str:
        toast = "CASE WHEN i % 29 = 0 THEN repeat('t' || i, 1500) END"
        values = [
            f"CASE WHEN i % {self._random.choice([2, 7, 100])} <> 1 THEN {_VALUES[kind]} END"
            for kind in columns.values()
        ]
        names = ", ".join(["id", "k2", "toast", *columns])
        selected = ", ".join(["i", "i", toast, *values])
        series = f"generate_series({first}, {first + count - 1}) AS i"
        return f"INSERT INTO {name} ({names}) SELECT {selected} FROM {series}"
