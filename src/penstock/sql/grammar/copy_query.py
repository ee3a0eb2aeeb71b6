"""The queries that a subscriber copies a table with (tablesync.c, copy_table).

In: the text of ``SELECT columns FROM [ONLY] table [WHERE condition]``. A column may be asked for as
text: by ``column::text``, or by the expression with which a node asks for the output function's
text (``pgtypes.varlena``). Out: its parts; the condition stays text. Every other query gives None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Any, Final

from penstock.errors import PenstockError
from penstock.sql.grammar.libpg_query import Token, parse_tree, scan
from penstock.sql.grammar.names import not_supported, relations
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source
from penstock.sql.text.object_names import RangeVar
from penstock.sql.text.quoting import quote_identifier

_CAST: Final = "{0}::text"
_OUTPUT: Final = "CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END"
_SCHEMA: Final = {"String": {"sval": "pg_catalog"}}


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
    where: str | None


def parse_copy_query(text: str) -> CopyQuery | None:
    """Return the query's parts; None if it has another form."""
    try:
        (statement,) = parse_tree(text)
        return _query(statement, text)
    except (PenstockError, ValueError):
        return None


def _query(statement: Json, text: str) -> CopyQuery:
    raw = RawNode.of(statement)
    if raw.kind != "SelectStmt":
        raise not_supported(raw.kind)
    raw.expect("limitOption", "LIMIT_OPTION_DEFAULT")
    raw.expect("op", "SETOP_NONE")
    (relation,) = relations(raw, "fromClause")
    targets = [_target(node) for node in raw.nodes("targetList")]
    where = _after_where(text) if raw.node("whereClause") else None
    raw.done()
    columns = tuple(target for target in targets if target is not None)
    if len(columns) == len(targets):
        return CopyQuery(relation, columns, where)
    if len(targets) > 1:
        raise not_supported("* beside columns")
    return CopyQuery(relation, None, where)


def _after_where(text: str) -> str:
    tokens = [token for token in scan(text).tokens if token.kind != Token.ASCII_59]
    source = Source(text.encode(), tokens, len(text.encode()))
    return source.between(source.find(Token.WHERE) + 1, len(tokens))


def _target(node: Json) -> CopyTarget | None:
    """Read an item of the list, None for ``*``."""
    raw = RawNode.of(node)
    value = _bare(raw.node("val"))
    raw.done()
    match value:
        case {"ColumnRef": {"fields": [{"A_Star": _}]}}:
            return None
        case {"ColumnRef": {"fields": [{"String": {"sval": name}}]}}:
            return CopyTarget(name)
    for form, pattern in ((CopyForm.CAST, _CAST), (CopyForm.OUTPUT, _OUTPUT)):
        for name in _column_names(value):
            ((statement),) = parse_tree(f"SELECT {pattern.format(quote_identifier(name))}")
            if _bare(statement["SelectStmt"]["targetList"][0]["ResTarget"]["val"]) == value:
                return CopyTarget(name, form)
    raise not_supported("this column of a copy")


def _column_names(value: Any) -> Iterator[str]:
    """Yield the name of the first column in an expression."""
    match value:
        case {"ColumnRef": {"fields": [{"String": {"sval": name}}]}}:
            yield name
        case dict():
            yield from islice(chain.from_iterable(map(_column_names, value.values())), 1)
        case list():
            yield from islice(chain.from_iterable(map(_column_names, value)), 1)


def _bare(value: Any) -> Any:
    """Return a node without places in the text, and names without the schema pg_catalog."""
    if isinstance(value, list):
        return [_bare(item) for item in value if item != _SCHEMA]
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if "location" not in name}
    return value
