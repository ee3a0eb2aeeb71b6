"""Fold of a table without a key: its rows are a multiset.

In: a run of changes whose old tuples are whole rows (REPLICA IDENTITY FULL), or inserts only. Out:
a NetChange whose ``removed`` are whole rows, each with the number of equal ones that are to go.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.changes import DELETE, INSERT, Changes
from penstock.pipeline.duck import connection
from penstock.pipeline.net_change import NetChange


def fold_multiset(table: str, schema: TableSchema, changes: Changes, truncate: bool) -> NetChange:
    """Count each distinct row's coming and going; what cancels out is not done at all.

    Equal means not distinct: NULL equals NULL, NaN equals NaN. ``changes`` has no unknown cells.
    """
    nothing = schema.arrow().empty_table()
    if changes.old is None or np.all(changes.operation == INSERT):
        return NetChange(
            table, schema, len(changes), changes.new, nothing, nothing, truncate=truncate
        )
    both = pa.concat_tables([changes.new, changes.old])
    index, balance = _balance(both, changes)
    comes, goes = balance > 0, balance < 0
    rows = both.take(pa.array(np.repeat(index[comes], balance[comes])))
    removed = both.take(pa.array(index[goes]))
    return NetChange(
        table,
        schema,
        len(changes),
        rows,
        removed,
        nothing,
        copies=-balance[goes],
        truncate=truncate,
    )


def _balance(both: pa.Table, changes: Changes) -> tuple[np.ndarray, np.ndarray]:
    """Per distinct row one position of it in ``both`` (ascending) and inserts - deletes."""
    count = len(changes)
    sign = np.repeat(np.array([1, -1], np.int8), count)
    sign[:count][changes.operation == DELETE] = 0
    sign[count:][changes.operation == INSERT] = 0
    names = [f"c{i}" for i in range(both.num_columns)]
    lent = both.rename_columns(names)
    lent = lent.append_column("sign", pa.array(sign)).append_column(
        "i", pa.array(np.arange(len(sign)))
    )
    connection().register("changes", lent)
    try:
        result = (
            connection()
            .execute(
                "select min(i) as i, sum(sign)::bigint as balance from changes where sign <> 0 "
                f"group by {', '.join(names)} having sum(sign) <> 0 order by 1"
            )
            .fetchnumpy()
        )
    finally:
        connection().unregister("changes")
    return np.asarray(result["i"], np.int64), np.asarray(result["balance"], np.int64)
