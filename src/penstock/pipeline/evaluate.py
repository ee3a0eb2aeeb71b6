"""Compiled expressions as functions of Spark: UPDATE and DELETE compute with them.

In: an expression over named columns, and small tables that its subqueries read. Out: a function of
Arrow arrays that Spark's executors call. Which function is called where is left to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from penstock.pipeline.duck import connection
from penstock.pipeline.query import query_error

_ROW = "row_of_batch"
_VALUE = "value_of_row"


@dataclass(frozen=True)
class Evaluation:
    """``columns``: names of the arguments; ``tables``: by the name of their relation."""

    sql: str
    relation: str
    columns: tuple[str, ...]
    type: pa.DataType
    tables: Mapping[str, pa.Table]

    def __call__(self, *arguments: pa.Array) -> pa.Array:
        """The value of each row. Raises PenstockError."""
        rows = pa.table(
            [*arguments, pa.array(range(len(arguments[0])), pa.int64())],
            names=[*self.columns, _ROW],
        )
        duck = connection()
        given = {self.relation: rows, **self.tables}
        for name, table in given.items():
            duck.register(name, table)
        try:
            # A subquery may turn into a join, which has an order of its own.
            found = duck.sql(
                f"SELECT {self.sql} AS {_VALUE} FROM {self.relation} ORDER BY {_ROW}"
            ).to_arrow_table()
        except duckdb.Error as error:
            raise query_error(error) from None
        finally:
            for name in given:
                duck.unregister(name)
        return found.column(_VALUE).cast(self.type).combine_chunks()
