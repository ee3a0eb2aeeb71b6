"""A copy that is added to the rows of its target (copy_target = append), as PostgreSQL's COPY.

In: a copy whose files are staged, on tables that keep their rows. Out: one commit of each, or
PostgreSQL's error (23505) where a key is there; nothing of the copy is there then. Others, another
subscription too, may commit meanwhile: then the same files come after theirs, once their keys have
been looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.errors import CommitConflict
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.parts import Part
from penstock.pipeline.rows_with_keys import KeyedTable, columns_of_files, rows_with_keys
from penstock.pipeline.scan import ScanColumn
from penstock.pipeline.snapshot import CopySource
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import UniqueViolation

_TRIES: Final = 100
"""Times that others may commit to a table first."""


@dataclass(frozen=True)
class AddedCopy:
    """``constraint``: the name of the target's primary key, where the catalog has one."""

    spark: Spark
    source: CopySource
    constraint: str | None
    _seen: dict[str, Mapping[str, DataFile]] = field(default_factory=dict)

    def check(self) -> None:
        """Whether the keys may come. Raises UniqueViolation."""
        for part in self.source.parts:
            kept = part.table.kept
            self._check(part, kept)
            self._seen[part.table.uri] = {file.path: file for file in kept}

    def commit(self, table: DeltaTable, commit: Callable[[], object]) -> None:
        """``commit``: the table's own. Raises what that raises, CommitConflict where the table has
        other columns by now, and UniqueViolation."""
        for _ in range(_TRIES):
            try:
                commit()
                return
            except CommitConflict:
                table.reload_below()
            for part in self.source.parts:
                if part.table is table:
                    before, kept = self._seen[table.uri], table.kept
                    self._check(part, [f for f in kept if f != before.get(f.path)])
                    self._seen[table.uri] = {file.path: file for file in kept}
        commit()

    def _check(self, there: Part, files: Collection[DataFile]) -> None:
        """Keys of the copy in some files of a part."""
        relation = self.source.table.schema
        if not (relation.key and files):
            return
        names = tuple(there.names[name] for name in relation.key)
        schema = TableSchema(there.table.schema.columns, names)
        table = KeyedTable(there.table.storage, there.table.uri, schema)
        types = {column.name: column.type for column in relation.columns}
        for part in self.source.parts:
            columns = [
                ScanColumn(here, part.names[name], types[name])
                for name, here in zip(relation.key, names, strict=True)
            ]
            storage, uri = part.table.storage, part.table.uri
            for rows, _ in columns_of_files(storage, uri, part.table.added, columns):
                keys = rows.drop_null()
                found = rows_with_keys(table, files, keys, self.spark, None) if len(keys) else {}
                if found:
                    first = min(int(hits.probe.min()) for hits in found.values())
                    raise self._error(keys.slice(first, 1))

    def _error(self, row: pa.Table) -> UniqueViolation:
        """As the COPY of a table synchronization worker ends."""
        schema = self.source.table.schema
        name = self.constraint or f"{self.source.info.relation.name}_pkey"
        sources = ", ".join(map(quote_identifier, schema.source_key))
        cells = [text_output(column.combine_chunks())[0].as_py() for column in row.columns]
        values = ", ".join(cell.decode() for cell in cells)
        return UniqueViolation(
            f'duplicate key value violates unique constraint "{name}"',
            detail=f"Key ({sources})=({values}) already exists.",
            context=f"COPY {self.source.info.relation.name}",
        )
