"""Write: new row versions as data files. This runs inside tasks.

Rows are complete, or take some cells from their old versions, whose positions were just located.
The WrittenFiles are not yet in the table. Memory holds one run of the old file's rows at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.lakehouse.batches import read_rows
from penstock.lakehouse.files import TARGET_FILE_BYTES, WrittenFile, open_parquet
from penstock.lakehouse.partition_values import PartitionValues, partition_scalar
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.table_writer import TableWriter
from penstock.pipeline.columns import Integers, take_either
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.hits import Hits
from penstock.pipeline.locate import LocateItem
from penstock.pipeline.payload import Payload
from penstock.pipeline.routed_writer import Destination, RoutedWriter


@dataclass(frozen=True)
class WriteItem:
    """A slice of complete rows for one of a work's tables. ``rows`` has that table's schema;
    ``generated``: the columns that are still to be computed; ``mark``: part of the files' names."""

    work: int
    storage: Storage
    table_uri: str
    rows: Payload
    generated: GeneratedColumns
    layout: TableLayout = NO_LAYOUT
    part: int = 0
    mark: str = ""


def write(item: WriteItem) -> list[WrittenFile]:
    """Write the rows. Raises StorageError, ValueNotRepresentable."""
    rows = item.generated.filled(item.rows.table())
    writer = TableWriter(item.storage, item.table_uri, rows.schema, item.layout, mark=item.mark)
    return writer.write([rows])


@dataclass(frozen=True)
class Completion:
    """Incomplete rows for tasks that locate old versions.

    ``rows``: the columns of ``schema`` as v0, v1 ...; a mask m0, m1 ... for each of the columns
    ``missing``; ``old``, the probe row of the old version; and ``to``, the number of the
    destination. ``missing``: column of the rows -> its name in the files that are searched.
    """

    schema: pa.Schema
    missing: Mapping[str, str]
    destinations: Mapping[int, Destination]
    rows: Payload


@dataclass(frozen=True)
class Completed:
    """The files written for one destination, with ``rows`` rows."""

    part: int
    files: list[WrittenFile]
    rows: int


def complete(
    completion: Completion, searched: Sequence[tuple[LocateItem, Hits]]
) -> Iterator[Completed]:
    """Complete and write the rows whose old versions were found in files of one table. The new
    versions may go to another table. Raises StorageError, ValueNotRepresentable; nothing is left
    behind then.
    """
    rows = completion.rows.table()
    old, to = rows["old"].to_numpy(), rows["to"].to_numpy()
    with RoutedWriter(completion.destinations, None, TARGET_FILE_BYTES) as writer:
        for where, hits in searched:
            position, index = hits.of(old)
            with open_parquet(where.table_uri, where.path) as parquet:
                source = _OldRows(completion, parquet, where.partition_values)
                for at, made in source.completed(rows, position, index):
                    writer.add(made, to[at])
    files: defaultdict[int, list[WrittenFile]] = defaultdict(list)
    for part, file in writer.files:
        files[part].append(file)
    for part, written in files.items():
        yield Completed(part, written, sum(file.rows for file in written))


@dataclass(frozen=True)
class _OldRows:
    """A file that holds old versions."""

    completion: Completion
    parquet: pq.ParquetFile
    partition_values: PartitionValues | None

    def completed(
        self, rows: pa.Table, position: Integers, index: Integers
    ) -> Iterator[tuple[Integers, pa.Table]]:
        """Yield the new versions of the old file's rows at ``position``, run by run: a run's part
        of ``index``, and its rows."""
        constant = self.partition_values or {}
        names = set(self.parquet.schema_arrow.names) - constant.keys()
        held = [name for name in self.completion.missing.values() if name in names]
        for here, old in read_rows(self.parquet, held, position):
            new = rows.take(pa.array(index[here]))
            yield index[here], self._filled(new, pa.Table.from_batches([old]))

    def _filled(self, new: pa.Table, old: pa.Table) -> pa.Table:
        schema, constant = self.completion.schema, self.partition_values or {}
        columns = {field.name: new[f"v{i}"] for i, field in enumerate(schema)}
        for i, (name, stored) in enumerate(self.completion.missing.items()):
            type = schema.field(name).type
            if stored in constant:
                value = partition_scalar(constant[stored], type)
                cells = pa.chunked_array([pa.repeat(value, new.num_rows)])
            elif stored in old.column_names:
                cells = old[stored].cast(type)
            else:
                continue
            columns[name] = take_either(new[f"m{i}"].to_numpy(), cells, columns[name])
        return pa.table(columns, schema=schema)
