"""A table's change batches, converted to the target's columns.

The ChangeBatches of one relation, in order and perhaps of several versions of its definition,
become ``Changes``. These are one run of old and new rows with the target's columns, and the cells
that are still unknown. ``penstock.pipeline.fold`` computes the run's net effect on the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.attribute import Attribute
from penstock.errors import ProtocolViolation, SchemaChanged
from penstock.lakehouse.conversion import converted, takes
from penstock.lakehouse.defaults import Draw, drawn, draws, filled, no_draw
from penstock.lakehouse.history_table import COMMIT_TIMESTAMP
from penstock.lakehouse.schema import DELETED_AT, Column, TableSchema
from penstock.lakehouse.schema_changes import is_wider
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pipeline.columns import Integers, Mask, take_either
from penstock.pipeline.conflict import shown_rows, shown_values
from penstock.pipeline.net_change import KEPT, LocalRows, Met, OriginDiffers, Skipped
from penstock.relation import Relation

INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
OLD_KEY: Final = ord("K")
OLD_ROW: Final = ord("O")
NOT_SENT: Final = "(not sent)"
"""The text shown for a value that the publisher did not send."""


Stamped = Callable[[Integers], Mapping[str, pa.Array]]
"""A function that makes the metadata columns of changes from the numbers of their messages."""


def unstamped(_sequence: Integers) -> Mapping[str, pa.Array]:
    """Return no metadata columns: the transactions of the changes are not known."""
    return {}


@dataclass(frozen=True)
class Changes:
    """Row changes of one table in order; row i of every part belongs to change i.

    ``sequence``: message numbers. ``new`` and ``old`` have the target's columns; ``old`` is None if
    no change has an old tuple. ``unchanged``: column -> mask of changes whose new cell is an
    unchanged TOASTed value that the old tuple lacks, too. ``stamps``: names of the metadata
    columns.
    """

    sequence: np.ndarray
    operation: np.ndarray
    old_kind: np.ndarray
    new: pa.Table
    old: pa.Table | None
    unchanged: Mapping[str, np.ndarray]
    stamps: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.operation)

    def take(self, kept: Mask) -> Changes:
        """Return the changes of the mask ``kept``, in order."""
        rows = pa.array(kept)
        return Changes(
            self.sequence[kept],
            self.operation[kept],
            self.old_kind[kept],
            self.new.filter(rows),
            None if self.old is None else self.old.filter(rows),
            {name: mask[kept] for name, mask in self.unchanged.items()},
            self.stamps,
        )

    def skipped(self, left_out: Mask, columns: Sequence[str]) -> Skipped:
        """Report the changes of a mask as skipped. ``columns`` identify their rows."""
        updates = left_out & (self.operation == UPDATE)
        deletes = left_out & (self.operation == DELETE)
        return Skipped(
            int(updates.sum()),
            int(deletes.sum()),
            self._identities(updates, columns),
            self._identities(deletes, columns),
            self.sequence[updates][:KEPT],
            self.sequence[deletes][:KEPT],
            self._sent(np.flatnonzero(updates)[:KEPT]),
        )

    def met(self, which: Mask, key: Sequence[str], local: LocalRows) -> Met:
        """Report changes that give a row the key of an existing row. ``local``: the existing rows,
        by positions of the changes."""
        updates = which & (self.operation == UPDATE)
        at = np.flatnonzero(which)[:KEPT]
        rows = self.new.take(pa.array(at))
        return Met(
            int(which.sum() - updates.sum()),
            int(updates.sum()),
            rows.select(key),
            self.sequence[at],
            self._sent(at),
            self._identities(which, key),
            self.operation[at] == UPDATE,
            tuple(local.get(each) for each in at.tolist()),
        )

    def differs(self, which: Mask, key: Sequence[str], local: LocalRows) -> OriginDiffers:
        """Report changes of rows that others have written. ``local``: the rows, by positions of the
        changes."""
        updates = which & (self.operation == UPDATE)
        at = np.flatnonzero(which)[:KEPT]
        return OriginDiffers(
            int(updates.sum()),
            int(which.sum() - updates.sum()),
            self._identities(which, key),
            self.sequence[at],
            self._sent(at),
            self.operation[at] == UPDATE,
            tuple(local.get(each) for each in at.tolist()),
        )

    def told(self, at: int, key: Sequence[str]) -> tuple[str, str | None]:
        """Return one change's new row as text and, if it is an UPDATE, the old row's key."""
        new = self.new.slice(at, 1).drop_columns(self.stamps)
        values = {name: NOT_SENT for name, mask in self.unchanged.items() if mask[at]}
        sent = {name: shown_values(new[name])[0] for name in new.column_names if name not in values}
        row = f"({', '.join((sent | values)[name] for name in new.column_names)})"
        if self.operation[at] != UPDATE:
            return row, None
        which = np.zeros(len(self), bool)
        which[at] = True
        return row, shown_rows(self._identities(which, key))[0]

    def _sent(self, at: np.ndarray) -> pa.Table:
        """Return new rows with NULL in the cells that were not sent (slot_store_data)."""
        rows = self.new.take(pa.array(at)).drop_columns(self.stamps)
        for name, mask in self.unchanged.items():
            rows = _without(rows, rows.column_names.index(name), mask[at])
        return rows

    def _identities(self, which: Mask, columns: Sequence[str]) -> pa.Table:
        """Return the identities of the first KEPT changes of the mask, each from its old tuple, or
        from the new one if no old tuple was sent."""
        at = np.flatnonzero(which)[:KEPT]
        new = self.new.select(columns).take(pa.array(at))
        if self.old is None:
            return new
        old = self.old.select(columns).take(pa.array(at))
        sent = self.old_kind[at] != 0
        return pa.Table.from_arrays(
            [take_either(sent, old[name], new[name]) for name in columns], schema=new.schema
        )


def restamped(rows: pa.Table, names: Sequence[str], source: Integers, of: pa.Table) -> pa.Table:
    """Return ``rows`` with metadata columns from ``of``, where row i takes those of source[i]."""
    for name in names:
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), of[name].take(pa.array(source)))
    return rows


def _without(rows: pa.Table, position: int, which: Mask) -> pa.Table:
    """Return the rows with NULL in the column at ``position`` where ``which`` is true."""
    values = rows.column(position)
    kept = pc.if_else(pa.array(~which), values, pa.nulls(len(values), values.type))
    return rows.set_column(position, rows.schema.field(position), kept)


def unify(
    table: str,
    schema: TableSchema,
    batches: Sequence[ChangeBatch],
    start: int,
    stamped: Stamped = unstamped,
    draw: Draw = no_draw,
) -> Changes:
    """Return all changes of ``batches`` with sequence >= ``start``, as one run in the target's
    columns.

    A column that a batch's relation lacks has its default in inserted rows (NULL if it was added
    later). In updated rows a column of the node's own keeps its value; in a table without a key it
    is NULL, also in the old rows to search for (slot_store_data). A generated column is NULL until
    the row is written. ``stamped`` makes the metadata columns, ``draw`` returns sequence values.
    Raises the errors of ``draw``; RelationChanged if a batch has a column that the target lacks or
    has with another type.
    """
    parts = [
        _map(table, schema, batch, int(np.searchsorted(batch.sequence, start)), stamped, draw)
        for batch in sorted(batches, key=_first_sequence)
    ]
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    empty = schema.arrow().empty_table()
    old = [part.old for part in parts]
    has_old = any(part is not None for part in old)
    return Changes(
        _concatenate([part.sequence for part in parts]),
        _concatenate([part.operation for part in parts]),
        _concatenate([part.old_kind for part in parts]),
        pa.concat_tables([empty, *(part.new for part in parts)]),
        pa.concat_tables(
            _nulls(schema, len(part)) if part.old is None else part.old for part in parts
        )
        if has_old
        else None,
        {
            name: _concatenate(
                [part.unchanged.get(name, np.zeros(len(part), bool)) for part in parts]
            )
            for name in {name for part in parts for name in part.unchanged}
        },
        stamps=tuple(column.name for column in schema.stamps),
    )


def _map(
    table: str,
    schema: TableSchema,
    batch: ChangeBatch,
    first: int,
    stamped: Stamped,
    draw: Draw,
) -> Changes:
    _check_columns(table, schema, batch.relation)
    rows = len(batch.operation) - first
    types = {attribute.name: attribute for attribute in batch.relation.attributes}
    inserted = batch.operation[first:] == INSERT
    new = _columns(table, schema, batch.new.slice(first), inserted, types, draw)
    old = batch.old if batch.old is None else batch.old.slice(first)
    none = np.zeros(rows, bool)
    old = None if old is None else _columns(table, schema, old, none, types, draw)
    old_kind = batch.old_kind[first:]
    unchanged = {}
    replica_key = set(batch.relation.key)
    sent = {attribute.name for attribute in batch.relation.attributes}
    if schema.stamps:
        stamps = stamped(batch.sequence[first:])
    for position, column in enumerate(schema.columns):
        if column.stamp:
            values = stamp_of(column, stamps, batch.operation[first:])
            if values is not None:
                new = new.set_column(position, new.schema.field(position), values)
            continue
        if column.attribute.generation is not None:
            continue  # computed once the row is complete
        if column.local and column.source not in sent:
            kept = batch.operation[first:] == UPDATE
            if not schema.key:
                new = _without(new, position, kept)
                old = None if old is None else _without(old, position, np.ones(rows, bool))
            elif kept.any():
                unchanged[column.name] = kept
            continue
        mask = batch.unchanged.get(column.source)
        if mask is None or not (mask := mask[first:]).any():
            continue
        if old is not None:
            known = old_kind == OLD_ROW
            if column.source in replica_key:
                known = known | (old_kind == OLD_KEY)
            filled = take_either(mask & known, old[column.name], new[column.name])
            new = new.set_column(position, new.schema.field(position), filled)
            mask = mask & ~known
        if mask.any():
            unchanged[column.name] = mask
    if any(name in unchanged for name in schema.key):
        raise ProtocolViolation(f'a change of table "{table}" does not give its row\'s key')
    stamp_names = tuple(column.name for column in schema.stamps)
    return Changes(
        *(batch.sequence[first:], batch.operation[first:], old_kind, new, old, unchanged),
        stamps=stamp_names,
    )


def stamp_of(
    column: Column, stamps: Mapping[str, pa.Array], operation: np.ndarray
) -> pa.Array | None:
    """Return a metadata column of changes, or None if its values are unknown. A DELETE has the
    value for the row that it leaves behind as a dead row."""
    if column.source != DELETED_AT:
        values = stamps.get(column.name)
        return None if values is None else values.cast(column.type)
    times = stamps.get(COMMIT_TIMESTAMP)
    if times is None:
        return None
    deleted = pa.array(operation == DELETE)
    return pc.if_else(deleted, times.cast(column.type), pa.scalar(None, column.type))


def _check_columns(table: str, schema: TableSchema, relation: Relation) -> None:
    known = {column.source for column in schema.columns}
    for attribute in relation.attributes:
        if attribute.name not in known:
            raise SchemaChanged(
                f'table "{table}" has no column for the publisher\'s column "{attribute.name}"'
            )


def _columns(
    table: str,
    schema: TableSchema,
    batch: pa.RecordBatch,
    inserted: Mask,
    types: Mapping[str, Attribute],
    draw: Draw,
) -> pa.Table:
    """Return the rows of a batch in the target's columns. ``inserted``: rows that get values of
    sequences; ``types``: the batch's columns."""
    arrays = [_column(table, column, batch, inserted, types, draw) for column in schema.columns]
    return pa.Table.from_arrays(arrays, schema=schema.arrow())


