"""Names in a catalog query: sources of FROM and their columns (parse_relation.c).

In: what FROM has brought. Out: a column's DuckDB name and type, or PostgreSQL's error. Every source
and column gets a name of ours (``s1.c2``), since DuckDB takes ``"A"`` and ``a`` for the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import PenstockError


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column that a query gives. ``typmod``: of the table's column that it is, else -1."""

    name: str
    type: str
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of FROM. ``columns``: PostgreSQL's name -> (DuckDB's expression, type).

    ``alias``: what qualifies it in the text. ``hidden``: columns that ``*`` leaves out, since
    USING has merged them with others.
    """

    alias: str
    columns: tuple[tuple[str, str, str], ...]
    hidden: frozenset[str] = frozenset()

    def find(self, name: str) -> tuple[str, str] | None:
        """Expression and type of a column, None when there is none of the name."""
        return next(((sql, kind) for column, sql, kind in self.columns if column == name), None)


@dataclass(slots=True)
class Scope:
    """What the names of one SELECT can mean; ``outer``: the query around it."""

    outer: Scope | None = None
    sources: list[Source] = field(default_factory=list)
    tables: Mapping[str, Query] = field(default_factory=dict)
    """WITH queries by name."""
    counted: str | None = None
    """The column of a series or an unnested array in FROM: rows come in its order."""
    aggregated: bool = False

    def column(self, name: str, table: str | None) -> tuple[str, str]:
        """Expression and type of a column. Raises PenstockError 42703, 42702, 42P01."""
        scope: Scope | None = self
        while scope is not None:
            found = scope._find(name, table)
            if found is not None:
                return found
            if table is not None and any(s.alias == table for s in scope.sources):
                raise PenstockError(f"column {table}.{name} does not exist", sqlstate="42703")
            scope = scope.outer
        if table is not None:
            raise PenstockError(f'missing FROM-clause entry for table "{table}"', sqlstate="42P01")
        raise PenstockError(f'column "{name}" does not exist', sqlstate="42703")

    def _find(self, name: str, table: str | None) -> tuple[str, str] | None:
        found = [
            column
            for source in self.sources
            if (table is None or source.alias == table)
            and (table is not None or name not in source.hidden)
            and (column := source.find(name)) is not None
        ]
        if len(found) > 1:
            raise PenstockError(f'column reference "{name}" is ambiguous', sqlstate="42702")
        return found[0] if found else None

    def with_query(self, name: str) -> Query | None:
        """The WITH query of that name, here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tables:
                return scope.tables[name]
            scope = scope.outer
        return None

    def star(self, table: str | None) -> list[tuple[str, str, str]]:
        """What ``*`` or ``table.*`` stands for. Raises PenstockError 42P01."""
        if table is None:
            return [c for s in self.sources for c in s.columns if c[0] not in s.hidden]
        for source in self.sources:
            if source.alias == table:
                return list(source.columns)
        raise PenstockError(f'missing FROM-clause entry for table "{table}"', sqlstate="42P01")


@dataclass(frozen=True, slots=True)
class Query:
    """A translated query: its columns are called o1, o2 ... in DuckDB."""

    sql: str
    columns: tuple[OutputColumn, ...]


@dataclass(slots=True)
class Found:
    """What a translation has come across."""

    tables: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    parameters: dict[int, str] = field(default_factory=dict)
    """Types of ``$n``, where something has given them one."""
    last_parameter: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def new_source(self) -> str:
        """A name that no other source of the statement has."""
        return f"s{next(self.numbers)}"
