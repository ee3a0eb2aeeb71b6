"""Generated columns: what may stand in GENERATED ALWAYS AS (...) (heap.c, cookDefault).

In: the text of an expression, as written or as stored, and the columns of its table. Out: a typed
expression with the type of its column, or PostgreSQL's error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.coercion import to_target
from penstock.sql.expression_analysis import SYSTEM_COLUMNS, ExpressionAnalysis
from penstock.sql.expressions import ColumnRef, Expression
from penstock.sql.nesting import limited_depth
from penstock.sql.primnodes import Form, Node, Var, children, substituted
from penstock.sql.query.parse_expression import parse_expression
from penstock.sql.query.parsenodes import ASubLink
from penstock.sql.query.primnodes import OutputColumn, TableScan
from penstock.sql.quoting import type_name
from penstock.sql.volatility import contains_mutable

_INVALID_OBJECT_DEFINITION = "42P17"
_INVALID_COLUMN_REFERENCE = "42P10"
_DATATYPE_MISMATCH = "42804"


def analyze_generation(column: OutputColumn, columns: Sequence[OutputColumn], table: str) -> Node:
    """The value of a generated column, over the columns of its table by their names.

    ``table``: ``[schema.]name``. Raises PenstockError (42P17, 42703, 42804, ...).
    """
    assert column.generation is not None
    known = {each.name: (each.type, each.typmod) for each in columns}
    with limited_depth():
        node = _Generation(known, table).transform(parse_expression(column.generation))
        _check_not_nested(node, {each.name for each in columns if each.generation is not None})
        if contains_mutable(node):
            raise PenstockError(
                "generation expression is not immutable", sqlstate=_INVALID_OBJECT_DEFINITION
            )
        found = to_target(node, column.type, column.typmod, "a", Form.IMPLICIT)
    if found is None:
        raise PenstockError(
            f'column "{column.name}" is of type {type_name(column.type)} but default expression is '
            f"of type {type_name(node.type)}",
            hint="You will need to rewrite or cast the expression.",
            sqlstate=_DATATYPE_MISMATCH,
        )
    return found


def expanded(scan: TableScan) -> tuple[Node, ...]:
    """The values of a table's columns, virtual ones as what they are made of
    (expand_virtual_generated_columns)."""
    names = (column.name for column in scan.columns)
    values: dict[str, Node] = dict(zip(names, scan.variables(), strict=True))
    return tuple(
        substituted(analyze_generation(column, scan.columns, scan.table.name), values)
        if column.virtual
        else values[column.name]
        for column in scan.columns
    )


class _Generation(ExpressionAnalysis):
    """EXPR_KIND_GENERATED_COLUMN"""

    clause: str = "column generation expressions"

    def __init__(self, columns: Mapping[str, tuple[int, int]], table: str) -> None:
        super().__init__(columns, table)
        self._names = columns.keys()
        self._relation = table.rpartition(".")[2]

    def transform(self, raw: Expression) -> Node:
        """The typed tree of a raw one. Raises PenstockError."""
        match raw:
            case ASubLink():
                raise FeatureNotSupported("cannot use subquery in column generation expression")
            case ColumnRef((*_, name)) if name in SYSTEM_COLUMNS and name not in self._names:
                raise PenstockError(
                    f'cannot use system column "{name}" in column generation expression',
                    sqlstate=_INVALID_COLUMN_REFERENCE,
                )
            case ColumnRef((name,)) if name == self._relation and name not in self._names:
                raise PenstockError(
                    "cannot use whole-row variable in column generation expression",
                    detail="This would cause the generated column to depend on its own value.",
                    sqlstate=_INVALID_OBJECT_DEFINITION,
                )
        return super().transform(raw)


def _check_not_nested(node: Node, generated: set[str]) -> None:
    """check_nested_generated"""
    if isinstance(node, Var) and node.name in generated:
        raise PenstockError(
            f'cannot use generated column "{node.name}" in column generation expression',
            detail="A generated column cannot reference another generated column.",
            sqlstate=_INVALID_OBJECT_DEFINITION,
        )
    for child in children(node):
        _check_not_nested(child, generated)
