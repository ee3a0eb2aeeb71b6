"""Generated columns: check their expressions (heap.c, cookDefault) and compute them for written
rows (rewriteHandler.c, nodeModifyTable.c).

The text of an expression becomes a typed expression with the type of its column. For INSERT and
UPDATE, generated columns are computed from the new values and added to them. Errors are
PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.grammar.parsenodes import (
    ASubLink,
    ColumnRef,
    Default,
    Expression,
    InsertStmt,
    Overriding,
    SelectStmt,
    UpdateStmt,
)
from penstock.sql.grammar.raw_statements import parse_expression
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import to_target
from penstock.sql.typed.expression_analysis import SYSTEM_COLUMNS, ExpressionAnalysis
from penstock.sql.typed.primnodes import Const, Form, Node, Var, children, column_names, substituted
from penstock.sql.typed.query_nodes import Query, SubqueryScan, TableScan
from penstock.sql.typed.volatility import contains_mutable
from penstock.sqlstate import GeneratedAlways

_INVALID_OBJECT_DEFINITION = "42P17"
_INVALID_COLUMN_REFERENCE = "42P10"
_DATATYPE_MISMATCH = "42804"
_ALWAYS = "a"
"""pg_attribute.attidentity"""
_OVERRIDE = "Use OVERRIDING SYSTEM VALUE to override."


def analyze_generation(column: Attribute, columns: Sequence[Attribute], table: str) -> Node:
    """Return the typed expression of a generated column, over the columns of its table.

    ``table``: ``[schema.]name``. Raises PenstockError (42P17, 42703, 42804, ...).
    """
    assert column.generation is not None
    known = {each.name: (each.type_oid, each.typmod) for each in columns}
    with limited_depth():
        node = _Generation(known, table).transform(parse_expression(column.generation))
        _check_not_nested(node, {each.name for each in columns if each.generation is not None})
        if contains_mutable(node):
            raise PenstockError(
                "generation expression is not immutable", sqlstate=_INVALID_OBJECT_DEFINITION
            )
        found = to_target(node, column.type_oid, column.typmod, "a", Form.IMPLICIT)
    if found is None:
        raise PenstockError(
            f'column "{column.name}" is of type {type_name(column.type_oid)} but default expression'
            f" is of type {type_name(node.type)}",
            hint="You will need to rewrite or cast the expression.",
            sqlstate=_DATATYPE_MISMATCH,
        )
    return found


def expanded(scan: TableScan) -> tuple[Node, ...]:
    """Return the values of a table's columns; for virtual columns, their expressions
    (expand_virtual_generated_columns)."""
    names = (column.name for column in scan.columns)
    values: dict[str, Node] = dict(zip(names, scan.variables(), strict=True))
    return tuple(
        substituted(analyze_generation(column, scan.columns, scan.table.name), values)
        if column.generated is AttGenerated.VIRTUAL
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
        """Return the typed tree of a raw one. Raises PenstockError."""
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
    """Refuse an expression that uses generated columns (check_nested_generated)."""
    if isinstance(node, Var) and node.name in generated:
        raise PenstockError(
            f'cannot use generated column "{node.name}" in column generation expression',
            detail="A generated column cannot reference another generated column.",
            sqlstate=_INVALID_OBJECT_DEFINITION,
        )
    for child in children(node):
        _check_not_nested(child, generated)


def is_values_list(raw: SelectStmt) -> bool:
    """Tell whether the query is a plain VALUES list, in which DEFAULT is allowed."""
    return bool(raw.values) and not (raw.order or raw.limit or raw.offset)


def check_inserted(raw: InsertStmt, written: Sequence[Attribute]) -> None:
    """Check the columns that an INSERT writes (rewriteTargetListIU). Raises 428C9.

    A generated column accepts only DEFAULT. So does an identity column GENERATED ALWAYS, unless the
    statement has OVERRIDING.

    ``written``: the columns that the statement gives values to, in its order.
    """
    assert raw.query is not None
    rows = raw.query.values if is_values_list(raw.query) else ()
    for position, column in enumerate(written):
        by_default = rows and all(isinstance(row[position], Default) for row in rows)
        always = column.identity == _ALWAYS and raw.override is Overriding.NOT_SET
        if (column.generation is not None or always) and not by_default:
            message = f'cannot insert a non-DEFAULT value into column "{column.name}"'
            raise _not_by_default(message, column, _OVERRIDE if always else None)


def check_updated(raw: UpdateStmt, known: Mapping[str, Attribute]) -> None:
    """Check the columns that SET writes. Raises 428C9. ``known``: the table's columns by name."""
    for target in raw.targets:
        column = known[target.name or ""]
        always = column.generation is not None or column.identity == _ALWAYS
        if always and not isinstance(target.value, Default):
            raise _not_by_default(f'column "{column.name}" can only be updated to DEFAULT', column)


def _not_by_default(message: str, column: Attribute, hint: str | None = None) -> PenstockError:
    is_what = "a generated column"
    if column.identity:
        is_what = "an identity column defined as GENERATED ALWAYS"
    return GeneratedAlways(message, detail=f'Column "{column.name}" is {is_what}.', hint=hint)


def with_generated_rows(
    written: Sequence[str], rows: SubqueryScan, target: Sequence[Attribute], table: str
) -> Query | None:
    """Return the rows with all generated columns of the table; None if the table has none.

    ``written``: names of the columns of ``rows``; other columns count as NULL.
    """
    made = [column for column in target if column.generation is not None]
    if not made:
        return None
    given = dict(zip(written, rows.variables(), strict=True))
    values: dict[str, Node] = {c.name: Const(c.type_oid, None) for c in target}
    values |= given
    kept = [c for c in target if c.name in given and c.generation is None]
    targets = [
        *(values[column.name] for column in kept),
        *(substituted(analyze_generation(column, target, table), values) for column in made),
    ]
    return Query((*kept, *made), tuple(targets), (rows,))


def with_generated_settings(
    settings: Mapping[str, Node], scan: TableScan, table: str
) -> dict[str, Node]:
    """Return the new values by column, including those of generated columns.

    A generated column is computed if it, or a column that it uses, is in ``settings``.
    """
    old = zip((column.name for column in scan.columns), scan.variables(), strict=True)
    values: dict[str, Node] = {**dict(old), **settings}
    found = dict(settings)
    for column in scan.columns:
        if column.generation is not None:
            node = analyze_generation(column, scan.columns, table)
            if column.name in settings or column_names(node) & settings.keys():
                found[column.name] = substituted(node, values)
    return found
