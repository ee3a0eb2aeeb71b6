"""Rows of a query of Spark's as data files, written by the tasks that compute them.

In: a frame. Out: WrittenFiles, which no log entry names yet. Memory: as ``lakehouse.files``, in
each task. What of a job that fails stays goes with the next VACUUM.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.storage import Storage


def write_frame(
    frame: DataFrame, storage: Storage, folder: str, schema: pa.Schema
) -> list[WrittenFile]:
    """``frame``: with the columns of ``schema``, in any order. Raises PySparkException."""
    storage.create_folder(folder)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with FileWriter(storage, folder, schema) as writer:
            for batch in batches:
                writer.add(batch.select(schema.names).cast(schema))
        for file in writer.files:
            yield pa.record_batch({"written": [pickle.dumps(file)]})

    names = ("`" + name.replace("`", "``") + "`" for name in schema.names)
    rows = frame.select(*names).mapInArrow(write, "written binary").collect()
    return [pickle.loads(row[0]) for row in rows]
