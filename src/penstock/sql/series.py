"""generate_series in FROM, for Spark (int.c, generate_series_int4, generate_series_int8).

In: sqlglot's tree of a query. Out: the same tree, with Spark's ``range`` for each series of whole
numbers; Spark's own translation, an exploded array, counts down where PostgreSQL has no rows. Other
series are refused.
"""

from __future__ import annotations

from typing import Final

import sqlglot
from sqlglot import exp

from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.sql.table_sources import replacement

_NAME: Final = "generate_series"
_INT4: Final = range(-(1 << 31), 1 << 31)
_INT8: Final = range(-(1 << 63), 1 << 63)


def series_for_spark(tree: exp.Expr) -> None:
    """Change the tree in place. Raises FeatureNotSupported, InvalidParameterValue."""
    for table in list(tree.find_all(exp.Table)):
        if isinstance(table.this, exp.GenerateSeries | exp.ExplodingGenerateSeries):
            table.replace(replacement(table, _series(table)))


def _series(table: exp.Table) -> exp.Expr:
    call = table.this
    start, end = _number(call.args.get("start")), _number(call.args.get("end"))
    step = _number(call.args["step"]) if call.args.get("step") else 1
    if step == 0:
        raise InvalidParameterValue("step size cannot equal zero")
    behind = end + (1 if step > 0 else -1)
    if behind not in _INT8:
        raise FeatureNotSupported(f"{_NAME} up to the end of bigint is not supported")
    kind = "INT" if all(number in _INT4 for number in (start, end, step)) else "BIGINT"
    alias = table.args.get("alias")
    name = (alias.name if alias else "") or _NAME
    columns = [column.name for column in (alias.args.get("columns") or [])] if alias else []
    column = exp.to_identifier(columns[0] if columns else name, quoted=True)
    query = sqlglot.parse_one(
        f"SELECT CAST(id AS {kind}) FROM RANGE({start}, {behind}, {step})", read="spark"
    )
    query.set("expressions", [exp.alias_(query.expressions[0], column)])
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))


def _number(value: exp.Expr | None) -> int:
    sign = 1
    while isinstance(value, exp.Neg | exp.Paren):
        sign = -sign if isinstance(value, exp.Neg) else sign
        value = value.this
    number = None
    if isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit():
        number = sign * int(value.name)
    if number is None or number not in _INT8:
        raise FeatureNotSupported(f"{_NAME} is supported for constant whole numbers only")
    return number
