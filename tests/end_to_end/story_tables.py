"""The tables of a random history (``story``), and one writer's changes of them.

In: a random number generator. Out: definitions, and statements that touch the writer's own rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WRITERS: Final = 3
"""Sessions with transactions of their own. Each has rows of its own (by ``id``), so that none
waits; where one would (TRUNCATE, what is prepared), its statement fails after lock_timeout."""

_FAR: Final = 300
"""What is added to a key to change it; divisible by WRITERS."""
_LARGE: Final = "(SELECT string_agg(md5(({i} + g)::text), '') FROM generate_series(1, 80) g)"
"""Longer than what a heap page likes: TOASTed, and not sent where an UPDATE leaves it alone."""

_TYPES: Final[Sequence[tuple[str, str, bool]]] = (
    ("smallint", "({i} % 1000)::smallint", False),
    ("bigint", "{i}::bigint << 33", False),
    ("numeric(12,3)", "{i} * 1.125", False),
    ("numeric", "{i} / 3.0", True),
    ("real", "{i} + 0.5", False),
    ("double precision", "{i} / 8.0", False),
    ("boolean", "{i} % 2 = 0", False),
    ("varchar(20)", "'v' || {i}", False),
    ("char(5)", "'c' || {i} % 10", False),
    ("bytea", "decode(md5({i}::text), 'hex')", False),
    ("date", "date '2020-01-01' + {i}", False),
    ("timestamp", "timestamp '1999-12-31 23:59:59.999999' - {i} * interval '1 day'", False),
    ("timestamptz", "timestamptz '2021-03-04 05:06:07.89+02' + {i} * interval '1 s'", False),
    ("uuid", "md5({i}::text)::uuid", False),
    (
        "jsonb",
        "jsonb_build_object('i', {i}, 'b', 'a', 'n', NULL,"
        f" 'big', CASE WHEN {{i}} % 4 = 0 THEN {_LARGE} END)",
        False,
    ),
    ("json", '\'{{"k":  1, "k": 2}}\'::json', False),
    ("integer[]", "ARRAY[{i}, NULL, -{i}]", False),
    ("text[]", "ARRAY['a,b', NULL, '\"x\"', 'é' || {i}]", False),
    ("interval", "{i} * interval '1 day 2 hours'", True),
    ("inet", "('10.0.0.' || {i} % 250)::inet", True),
    ("mood", "(enum_range(NULL::mood))[1 + {i} % 2]", True),
)
"""Name, value by a number, whether Penstock keeps it as PostgreSQL's text."""

IDENTITIES: Final = {
    "primary key": ("PRIMARY KEY (id)", ""),
    "two columns": ("PRIMARY KEY (id, kind)", ""),
    "index": ("UNIQUE (id)", "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_id_key;"),
    "full with a key": ("PRIMARY KEY (id)", "ALTER TABLE {0} REPLICA IDENTITY FULL;"),
    "full": ("", "ALTER TABLE {0} REPLICA IDENTITY FULL;"),
}


@dataclass(frozen=True)
class Column:
    """``value``: an expression with ``{i}`` for a number."""

    name: str
    type: str
    value: str
    as_text: bool