def _column(
    table: str,
    column: Column,
    batch: pa.RecordBatch,
    inserted: Mask,
    types: Mapping[str, Attribute],
    draw: Draw,
) -> pa.Array:
    position = batch.schema.get_field_index(column.source)
    if position < 0 and draws(column):
        return drawn(column, inserted, draw)
    if position < 0:
        # len(inserted), since a batch without columns does not know its number of rows.
        return filled(column, len(inserted), datetime.now(UTC))
    array = batch.column(position)
    if not column.own and is_wider(array.type, column.type):
        return array.cast(column.type)  # sent before the column became wider
    sent = types[column.source]
    fits = column.converts and takes(column, sent)
    if not fits and (column.converts or array.type != column.type):
        raise SchemaChanged(
            f'column "{column.source}" of table "{table}" has another type at the publisher now',
            detail=f"The target holds {column.type}, the publisher sends {array.type}.",
        )
    return converted(array, sent, column, table=table)


def _nulls(schema: TableSchema, count: int) -> pa.Table:
    arrays = [pa.nulls(count, column.type) for column in schema.columns]
    return pa.Table.from_arrays(arrays, schema=schema.arrow())


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _first_sequence(batch: ChangeBatch) -> int:
    return int(batch.sequence[0]) if len(batch.sequence) else 0
