"""Print rows in error messages as PostgreSQL does (ExecBuildSlotValueDescription)."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import pyarrow as pa

from penstock.catalog import LakeTable
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.columns import Integers
from penstock.pipeline.conflict import shown_value
from penstock.sqlstate import NotNullViolation
from penstock.walsender.lake_columns import LakeColumn


def first_null(
    columns: Sequence[LakeColumn], required: Container[str], rows: pa.RecordBatch
) -> int | None:
    """Return the number of the first row with NULL in a column of ``required`` (PostgreSQL's
    names), or None. ``rows`` has all ``columns``, in this order."""
    held = zip(columns, rows.columns, strict=True)
    missing = [values for column, values in held if column.name in required and values.null_count]
    return min((each.is_null().index(True).as_py() for each in missing), default=None)


def first_null_of_leaves(
    columns: Sequence[LakeColumn],
    required: Sequence[frozenset[str]],
    rows: pa.RecordBatch,
    leaves: Integers | None,
) -> int | None:
    """Return the number of the first row with NULL in a column that is NOT NULL in its leaf, or
    None. ``leaves``: the number of each row's leaf; None if there is only one leaf."""
    if leaves is None or len(set(required)) == 1:
        return first_null(columns, required[0], rows)
    found = []
    for number in np.unique(leaves):
        at = np.flatnonzero(leaves == number)
        first = first_null(columns, required[number], rows.take(pa.array(at)))
        found += [] if first is None else [int(at[first])]
    return min(found, default=None)


def null_error(
    table: LakeTable, columns: Sequence[LakeColumn], required: Container[str], row: pa.RecordBatch
) -> NotNullViolation:
    """Return the error for a row that ``first_null`` has found (ExecConstraints)."""
    held = zip(columns, row.columns, strict=True)
    name = next(c.name for c, value in held if c.name in required and value.null_count)
    return NotNullViolation(
        f'null value in column "{name}" of relation "{table.name}" violates not-null constraint',
        detail=f"Failing row contains ({', '.join(show_values(row.columns))}).",
        objects={"schema": table.schema, "table": table.name, "column": name},
    )


def show_values(row: Sequence[pa.Array]) -> list[str]:
    """Return the cells of one row as text."""
    return [shown_value(text_output(column)[0].as_py()) for column in row]