@dataclass
class Table:
    """A table of the story. ``targets``: the tables of the node with its rows, which are its
    partitions where they are published as themselves. ``generated``: its generated column."""

    name: str
    identity: str
    columns: list[Column]
    targets: tuple[str, ...]
    partitioned: bool = False
    generated: str | None = None

    @property
    def keyless(self) -> bool:
        return self.identity == "full"

    def definition(self) -> str:
        key, alter = IDENTITIES[self.identity]
        columns = [
            *("id integer NOT NULL", "kind text NOT NULL", "n integer", "big text"),
            *(f"{c.name} {c.type}" for c in self.columns),
            *([key] if key else []),
        ]
        made = f"CREATE TABLE {self.name} ({', '.join(columns)})"
        if self.partitioned:
            made += " PARTITION BY RANGE (id)"
        lines = [f"{made};"]
        names = [self.name]
        if self.partitioned:
            for name, bounds in partitions(self.name).items():
                lines.append(f"CREATE TABLE {name} PARTITION OF {self.name} FOR VALUES {bounds};")
                names.append(name)
        lines += [f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL;" for name in names]
        return "".join(lines) + "".join(alter.format(name) for name in names)


def partitions(table: str) -> dict[str, str]:
    """An UPDATE of a key moves most rows between them."""
    return {
        f"{table}_low": "FROM (MINVALUE) TO (40)",
        f"{table}_mid": f"FROM (40) TO ({_FAR})",
        f"{table}_far": f"FROM ({_FAR}) TO (MAXVALUE)",
    }


KEYED: Final = [identity for identity in IDENTITIES if identity not in ("index", "two columns")]
"""Those that a partitioned table may have here: the name of a partition's index is another's."""


def random_table(rng: random.Random, name: str, identity: str, partitioned: bool = False) -> Table:
    columns = [random_column(rng, f"c{n}") for n in range(rng.randint(1, 3))]
    targets = tuple(partitions(name)) if partitioned else (name,)
    return Table(name, identity, columns, targets, partitioned)


def random_column(
    rng: random.Random, name: str, types: Sequence[tuple[str, str, bool]] = _TYPES
) -> Column:
    type_name, value, as_text = rng.choice(types)
    return Column(name, type_name, f"CASE WHEN {{i}} % 5 > 0 THEN {value} END", as_text)


def insert(table: Table, writer: int, low: int, high: int, n: str) -> str:
    names = ["id", "kind", "n", "big", *(column.name for column in table.columns)]
    large = f"CASE WHEN i % 4 = 0 THEN {_LARGE.format(i='i')} ELSE 'small' END"
    values = ["i", "'k' || i % 2", n, large, *(c.value.format(i="i") for c in table.columns)]
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)}"
        f" FROM generate_series({low}, {high}) i WHERE i % {WRITERS} = {writer}"
        " ON CONFLICT DO NOTHING"
    )


def change(
    rng: random.Random, tables: Sequence[Table], table: Table, writer: int, number: int
) -> tuple[str, list[str], set[str]]:
    """What kind, its statements, the tables that they change. ``number``: of the step."""
    kinds = {"INSERT": 25, "UPDATE": 25, "new TOAST": 8, "key": 12, "swap": 8, "DELETE": 10,
             "TRUNCATE": 5, "ALTER": 2}  # fmt: skip
    (kind,) = rng.choices([*kinds], [*kinds.values()])
    name, salt, share = table.name, rng.randrange(1000), rng.choice([1, 2, 4, 8])
    mine = f"id % {WRITERS} = {writer} AND (hashint4(id + {salt}) & 7) < {share}"
    low = rng.randrange(120)
    if kind == "INSERT":
        return kind, [insert(table, writer, low, low + rng.randint(1, 40), str(low % 3))], {name}
    if kind == "UPDATE":
        column = rng.choice([None, *table.columns])
        setting = f", {column.name} = {column.value.format(i=f'(id + {salt})')}" if column else ""
        return kind, [f"UPDATE {name} SET n = n + 1{setting} WHERE {mine}"], {name}
    if kind == "new TOAST":
        large = _LARGE.format(i=f"id + {salt}")
        return kind, [f"UPDATE {name} SET big = {large} WHERE {mine} AND id % 2 = 0"], {name}
    if kind == "key":
        by, side = rng.choice([(_FAR, "<"), (-_FAR, ">=")])
        free = f"NOT EXISTS (SELECT FROM {name} x WHERE x.id = {name}.id + {by})"
        moved = f"UPDATE {name} SET id = id + {by} WHERE {mine} AND id {side} {_FAR} AND {free}"
        return kind, [moved], {name}
    if kind == "swap":
        a = writer + WRITERS * rng.randrange(20)
        b = a + WRITERS * rng.randint(1, 10)
        pairs = [(a, -1 - a), (b, a), (-1 - a, b)]
        return kind, [f"UPDATE {name} SET id = {to} WHERE id = {i}" for i, to in pairs], {name}
    if kind == "DELETE":
        return kind, [f"DELETE FROM {name} WHERE {mine}"], {name}
    if kind == "TRUNCATE":
        names = {name, *(t.name for t in rng.sample(tables, rng.randint(0, 2)))}
        truncate = f"TRUNCATE {', '.join(sorted(names))}"
        before, after = (insert(table, writer, at, at + 20, "0") for at in (low + 150, low))
        return kind, rng.choice([[before, truncate, after], [before, truncate], [truncate]]), names
    # of the writer's transaction, which may never commit: nobody else may know the column
    added = f"ALTER TABLE {name} ADD COLUMN x{number}_{writer} integer"
    return (
        kind,
        [added, f"UPDATE {name} SET x{number}_{writer} = {salt} WHERE {mine}"],
        {name},
    )
