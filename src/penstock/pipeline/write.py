"""Write: new row versions as data files. Runs inside tasks.

In: complete rows, or rows with cells to be taken from their old versions, whose positions were just
located. Out: WrittenFiles, not yet in the table. Memory: a run of rows of the old file at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.lakehouse.batches import read_batches
from penstock.lakehouse.files import FileWriter, WrittenFile, open_parquet
from penstock.lakehouse.storage import Storage
from penstock.pipeline.columns import Integers, take_either
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.locate import Hits
from penstock.pipeline.payload import Payload


@dataclass(frozen=True)
class WriteItem:
    """A slice of a table's complete rows; ``rows`` is in the table's schema, ``generated`` what is
    still to be made of them."""

    work: int
    storage: Storage
    table_uri: str
    rows: Payload
    generated: GeneratedColumns


def write(item: WriteItem) -> list[WrittenFile]:
    """Write the rows. Raises StorageError."""
    rows = item.generated.filled(item.rows.table())
    return FileWriter(item.storage, item.table_uri, rows.schema).write([rows])


@dataclass(frozen=True)
class Completion:
    """A table's incomplete rows for tasks that locate old versions.

    ``rows``: the columns of ``schema`` as v0, v1 ..., one mask m0, m1 ... for each of the columns
    ``missing``, and ``old``, the probe row of the old version.
    """

    storage: Storage
    schema: pa.Schema
    missing: tuple[str, ...]
    rows: Payload
    generated: GeneratedColumns


def complete(
    completion: Completion, table_uri: str, path: str, hits: Hits
) -> tuple[list[WrittenFile], int]:
    """Complete and write the rows whose old versions are at ``hits`` in the file ``path``.

    Returns the files and the number of rows. Raises StorageError.
    """
    rows = completion.rows.table()
    old = rows["old"].to_numpy()
    order = np.argsort(old)
    at = np.searchsorted(old[order], hits.probe)
    mine = np.append(old[order], -1)[at] == hits.probe
    position, index = hits.position[mine], order[at[mine]]
    if not len(position):
        return [], 0
    with open_parquet(table_uri, path) as parquet:
        writer = FileWriter(completion.storage, table_uri, completion.schema)
        files = writer.write(_completed(completion, rows, parquet, position, index))
    return files, len(position)


def _completed(
    completion: Completion,
    rows: pa.Table,
    parquet: pq.ParquetFile,
    position: Integers,
    index: Integers,
) -> Iterator[pa.Table]:
    """Run by run of the old file's rows: the new versions of its rows at ``position``."""
    held = [name for name in completion.missing if name in parquet.schema_arrow.names]

    def wanted(start: int, end: int) -> bool:
        first, last = np.searchsorted(position, (start, end))
        return bool(first < last)

    for start, batch in read_batches(parquet, held, wanted=wanted):
        here = slice(*np.searchsorted(position, (start, start + batch.num_rows)))
        if here.start < here.stop:
            new = rows.take(pa.array(index[here]))
            whole = _fill(completion, new, pa.Table.from_batches([batch]), position[here] - start)
            yield completion.generated.filled(whole)


def _fill(completion: Completion, new: pa.Table, old: pa.Table, at: Integers) -> pa.Table:
    columns = {field.name: new[f"v{i}"] for i, field in enumerate(completion.schema)}
    for i, name in enumerate(completion.missing):
        if name in old.column_names:
            type = completion.schema.field(name).type
            cells = old[name].take(pa.array(at)).cast(type)
            columns[name] = take_either(new[f"m{i}"].to_numpy(), cells, columns[name])
    return pa.table(columns, schema=completion.schema)
