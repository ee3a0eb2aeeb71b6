"""COPY, and the queries by which a subscriber copies a table (parsenodes.h, CopyStmt).

Only COPY TO STDOUT is supported; COPY FROM, files and programs are refused by name (0A000).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.sql.grammar.names import (
    Readers,
    not_supported,
    options,
    range_var,
)
from penstock.sql.grammar.parsenodes import (
    ColumnRef,
    DefElem,
    Expression,
    RangeTable,
    RangeVar,
    ResTarget,
    SelectStmt,
    Star,
    Statement,
    mutated,
    nodes_of,
)
from penstock.sql.grammar.raw_node import RawNode
from penstock.sql.grammar.raw_statements import parse_expression, read_select
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """COPY relation [(columns)] TO STDOUT, COPY (query) TO STDOUT, with options as DefElems.

    ``options``: the old syntax is included: ``BINARY`` becomes ``format = binary``. A list
    (force_quote) is one string of names separated by commas.
    """

    relation: RangeVar | None
    columns: tuple[str, ...] | None = None
    query: SelectStmt | None = None
    options: tuple[DefElem, ...] = ()


def _copy(raw: RawNode, _source: Source) -> Copy:
    verb = "COPY FROM" if raw.take("is_from") else "COPY TO"
    if raw.take("is_program"):
        raise not_supported(f"{verb} PROGRAM")
    if raw.take("filename"):
        raise not_supported(f"{verb} a file")
    if verb == "COPY FROM":
        raise not_supported(verb)
    fields, query = raw.node("relation"), raw.node("query")
    return Copy(
        None if fields is None else range_var(fields),
        raw.names("attlist") or None,
        None if query is None else read_select(query),
        options(raw),
    )


# The queries by which a subscriber copies a table (tablesync.c, copy_table): ``SELECT columns FROM
# [ONLY] table [WHERE condition]``. A column may be read as text: with ``column::text``, or with the
# expression by which another node asks for the output function's text (``pgtypes.varlena``).

_COLUMN: Final = ColumnRef(("c",))


class CopyForm(Enum):
    """The form in which a column is read: its value, a cast to text, or the output text."""

    VALUE = "value"
    CAST = "cast"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """An item of the SELECT list. ``name``: the column's name."""

    name: str
    form: CopyForm = CopyForm.VALUE

    @property
    def label(self) -> str:
        """Return the result column's name (FigureColname)."""
        return "case" if self.form is CopyForm.OUTPUT else self.name


@dataclass(frozen=True, slots=True)
class CopyQuery:
    """The query of a table copy. ``columns`` None: ``*``. ``where`` None: all rows."""

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
    """Return an item of the SELECT list; None if it has another form."""
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
    """Return the expression of each form, for a column ``c``."""
    return {
        _COLUMN: CopyForm.VALUE,
        parse_expression("c::text"): CopyForm.CAST,
        parse_expression("CASE WHEN num_nulls(c) = 0 THEN format('%s', c) END"): CopyForm.OUTPUT,
    }


READERS: Final[Readers] = {"CopyStmt": _copy}
