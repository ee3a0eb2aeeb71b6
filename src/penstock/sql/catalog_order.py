"""ORDER BY and LIMIT of a catalog query, and keys of GROUP BY (findTargetlistEntrySQL92).

In: sqlglot's clauses, and the select list as names and expressions. Out: DuckDB's text. NULLs come
where PostgreSQL puts them.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from penstock.errors import PenstockError, SqlSyntaxError
from penstock.sql.catalog_expressions import Expressions
from penstock.sql.catalog_typed import Typed, coerce


def sort_key(node: Any, expressions: Expressions, names: list[str], values: list[Typed]) -> str:
    """An expression of GROUP BY or ORDER BY: a position, an output's name, or anything."""
    if isinstance(node, exp.Literal) and not node.is_string:
        if not str(node.this).isdigit():
            raise SqlSyntaxError("non-integer constant in ORDER BY")
        if not 1 <= int(node.this) <= len(values):
            raise PenstockError(
                f"ORDER BY position {node.this} is not in select list", sqlstate="42P10"
            )
        return str(node.this)
    if isinstance(node, exp.Column) and not node.table and node.name in names:
        return str(names.index(node.name) + 1)
    sql = expressions.translate(node).sql
    same = [n for n, value in enumerate(values, 1) if value.sql == sql]
    return str(same[0]) if same else sql


def order_and_limit(
    node: Any, expressions: Expressions, names: list[str], values: list[Typed]
) -> str:
    """ORDER BY, LIMIT and OFFSET of a query; '' where it has none of them."""
    out = ""
    order = node.args.get("order")
    if order is not None:
        keys = [
            sort_key(key.this, expressions, names, values)
            + (" DESC" if key.args.get("desc") else " ASC")
            + (" NULLS FIRST" if key.args.get("nulls_first") else " NULLS LAST")
            for key in order.expressions
        ]
        out += f" ORDER BY {', '.join(keys)}"
    for word in ("limit", "offset"):
        clause = node.args.get(word)
        if clause is not None and clause.expression is not None:
            value = coerce(expressions.translate(clause.expression), "int8", expressions.found)
            out += f" {word.upper()} {value.sql}"
    return out
