"""Generated columns of rows that a statement writes (rewriteHandler.c, nodeModifyTable.c).

In: what INSERT and UPDATE give to the columns of a table. Out: the same with generated columns made
of the new values, or PostgreSQL's error where a statement gives them another value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import PenstockError
from penstock.sql.expressions import Default
from penstock.sql.primnodes import Const, Node, column_names, substituted
from penstock.sql.query.generated_column import analyze_generation
from penstock.sql.query.parsenodes import InsertStmt, SelectStmt, UpdateStmt
from penstock.sql.query.primnodes import OutputColumn, Query, SubqueryScan, TableScan

_GENERATED_ALWAYS = "428C9"


def is_values_list(raw: SelectStmt) -> bool:
    """Whether it is VALUES alone, in which the word DEFAULT may stand."""
    return bool(raw.values) and not (raw.order or raw.limit or raw.offset)


def check_inserted(raw: InsertStmt, written: Sequence[OutputColumn]) -> None:
    """rewriteTargetListIU: generated columns are given by the word DEFAULT only. Raises 428C9.

    ``written``: the columns that the statement gives values to, in its order.
    """
    assert raw.query is not None
    rows = raw.query.values if is_values_list(raw.query) else ()
    for position, column in enumerate(written):
        by_default = rows and all(isinstance(row[position], Default) for row in rows)
        if column.generation is not None and not by_default:
            message = f'cannot insert a non-DEFAULT value into column "{column.name}"'
            raise _not_by_default(message, column)


def check_updated(raw: UpdateStmt, known: Mapping[str, OutputColumn]) -> None:
    """The same for SET. ``known``: the table's columns by name."""
    for target in raw.targets:
        column = known[target.name or ""]
        if column.generation is not None and not isinstance(target.value, Default):
            raise _not_by_default(f'column "{column.name}" can only be updated to DEFAULT', column)


def _not_by_default(message: str, column: OutputColumn) -> PenstockError:
    return PenstockError(
        message,
        detail=f'Column "{column.name}" is a generated column.',
        sqlstate=_GENERATED_ALWAYS,
    )


def with_generated_rows(
    written: Sequence[str], rows: SubqueryScan, target: Sequence[OutputColumn], table: str
) -> Query | None:
    """Rows with all generated columns of the table; None where it has none.

    ``written``: names of the columns that ``rows`` has; the others are NULL.
    """
    made = [column for column in target if column.generation is not None]
    if not made:
        return None
    given = dict(zip(written, rows.variables(), strict=True))
    values: dict[str, Node] = {c.name: Const(c.type, None) for c in target}
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
    """New values by column; generated ones of which a column is set, or which are set to DEFAULT,
    are made of the new values."""
    old = zip((column.name for column in scan.columns), scan.variables(), strict=True)
    values: dict[str, Node] = {**dict(old), **settings}
    found = dict(settings)
    for column in scan.columns:
        if column.generation is not None:
            node = analyze_generation(column, scan.columns, table)
            if column.name in settings or column_names(node) & settings.keys():
                found[column.name] = substituted(node, values)
    return found
