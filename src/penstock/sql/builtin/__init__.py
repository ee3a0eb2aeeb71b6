"""PostgreSQL 18's built-in types, operators, functions and casts (pg_type.dat and its kin).

In: the tables beside this file, read once, at the first look-up. Out: frozen rows by oid and by
name. tools/dump_builtin_catalogs.py writes the tables from a real server.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Type:
    """A row of pg_type. ``sql_name``: as format_type prints it; ``element``: of a true array.

    ``schema`` and ``labels``: of a type that is not PostgreSQL's own, the latter of an enum.
    """

    oid: int
    name: str
    sql_name: str
    category: str
    preferred: bool
    kind: str
    element: int
    array: int
    collation: int
    schema: str = "pg_catalog"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of pg_operator. ``left`` 0: a prefix operator; ``function``: oid in pg_proc."""

    oid: int
    name: str
    left: int
    right: int
    result: int
    function: int


@dataclass(frozen=True, slots=True)
class Function:
    """A row of pg_proc. ``kind``: f, a, w, p; ``volatility``: i, s, v; ``variadic``: oid or 0."""

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


@dataclass(frozen=True, slots=True)
class Cast:
    """A row of pg_cast. ``context``: i, a, e; ``method``: f, i, b; ``function``: oid or 0."""

    source: int
    target: int
    function: int
    context: str
    method: str


@cache
def types() -> Mapping[int, Type]:
    """All types by oid."""
    return {
        int(r[0]): Type(
            int(r[0]), r[1], r[2], r[3], r[4] == "1", r[5], int(r[6]), int(r[7]), int(r[8])
        )
        for r in _rows("pg_type")
    }


@cache
def types_by_name() -> Mapping[str, Type]:
    """All types by the name that pg_type has."""
    return {t.name: t for t in types().values()}


@cache
def operators() -> Mapping[str, Sequence[Operator]]:
    """All operators by name."""
    found: dict[str, list[Operator]] = defaultdict(list)
    for row in _rows("pg_operator"):
        operator = Operator(int(row[0]), row[1], *(int(value) for value in row[2:]))
        found[operator.name].append(operator)
    return found


@cache
def functions() -> Mapping[int, Function]:
    """All functions that an expression can call, by oid."""
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
        )
        for r in _rows("pg_proc")
    }


@cache
def functions_by_name() -> Mapping[str, Sequence[Function]]:
    """The same by name."""
    found: dict[str, list[Function]] = defaultdict(list)
    for function in functions().values():
        found[function.name].append(function)
    return found


@cache
def casts() -> Mapping[tuple[int, int], Cast]:
    """All casts by source and target."""
    rows = (Cast(int(r[0]), int(r[1]), int(r[2]), r[3], r[4]) for r in _rows("pg_cast"))
    return {(c.source, c.target): c for c in rows}


def _rows(name: str) -> Iterator[list[str]]:
    for line in (_FOLDER / f"{name}.tsv").read_text("utf-8").splitlines():
        yield line.split("\t")
