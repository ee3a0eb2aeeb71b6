"""Write: new row versions as data files. Runs inside tasks.

In: complete rows, or rows with cells to be taken from their old versions, whose positions were just
located. Out: WrittenFiles, not yet in the table. Memory: a run of rows of the old file at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """A slice of complete rows for one of a work's tables; ``rows`` is in that table's schema,
    ``generated`` what is still to be made of them, ``mark`` part of the files' names."""

    work: int
    storage: Storage
    table_uri: str
    rows: Payload
    generated: GeneratedColumns
    part: int = 0
    mark: str = ""


def write(item: WriteItem) -> list[WrittenFile]:
    """Write the rows. Raises StorageError."""
    rows = item.generated.filled(item.rows.table())
    writer = FileWriter(item.storage, item.table_uri, rows.schema, mark=item.mark)
    return writer.write([rows])


@dataclass(frozen=True)
class Destination:
    """A table that rows go to. ``columns``: for each column of its ``schema`` the position among
    the rows' columns; ``generated``: what is made of the others."""

    storage: Storage
    table_uri: str
    schema: pa.Schema
    columns: tuple[int, ...]
    generated: GeneratedColumns

    def given(self, rows: pa.Table) -> pa.Table:
        """Rows with its columns in its order, without what is generated."""
        columns = [rows.column(at) for at in self.columns]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def of(self, rows: pa.Table) -> pa.Table:
        """Rows as the table holds them. Raises ValueNotRepresentable."""
        return self.generated.filled(self.given(rows))


@dataclass(frozen=True)
class Completion:
    """Incomplete rows for tasks that locate old versions.

    ``rows``: the columns of ``schema`` as v0, v1 ..., one mask m0, m1 ... for each of the columns
    ``missing``, ``old``, the probe row of the old version, and ``to``, the number of the
    destination. ``missing``: column of the rows -> its name in the files that are searched.
    """

    schema: pa.Schema
    missing: Mapping[str, str]
    destinations: Mapping[int, Destination]
    rows: Payload


@dataclass(frozen=True)
class Completed:
    """Files written for one destination, with ``rows`` rows."""

    part: int
    files: list[WrittenFile]
    rows: int


def complete(completion: Completion, table_uri: str, path: str, hits: Hits) -> Iterator[Completed]:
    """Complete and write the rows whose old versions are at ``hits`` in the file ``path``, which
    may be another table's than they go to. Raises StorageError.
    """
    rows = completion.rows.table()
    old = rows["old"].to_numpy()
    order = np.argsort(old)
    at = np.searchsorted(old[order], hits.probe)
    mine = np.append(old[order], -1)[at] == hits.probe
    position, index = hits.position[mine], order[at[mine]]
    to = rows["to"].to_numpy()[index]
    for part in np.unique(to).tolist():
        destination, here = completion.destinations[part], to == part
        with open_parquet(table_uri, path) as parquet:
            writer = FileWriter(destination.storage, destination.table_uri, destination.schema)
            found = _complete(completion, rows, parquet, position[here], index[here])
            files = writer.write(destination.of(each) for each in found)
        yield Completed(part, files, int(here.sum()))


def _complete(
    completion: Completion,
    rows: pa.Table,
    parquet: pq.ParquetFile,
    position: Integers,
    index: Integers,
) -> Iterator[pa.Table]:
    """Run by run of the old file's rows: the new versions of its rows at ``position``."""
    names = set(parquet.schema_arrow.names)
    held = [name for name in completion.missing.values() if name in names]

    def wanted(start: int, end: int) -> bool:
        first, last = np.searchsorted(position, (start, end))
        return bool(first < last)

    for start, batch in read_batches(parquet, held, wanted=wanted):
        here = slice(*np.searchsorted(position, (start, start + batch.num_rows)))
        if here.start < here.stop:
            new = rows.take(pa.array(index[here]))
            yield _fill(completion, new, pa.Table.from_batches([batch]), position[here] - start)


def _fill(completion: Completion, new: pa.Table, old: pa.Table, at: Integers) -> pa.Table:
    columns = {field.name: new[f"v{i}"] for i, field in enumerate(completion.schema)}
    for i, (name, stored) in enumerate(completion.missing.items()):
        if stored in old.column_names:
            type = completion.schema.field(name).type
            cells = old[stored].take(pa.array(at)).cast(type)
            columns[name] = take_either(new[f"m{i}"].to_numpy(), cells, columns[name])
    return pa.table(columns, schema=completion.schema)
