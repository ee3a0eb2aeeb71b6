"""Calls of PostgreSQL's functions, operators and casts over all edges of their argument types.

In: PostgreSQL's own tables of them. Out: queries, each over columns that hold every edge of a type,
over constants, and, where a whole column fails in both, row by row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from executor.lake_oracle import LakeOracle
from penstock.sql.builtin import functions, operators
from publication.filters import ONLY_CONSTANTS, VALUES

OIDS: Final = {
    "smallint": 21, "integer": 23, "bigint": 20, "real": 700, "double precision": 701,
    "numeric(10,2)": 1700, "numeric": 1700, "boolean": 16, "text": 25, "varchar(20)": 1043,
    "char(5)": 1042, "name": 19, "bytea": 17, "date": 1082, "timestamp": 1114,
    "timestamptz": 1184, "uuid": 2950, "integer[]": 1007, "text[]": 1009, "numeric[]": 1231,
}  # fmt: skip
_SMALL: Final = ["-1", "3", "0", "-3", "100"]
_LENGTHS: Final = ["varchar(3)", "char(2)", "numeric(4,1)", "char(8)"]
_CONSTANTS: Final = 14
_COMBINATIONS: Final = 25


@dataclass(frozen=True)
class Column:
    """Of every edge of a type: table and type."""

    table: str
    type: str


COLUMNS: Final = {name: Column(f"v{number}", name) for number, name in enumerate(OIDS)}


@dataclass(frozen=True)
class CallForm:
    """``text`` has a pair of braces for each argument; ``types``: oids."""

    text: str
    types: tuple[int, ...]


def create(oracle: LakeOracle) -> None:
    """A table for each type, with its edges and NULL."""
    for column in COLUMNS.values():
        values = [*VALUES[column.type], None]
        rows = [(str(number), value) for number, value in enumerate(values)]
        oracle.create(column.table, {"n": "int", "x": column.type}, rows)


def call_forms() -> Iterator[CallForm]:
    """Every function of up to three arguments, every operator and cast over the types."""
    known = set(OIDS.values())
    for function in functions().values():
        arguments = function.arguments
        if function.kind == "f" and not function.returns_set and 0 < len(arguments) <= 3:
            marks = ", ".join("{}" for _ in arguments)
            yield CallForm(f"{function.name}({marks})", arguments)
    for name, rows in operators().items():
        for row in rows:
            yield (
                CallForm(f"({{}} {name} {{}})", (row.left, row.right))
                if row.left
                else CallForm(f"({name} {{}})", (row.right,))
            )
    for oid in known:
        for target in (*OIDS, *_LENGTHS):
            yield CallForm(f"({{}})::{target}", (oid,))


def compare(oracle: LakeOracle, form: CallForm, random: Random) -> None:
    """All queries of a form."""
    if not set(form.types) <= set(OIDS.values()):
        return
    choices = [[c for c in COLUMNS.values() if OIDS[c.type] == oid] for oid in form.types]
    for columns in itertools.product(*choices):
        if len(columns) <= 2:
            _over_columns(oracle, form, columns, random)
        if len(columns) > 1:
            _over_constants(oracle, form, columns, random)


def _over_columns(
    oracle: LakeOracle, form: CallForm, columns: Sequence[Column], random: Random
) -> None:
    from_ = ", ".join(f"{column.table} a{number}" for number, column in enumerate(columns))
    value = form.text.format(*(f"a{number}.x" for number in range(len(columns))))
    order = ", ".join(f"a{number}.n" for number in range(len(columns)))
    if oracle.compare(f"SELECT {value} FROM {from_} ORDER BY {order}") != "both failed":
        return
    sizes = [range(len(VALUES[column.type]) + 1) for column in columns]
    for rows in itertools.product(*sizes):
        if random.random() < 0.3:
            where = " AND ".join(f"a{number}.n = {row}" for number, row in enumerate(rows))
            oracle.compare(f"SELECT {value} FROM {from_} WHERE {where}")


def _over_constants(
    oracle: LakeOracle, form: CallForm, columns: Sequence[Column], random: Random
) -> None:
    first, *rest = columns
    combinations = list(itertools.product(*(constants(column.type) for column in rest)))
    for chosen in random.sample(combinations, min(len(combinations), _COMBINATIONS)):
        value = form.text.format("x", *chosen)
        if oracle.compare(f"SELECT {value} FROM {first.table} ORDER BY n") == "both failed":
            for row in range(len(VALUES[first.type]) + 1):
                oracle.compare(f"SELECT {value} FROM {first.table} WHERE n = {row}")
    if len(columns) == 2:
        for constant in constants(first.type):
            value = form.text.format(constant, "x")
            oracle.compare(f"SELECT {value} FROM {rest[0].table} ORDER BY n")


def constants(type_: str) -> list[str]:
    """As they are written."""
    values = [*VALUES[type_], *ONLY_CONSTANTS.get(type_, ())][:_CONSTANTS]
    found = [f"'{value}'::{type_}" for value in (v.replace("'", "''") for v in values)]
    return [*found, f"NULL::{type_}", *(_SMALL if type_ == "integer" else ())]
