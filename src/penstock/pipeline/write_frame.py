"""Write frame: the rows of a Spark query as data files, written by the tasks that compute them.

The Delta log does not name the WrittenFiles yet. Each task needs as much memory as
``lakehouse.files`` says. The next VACUUM removes files that a failed job leaves behind.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import (  # type: ignore[attr-defined]
    arrow_udf,
    col,
    collect_list,
    struct,
)

from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.table_writer import TableWriter


def write_frame(
    frame: DataFrame,
    storage: Storage,
    folder: str,
    schema: pa.Schema,
    layout: TableLayout = NO_LAYOUT,
) -> list[WrittenFile]:
    """Write the rows of ``frame``, which has the columns of ``schema`` in any order. Raises
    PySparkException."""
    storage.create_folder(folder)

    def write(rows: Iterator[pa.Array]) -> Iterator[pa.Array]:
        """Write a task's rows; yield the files in place of the last row, NULL for the others."""
        waiting = 0
        with TableWriter(storage, folder, schema, layout) as writer:
            for part in rows:
                if waiting:
                    yield pa.nulls(waiting, pa.binary())
                waiting = len(part)
                writer.add(pa.RecordBatch.from_struct_array(part).cast(schema))
        if waiting:
            told = [None] * (waiting - 1) + [pickle.dumps(writer.files)]
            yield pa.array(told, pa.binary())

    columns = struct(*("`" + name.replace("`", "``") + "`" for name in schema.names))
    written = frame.select(arrow_udf(write, "binary")(columns).alias("written"))
    ((tasks,),) = written.agg(collect_list(col("written"))).collect()
    return [file for task in tasks for file in pickle.loads(task)]
