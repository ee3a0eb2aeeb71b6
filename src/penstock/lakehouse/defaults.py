"""Defaults of columns (pg_attrdef).

CREATE TABLE on the node stores a default in the column's metadata: an SQL constant, now(), or a
sequence, whose values the caller takes. This module returns the default in the column's Arrow type.
A subscription's rows get defaults in columns that the publication lacks. As for INSERT and UPDATE,
``sql.typed.column_default`` evaluates them. Other writers do not know them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.errors import PenstockError, ValueNotRepresentable
from penstock.lakehouse.schema import Column
from penstock.sql.grammar.column import NEXTVAL
from penstock.sql.typed.column_default import coerced_default

Draw = Callable[[str, int], Sequence[int]]
"""A function that takes a column's name and a count, and returns as many values of the column's
sequence, in order. Raises UndefinedTable (42P01), SequenceGeneratorLimitExceeded (2200H).
"""


def no_draw(column: str, count: int) -> Sequence[int]:
    """Raise an error: this is the ``Draw`` of tables without a sequence."""
    raise AssertionError(f'{count} values of column "{column}"')


def draws(column: Column) -> bool:
    """Return whether a column's default is a sequence's next value."""
    return column.attribute.default == NEXTVAL


def default_value(column: Column, now: datetime) -> pa.Scalar:
    """Return the default of a column without a sequence; NULL if it has none. Raises
    ValueNotRepresentable, with PostgreSQL's SQLSTATE, if the column's type refuses the default."""
    if column.attribute.default is None:
        return pa.scalar(None, column.type)
    oid, typmod = column.attribute.type_oid, column.attribute.typmod
    try:
        text = coerced_default(column.source, column.attribute.default, oid, typmod, now)
        return stored_value(text, oid, typmod, column.type)
    except PenstockError as error:
        raise ValueNotRepresentable(
            error.message,
            detail=f'It is the default of column "{column.source}".',
            hint=error.hint,
            sqlstate=error.sqlstate,
        ) from None


def stored_value(text: str | None, type_oid: int, typmod: int, kind: pa.DataType) -> pa.Scalar:
    """Return a value, given as text, as a Delta table holds it. Raises ValueNotRepresentable."""
    value = None if text is None else pgtypes.find(type_oid).text_value(text.encode(), typmod)
    return pa.scalar(value, kind)


def drawn(column: Column, which: np.ndarray, draw: Draw) -> pa.Array:
    """Return a whole column: a sequence's values in the rows ``which``, NULL in others. Raises the
    errors of ``draw``."""
    count = int(which.sum())
    values = pa.array(draw(column.source, count) if count else (), column.type)
    if count == len(which):
        return values
    return pa.nulls(len(which), column.type) if not count else _spread(values, which)


def _spread(values: pa.Array, which: np.ndarray) -> pa.Array:
    places = np.cumsum(which) - 1
    return values.take(pa.array(places, mask=~which))


def filled(column: Column, rows: int, now: datetime) -> pa.Array:
    """Return a whole column of the default. Raises as ``default_value``."""
    return pa.repeat(default_value(column, now), rows)
