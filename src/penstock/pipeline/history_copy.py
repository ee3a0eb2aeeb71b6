"""The rows of a table as the beginning of its history.

In: a table, or the leaves of a partitioned one, at some LSN; its history. Out: the history with a
row for each live row staged, and first one that ends all rows that it has had. No row crosses the
driver. When that is done is decided in ``subscription.history``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.errors import StorageError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile
from penstock.lakehouse.history_table import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_LSN,
    COMMIT_TIMESTAMP,
    COPY,
    POSITION,
    TRUNCATE,
    XID,
)
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_writer import TableWriter
from penstock.lsn import Lsn
from penstock.pipeline.job import HERE_SECONDS, run_job
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, run_rewrite
from penstock.pipeline.tasks import Failed, Written

_SECONDS_PER_BYTE: Final = 3e-8


def copy_rows(
    spark: Spark,
    tables: Sequence[DeltaTable],
    history: DeltaTable,
    lsn: Lsn,
    time_us: int,
    deleted_at: str | None = None,
) -> None:
    """Stage it in one Spark job. ``lsn``: what the tables hold; ``time_us``: now, since 1970;
    ``deleted_at``: the column (its source) that is NULL in live rows, where there are others.

    Raises StorageError; nothing is left behind then.
    """
    schema = history.schema.arrow()
    about = {
        CHANGE_TYPE: CHANGE_TYPES[COPY],
        COMMIT_LSN: int(lsn),
        COMMIT_TIMESTAMP: time_us,
        XID: None,
        POSITION: 1,
    }
    constants = {name: pa.scalar(v, schema.field(name).type) for name, v in about.items()}
    items = [
        (
            file.size * _SECONDS_PER_BYTE,
            RewriteItem(
                table.storage,
                table.uri,
                schema,
                (RewrittenFile.of(file),),
                TARGET_FILE_BYTES,
                constants=constants,
                into=history.uri,
                deleted_at=None if deleted_at is None else table.schema.by_source[deleted_at].name,
                layout=history.layout,
            ),
        )
        for table in tables
        for file in table.files.values()
    ]
    name = f"penstock: history {history.name}"[:200]
    results = run_job(spark, items, run_rewrite, name, here=HERE_SECONDS)
    expected = sum(table.rows for table in tables)
    written = _checked(history, expected, results)
    if history.rows:
        ended = {**constants, CHANGE_TYPE: pa.scalar(CHANGE_TYPES[TRUNCATE])}
        ended[POSITION] = pa.scalar(0, pa.int64())
        columns = [
            pa.repeat(ended[field.name], 1) if field.name in ended else pa.nulls(1, field.type)
            for field in schema
        ]
        row = pa.Table.from_arrays(columns, schema=schema)
        written += TableWriter(history.storage, history.uri, schema, history.layout).write([row])
    history.stage(written=written)


def _checked(
    history: DeltaTable, expected: int, results: Sequence[Written | Failed]
) -> list[WrittenFile]:
    """The files, which must hold all rows but those that were left out."""
    written = [file for result in results if isinstance(result, Written) for file in result.files]
    expected -= sum(result.left_out for result in results if isinstance(result, Written))
    failed = [result.error for result in results if isinstance(result, Failed)]
    if not failed and (found := sum(file.rows for file in written)) == expected:
        return written
    for file in written:
        history.storage.remove(f"{history.uri}/{file.path}")
    if failed:
        raise failed[0]
    raise StorageError(
        f'the history of table "{history.name}" got {found} of {expected} rows',
        hint="Data files are damaged: put them back from a copy.",
        sqlstate="XX001",
    )
