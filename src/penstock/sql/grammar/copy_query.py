"""The queries that a subscriber copies a table with (tablesync.c, copy_table).

They are ``SELECT columns FROM [ONLY] table [WHERE condition]``. A column may be asked for as text:
by ``column::text``, or by the expression with which a node asks for the output function's text
(``pgtypes.varlena``). Every other query gives None.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.sql.grammar.parse_expression import parse_expression
from penstock.sql.grammar.parsenodes import (
    ColumnRef,
    Expression,
    RangeTable,
    ResTarget,
    SelectStmt,
    Star,
    mutated,
    nodes_of,
)
from penstock.sql.text.object_names import RangeVar

_COLUMN: Final = ColumnRef(("c",))


class CopyForm(Enum):
    """The form in which a column is asked for: its value, a cast to text, or the output text."""

    VALUE = "value"
    CAST = "cast"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """An item of the list. ``name``: the column's name."""

    name: str
    form: CopyForm = CopyForm.VALUE

    @property
    def label(self) -> str:
        """Return the result column's name (FigureColname)."""
        return "case" if self.form is CopyForm.OUTPUT else self.name


@dataclass(frozen=True, slots=True)
class CopyQuery:
    """``columns`` None: ``*``. ``where`` None: all rows."""

    relation: RangeVar
    columns: tuple[CopyTarget, ...] | None
    where: Expression | None


def copy_query(query: SelectStmt) -> CopyQuery | None:
    """Return the parts of a query; None if it has another form."""
    match query.from_:
        case (RangeTable(relation, alias=None),):
            plain = SelectStmt(targets=query.targets, from_=query.from_, where=query.where)
            if query != plain:
                return None
        case _:
            return None
    if query.targets == (ResTarget(Star()),):
        return CopyQuery(relation, None, query.where)
    columns = tuple(filter(None, map(_target, query.targets)))
    return CopyQuery(relation, columns, query.where) if len(columns) == len(query.targets) else None


def _target(target: ResTarget) -> CopyTarget | None:
    """Return an item of the list, None if it has another form."""
    columns = [node for node in nodes_of(target.value) if isinstance(node, ColumnRef)]
    if target.name is not None or not columns or len(columns[0].fields) > 1:
        return None
    (name,) = columns[0].fields

    def renamed(node: Expression) -> Expression | None:
        return _COLUMN if node == columns[0] else None

    form = _forms().get(mutated(target.value, renamed))
    return None if form is None else CopyTarget(name, form)


@functools.cache
def _forms() -> dict[Expression, CopyForm]:
    """Return the expressions of the forms for a column ``c``."""
    return {
        _COLUMN: CopyForm.VALUE,
        parse_expression("c::text"): CopyForm.CAST,
        parse_expression("CASE WHEN num_nulls(c) = 0 THEN format('%s', c) END"): CopyForm.OUTPUT,
    }
