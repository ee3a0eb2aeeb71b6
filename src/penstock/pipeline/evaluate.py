"""Compiled expressions as functions of Spark: UPDATE and DELETE compute with them.

An expression over named columns, with the small tables that its subqueries read, becomes a function
of Arrow arrays that Spark's executors call. The caller decides where a function is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.pgtypes.datetime import check_range
from penstock.pipeline.duck import connection, query_error
from penstock.sql.to_duckdb.fmgr import told
from penstock.sqlstate import NumericValueOutOfRange

_ROW = "row_of_batch"
_VALUE = "value_of_row"


@dataclass(frozen=True)
class Evaluation:
    """A compiled expression. ``columns``: names of the arguments; ``tables``: the tables that
    subqueries read, by the names of their relations."""

    sql: str
    relation: str
    columns: tuple[str, ...]
    type: pa.DataType
    tables: Mapping[str, pa.Table]

    def function(self) -> Callable[..., pa.Array]:
        """Return a function for ``arrow_udf``, which reads argument types of functions only, not of
        callable objects."""

        def evaluate(*arguments: pa.Array) -> pa.Array:
            try:
                return self.values(*arguments)
            except PenstockError as error:
                raise RuntimeError(told(error)) from None

        return evaluate

    def guarded(self) -> Callable[..., pa.Array]:
        """Return the same function of a condition's values and the arguments. Rows that do not meet
        the condition get NULL, and their values are not computed: Spark may call a function for
        rows that a condition of the same query leaves out."""
        evaluated = self.function()

        def evaluate(met: pa.Array, *arguments: pa.Array) -> pa.Array:
            chosen = pc.fill_null(met, False)
            values = evaluated(*(each.filter(chosen) for each in arguments))
            if len(values) == len(met):
                return values
            found = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
            places = np.full(len(met), -1)
            places[found] = np.arange(len(found))
            return values.take(pa.array(places, mask=places < 0))

        return evaluate

    def values(self, *arguments: pa.Array) -> pa.Array:
        """Return the value of each row. Raises PenstockError."""
        rows = pa.table(
            [*arguments, pa.array(range(len(arguments[0])), pa.int64())],
            names=[*self.columns, _ROW],
        )
        duck = connection()
        given = {self.relation: rows, **self.tables}
        for name, table in given.items():
            duck.register(name, table)
        try:
            # DuckDB may turn a subquery into a join, which changes the order of rows.
            found = duck.sql(
                f"SELECT {self.sql} AS {_VALUE} FROM {self.relation} ORDER BY {_ROW}"
            ).to_arrow_table()
        except duckdb.Error as error:
            raise query_error(error) from None
        finally:
            for name in given:
                duck.unregister(name)
        return as_kept(found.column(_VALUE).combine_chunks(), self.type)


def as_kept(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Return values that a statement computed, cast to the type of the stored column.

    Raises PenstockError (22003: Delta's type is narrower than PostgreSQL's), ValueNotRepresentable
    (22008: infinity, and years that Delta does not have).
    """
    try:
        kept = values.cast(type)
    except pa.ArrowInvalid as error:
        raise NumericValueOutOfRange("value out of range", detail=str(error)) from None
    if pa.types.is_date(type) or pa.types.is_timestamp(type):
        check_range(kept)
    return kept
