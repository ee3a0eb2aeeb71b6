"""Cells of a relation's tuples to one Arrow record batch.

In: what ``tuple_walk`` found, for one relation. Out: columns of the relation's types. Cells of one
column may come as text in one row and as binary in the next. How a type reads its bytes is left to
whoever offers ``ColumnReader`` (``penstock.pgtypes``), since rooms of one floor do not know one
another. Table and column are added to its errors here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.pgoutput.tuple_walk import BINARY, TEXT, CellColumn
from penstock.relation import Attribute, Relation, ReplicaIdentity


class ColumnReader(Protocol):
    """The part of a type family that decoding needs (``penstock.pgtypes.TypeFamily``)."""

    def arrow(self, typmod: int) -> pa.DataType:
        """What a column becomes."""

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in text format."""

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in binary format."""


FindReader = Callable[[int], ColumnReader]
"""Type OID to its reader."""
ReadersInstead = Callable[[Relation], Mapping[str, ColumnReader]]
"""Readers of some of a relation's columns, by their names, whatever their types."""


@dataclass(frozen=True)
class Readers:
    """Of columns that identify rows, and of all others. With REPLICA IDENTITY FULL all are among
    the others: a row is known by what is read of it."""

    others: FindReader
    key: FindReader
    instead: ReadersInstead = lambda relation: {}

    def of(self, relation: Relation) -> Sequence[ColumnReader]:
        """The reader of each column."""
        instead = self.instead(relation)
        return [instead.get(a.name) or self._usual(relation, a) for a in relation.attributes]

    def _usual(self, relation: Relation, attribute: Attribute) -> ColumnReader:
        full = relation.replica_identity is ReplicaIdentity.FULL
        identifies = attribute.name in relation.key and not full
        return (self.key if identifies else self.others)(attribute.type_oid)


def record_batch(
    relation: Relation,
    columns: Sequence[CellColumn],
    rows: int,
    buffer: NDArray[np.uint8],
    find: Readers,
) -> pa.RecordBatch:
    """One column per attribute, in the relation's order and names.

    Raises ValueNotRepresentable and ProtocolViolation with table and column as detail.
    """
    if not columns:
        nothing = pa.Array.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(nothing)
    arrays = []
    readers = find.of(relation)
    for attribute, reader, column in zip(relation.attributes, readers, columns, strict=True):
        try:
            arrays.append(_array(reader, attribute.typmod, column, buffer))
        except (ValueNotRepresentable, ProtocolViolation) as error:
            raise _located(error, relation, attribute) from error
    return pa.RecordBatch.from_arrays(arrays, [a.name for a in relation.attributes])


def _array(
    reader: ColumnReader, typmod: int, column: CellColumn, buffer: NDArray[np.uint8]
) -> pa.Array:
    text, binary = column.mask(TEXT), column.mask(BINARY)
    if not binary.any():
        if not text.any():
            return pa.nulls(len(text), reader.arrow(typmod))
        return reader.text_column(_cells(buffer, column, text), typmod)
    if not text.any():
        return reader.binary_column(_cells(buffer, column, binary), typmod)
    return _mixed(reader, typmod, column, buffer)


def _cells(buffer: NDArray[np.uint8], column: CellColumn, present: NDArray[np.bool_]) -> Cells:
    return Cells(buffer, column.start, column.length, None if present.all() else ~present)


def _mixed(
    reader: ColumnReader, typmod: int, column: CellColumn, buffer: NDArray[np.uint8]
) -> pa.Array:
    """Both formats in one column: read each on its own, then put the rows in order."""
    text, binary = column.mask(TEXT), column.mask(BINARY)
    parts = [
        reader.text_column(Cells(buffer, column.start[text], column.length[text]), typmod),
        reader.binary_column(Cells(buffer, column.start[binary], column.length[binary]), typmod),
    ]
    order = np.zeros(len(text), np.int64)
    order[text] = np.arange(len(parts[0]))
    order[binary] = len(parts[0]) + np.arange(len(parts[1]))
    return pa.concat_arrays(parts).take(pa.array(order, mask=~(text | binary)))


def _located(
    error: ValueNotRepresentable | ProtocolViolation, relation: Relation, attribute: Attribute
) -> ValueNotRepresentable | ProtocolViolation:
    where = f'Table "{relation.qualified_name}", column "{attribute.name}".'
    detail = f"{where} {error.detail}" if error.detail else where
    return error.changed(detail=detail, column=attribute.name)
