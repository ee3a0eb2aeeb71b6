"""What PostgreSQL's indexes and commands make sure of, and writers of a Delta table do not.

In: the rows that went and came, how the table is published. Out: nothing, or a PenstockError with
the remedy: the slot stops, the subscriber gets nothing wrong.
"""

from __future__ import annotations

from typing import Final

import duckdb
import pyarrow as pa

from penstock.identifiers import quoted
from penstock.pipeline.change_item import ChangeItem, PublishedTable
from penstock.publication.members import Operation
from penstock.sqlstate import NotNullViolation, UniqueViolation

_SHOWN_KEYS: Final = 10


def check_unique(item: ChangeItem, duck: duckdb.DuckDBPyConnection, rows: str) -> None:
    key = ", ".join(quoted(name) for name in item.table.key)
    twice = duck.execute(
        f"SELECT {key} FROM {rows} GROUP BY ALL HAVING count(*) > 1 LIMIT {_SHOWN_KEYS}"
    ).fetchall()
    if twice:
        names = ", ".join(item.table.key)
        keys = ", ".join(str(k[0] if len(k) == 1 else k) for k in twice)
        raise UniqueViolation(
            f'key of table "{item.table.name}" is not unique',
            detail=f"There are several rows with the same ({names}): {keys}.",
            hint="Remove the duplicates, or choose another key: ALTER TABLE ... REPLICA IDENTITY "
            "USING KEY (...), or FULL; then drop the slot and copy the table again.",
        )


def check_identity(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, gone: str, pairs: str | None
) -> None:
    """CheckCmdReplicaIdentity, which no writer of the table has gone through."""
    having = {
        Operation.DELETE: gone,
        Operation.UPDATE: f"SELECT 1 {pairs}" if pairs else gone,
    }
    for operation, rows in having.items():
        error = item.table.refused.get(operation)
        if error is not None and duck.execute(f"SELECT 1 FROM ({rows}) LIMIT 1").fetchall():
            raise error


def check_not_null(table: PublishedTable, rows: pa.Table) -> None:
    """A key without a value identifies nothing; PostgreSQL has no such keys."""
    if not table.published & {Operation.UPDATE, Operation.DELETE}:
        return
    for name in table.identity or ():
        if rows.column(name).null_count:
            raise NotNullViolation(
                f'null value in column "{name}" of relation "{table.name.rpartition(".")[2]}" '
                "violates not-null constraint",
                detail="The column belongs to the replica identity of the table.",
                hint="Give the rows a key, or choose another identity: ALTER TABLE ... REPLICA "
                "IDENTITY USING KEY (...), or FULL; then drop the slot and copy the table again.",
            )
