"""Names of a query's columns (FigureColname of parse_target.c).

In: an expression of a select list. Out: its column's name.
"""

from __future__ import annotations

from typing import Any, Final

from sqlglot import exp

from penstock.sql.catalog_tokens import OTHER_TYPES
from penstock.sql.catalog_types import catalog_type

NO_NAME: Final = "?column?"
_WORDS: Final = {
    "CurrentUser": "current_user",
    "SessionUser": "session_user",
    "CurrentCatalog": "current_catalog",
    "CurrentSchema": "current_schema",
    "CurrentTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "Coalesce": "coalesce",
    "Exists": "exists",
    "Substring": "substring",
    "StrPosition": "position",
    "Array": "array",
}


def figure_column_name(node: Any) -> str:
    """The name that PostgreSQL gives the column."""
    return _figure(node)[0] or NO_NAME


def _figure(node: Any) -> tuple[str, int]:
    """Name and how good it is: 2 for one of its own, 1 for one to fall back to, 0 for none."""
    match node:
        case exp.Alias():
            return node.alias, 2
        case exp.Column() | exp.Dot():
            return node.name, 2
        case exp.Anonymous():
            return str(node.this).lower(), 2
        case exp.Trim():
            side = str(node.args.get("position"))
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "btrim"), 2
        case exp.Filter() | exp.Paren() | exp.Bracket() | exp.Window():
            return _figure(node.this)
        case exp.Case():
            name, strength = _figure(node.args.get("default"))
            return (name, strength) if strength > 1 else ("case", 1)
        case exp.Cast():
            name, strength = _figure(node.this)
            return (name, strength) if strength > 1 else (_type_word(node.args["to"]), 1)
        case exp.Subquery():
            inner = node.this
            return _figure(inner.expressions[0]) if inner.expressions else ("", 0)
    word = _WORDS.get(type(node).__name__)
    return (word, 2) if word else ("", 0)


def _type_word(node: Any) -> str:
    while isinstance(node, exp.DataType) and node.this == exp.DType.ARRAY:
        node = node.expressions[0]
    if isinstance(node, exp.DataType) and node.this == exp.DType.USERDEFINED:
        kind = node.args.get("kind")
        name = kind.name if isinstance(kind, exp.Expression) else str(kind)
        return name[1:] if name[1:] in OTHER_TYPES else name  # it was written with []
    return catalog_type(node.sql(dialect="postgres").partition("(")[0].lower()).name
