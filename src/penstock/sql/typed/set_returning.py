"""Move a set-returning function from the SELECT list to FROM (nodeProjectSet.c).

The new SELECT returns the same rows, with plain values in its list. Only one call of
generate_series can be moved, and it must be a whole item of the list; the analysis of FROM checks
its arguments. Calls that PostgreSQL runs in lockstep, or after grouping, are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported
from penstock.sql.grammar.parsenodes import (
    ABool,
    ACase,
    ACoalesce,
    Alias,
    ASubLink,
    ColumnRef,
    Expression,
    FuncCall,
    Indirection,
    NamedArg,
    RangeFunction,
    RangeSubselect,
    ResTarget,
    SelectStmt,
    Star,
    mutated,
    nodes_of,
)
from penstock.sqlstate import UndefinedColumn

SERIES: Final = "generate_series"
_MOVED: Final = "generate_series of the SELECT list"
"""The alias of the moved call. No query uses this name."""
_SPREAD: Final = "rows of a function of the SELECT list"


def is_set_returning(value: Expression | Star) -> bool:
    """Tell whether an item of a SELECT list is a call of generate_series."""
    return isinstance(value, FuncCall) and value.name in ((SERIES,), ("pg_catalog", SERIES))


def moved_to_from(raw: SelectStmt) -> SelectStmt:
    """Move the call to FROM. Raises FeatureNotSupported for several calls, and beside a star."""
    found = [n for n, target in enumerate(raw.targets) if is_set_returning(target.value)]
    if not found:
        return raw
    if len(found) > 1:
        raise FeatureNotSupported("several set-returning functions in a list are not supported")
    if any(isinstance(target.value, Star) for target in raw.targets):
        raise FeatureNotSupported("a set-returning function beside * is not supported")
    (position,) = found
    target = raw.targets[position]
    assert isinstance(target.value, FuncCall)
    call = replace(target.value, name=(SERIES,))
    plain = ResTarget(ColumnRef((_MOVED,)), target.name or SERIES)
    targets = (*raw.targets[:position], plain, *raw.targets[position + 1 :])
    return replace(raw, targets=targets, from_=(*raw.from_, RangeFunction(call, Alias(_MOVED))))


def spread(raw: SelectStmt) -> SelectStmt:
    """Rewrite ``SELECT (f(...)).* FROM x``: a subquery computes the arguments, FROM calls f."""
    if len(raw.targets) != 1 or not isinstance(raw.targets[0].value, Indirection):
        return raw
    call, steps = raw.targets[0].value.argument, raw.targets[0].value.steps
    if steps != ("*",) or not isinstance(call, FuncCall):
        return raw
    names = [f"argument {n}" for n, _ in enumerate(call.arguments, 1)]
    inner = tuple(map(ResTarget, call.arguments, names))
    below = RangeSubselect(replace(raw, targets=inner), Alias(_MOVED))
    passed = tuple(
        _named_alike(argument, ColumnRef((_MOVED, name)))
        for argument, name in zip(call.arguments, names, strict=True)
    )
    over = RangeFunction(replace(call, arguments=passed), Alias(_SPREAD))
    return SelectStmt(targets=(ResTarget(Star((_SPREAD,))),), from_=(below, over))


_MAY_NOT_RUN: Final = (ABool, ACase, ACoalesce, ASubLink)
"""Expressions that need not compute all of their operands, or have rows of their own."""


def fields_from(raw: SelectStmt, columns: Mapping[str, Sequence[Attribute]]) -> SelectStmt:
    """Rewrite ``SELECT (f(...)).field`` without FROM: FROM calls f, once, as the list would.

    ``columns``: those of the functions that may be called in FROM. Raises UndefinedColumn.
    """
    if raw.from_ or raw.where is not None or raw.group or raw.having is not None:
        return raw
    nodes = list(nodes_of(raw.targets))
    found = [each for each in nodes if isinstance(each, Indirection)]
    if len(found) != 1 or any(isinstance(each, _MAY_NOT_RUN) for each in nodes):
        return raw
    call, steps = found[0].argument, found[0].steps
    known = columns.get(call.name[-1]) if isinstance(call, FuncCall) else None
    name = steps[0] if len(steps) == 1 else None
    if known is None or not isinstance(name, str) or name == "*":
        return raw
    if all(column.name != name for column in known):
        raise UndefinedColumn(f'could not identify column "{name}" in record data type')
    value = ColumnRef((_SPREAD, name))
    targets = mutated(raw.targets, lambda node: value if node is found[0] else None)
    return replace(raw, targets=targets, from_=(RangeFunction(call, Alias(_SPREAD)),))


def _named_alike(argument: Expression, value: Expression) -> Expression:
    return NamedArg(argument.name, value) if isinstance(argument, NamedArg) else value


def as_select(raw: SelectStmt) -> SelectStmt | None:
    """Return VALUES of one row that calls generate_series as a SELECT; else None."""
    if len(raw.values) != 1 or not any(map(is_set_returning, raw.values[0])):
        return None
    return replace(raw, values=(), targets=tuple(map(ResTarget, raw.values[0])))
