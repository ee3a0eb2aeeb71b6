"""PostgreSQL 18's types, operators, functions and casts (pg_type.dat, pg_proc.dat and others).

The .tsv files beside this file are read once, at the first look-up, into frozen rows that can be
found by oid and by name. tools/dump_catalogs.py writes these files from a PostgreSQL server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.pgtypes.pg_type import Type, types, types_by_name

__all__ = [
    "Cast",
    "Function",
    "Operator",
    "Type",
    "casts",
    "functions",
    "functions_by_name",
    "operators",
    "types",
    "types_by_name",
]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of pg_operator. ``left`` is 0 for a prefix operator; ``function``: oid in pg_proc."""

    oid: int
    name: str
    left: int
    right: int
    result: int
    function: int


@dataclass(frozen=True, slots=True)
class Function:
    """A row of pg_proc. ``kind``: f, a, w, p; ``volatility``: i, s, v; ``variadic``: oid or 0.

    ``names``: names of the arguments, or () if they have none. ``default_values``: default
    expressions of the last arguments.
    """

    oid: int
    name: str
    kind: str
    returns_set: bool
    volatility: str
    strict: bool
    result: int
    variadic: int
    defaults: int
    arguments: tuple[int, ...]
    names: tuple[str, ...]
    default_values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """A row of pg_cast. ``context``: i, a, e; ``method``: f, i, b; ``function``: oid or 0."""

    source: int
    target: int
    function: int
    context: str
    method: str


@cache
def operators() -> Mapping[str, Sequence[Operator]]:
    """Return all operators by name."""
    found: dict[str, list[Operator]] = defaultdict(list)
    for row in _rows("pg_operator"):
        operator = Operator(int(row[0]), row[1], *(int(value) for value in row[2:]))
        found[operator.name].append(operator)
    return found


@cache
def functions() -> Mapping[int, Function]:
    """Return all functions that an expression can call, by oid."""
    return {
        int(r[0]): Function(
            int(r[0]),
            r[1],
            r[2],
            r[3] == "1",
            r[4],
            r[5] == "1",
            int(r[6]),
            int(r[7]),
            int(r[8]),
            tuple(int(oid) for oid in r[9].split()),
            tuple(r[10].split(" ")) if r[10] else (),
            tuple(r[11].split(";")) if r[11] else (),
        )
        for r in _rows("pg_proc")
    }


@cache
def functions_by_name() -> Mapping[str, Sequence[Function]]:
    """Return the functions that an expression can call, by name."""
    found: dict[str, list[Function]] = defaultdict(list)
    for function in functions().values():
        found[function.name].append(function)
    return found


@cache
def casts() -> Mapping[tuple[int, int], Cast]:
    """Return all casts by source type and target type (oids)."""
    rows = (Cast(int(r[0]), int(r[1]), int(r[2]), r[3], r[4]) for r in _rows("pg_cast"))
    return {(c.source, c.target): c for c in rows}


def _rows(name: str) -> Iterator[list[str]]:
    for line in (_FOLDER / f"{name}.tsv").read_text("utf-8").splitlines():
        yield line.split("\t")
