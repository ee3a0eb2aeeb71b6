"""Tuples of many rows as columns, and views of single rows (htup.h).

The lake gives each column as a typed Arrow array; a source without types gives PostgreSQL's output
text. The text of typed values is made when it is first needed. Four cases are distinguished (law
4): a value, NULL, an unchanged TOAST value that was not sent, and a column that is never sent, such
as non-key columns of an old tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.decoding.relation_data import RelationData
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.text_output import text_output

Mask = NDArray[np.bool_]
_FEW: Final = 32


class Unsent(Enum):
    """The mark in a tuple for a value that is missing and not NULL."""

    UNCHANGED_TOAST = "u"
    NOT_SENT = "-"


class TupleColumn:
    """One column of ``n`` rows, with ``values``, ``text`` or both. Both are null where the value is
    NULL or ``unchanged`` is true. ``text`` has Arrow strings, as the type's output function prints
    values."""

    __slots__ = ("_binary", "_list", "_text", "_type", "unchanged", "values")

    def __init__(
        self,
        values: pa.Array | None = None,
        *,
        text: pa.Array | None = None,
        type_oid: int = 0,
        typmod: int = -1,
        unchanged: Mask | None = None,
    ) -> None:
        if values is None and text is None:
            raise ValueError("a column has values or text")
        self.values = values
        self.unchanged = unchanged if unchanged is not None and unchanged.any() else None
        self._text = text
        self._type = (type_oid, typmod)
        self._list: list[str | None] | None = None
        self._binary: list[bytes | None] | None = None

    @property
    def text(self) -> pa.Array:
        """The text, as Arrow strings. Raises FeatureNotSupported for types that cannot be
        published."""
        if self._text is None:
            self._text = text_output(self.values, *self._type).cast(pa.string())
        return self._text

    def text_at(self, row: int) -> str | None:
        """Return one row's text, for plugins that go row by row. The first call converts the whole
        column."""
        if self._list is None:
            self._list = self._few() or self.text.to_pylist()
        return self._list[row]

    def _few(self) -> list[str | None] | None:
        """Return the texts of a short column whose type needs no formatting, otherwise None. One
        call of Arrow costs as much as a hundred values here."""
        values = self.values
        if values is None or self._text is not None or len(values) > _FEW:
            return None
        if pa.types.is_string(values.type) or pa.types.is_integer(values.type):
            return [None if value is None else str(value) for value in values.to_pylist()]
        return None

    def binary_at(self, row: int) -> bytes | None:
        """Return the result of the type's send function; None for NULL, or without typed values."""
        if self._binary is None:
            if self.values is None or not has_binary_output(self._type[0], self.values.type):
                return None
            self._binary = binary_output(self.values, *self._type).to_pylist()
        return self._binary[row]

    def slice(self, offset: int, length: int) -> TupleColumn:
        """Return a run of rows, without a copy."""
        return TupleColumn(
            None if self.values is None else self.values.slice(offset, length),
            text=None if self._text is None else self._text.slice(offset, length),
            type_oid=self._type[0],
            typmod=self._type[1],
            unchanged=None if self.unchanged is None else self.unchanged[offset : offset + length],
        )

    @property
    def nbytes(self) -> int:
        """The bytes of values and text so far, roughly."""
        arrays = [a for a in (self.values, self._text) if a is not None]
        return sum(int(array.nbytes) for array in arrays)


class TupleColumns:
    """Tuples of ``rows`` rows, one column for each of the relation's attributes, in their order.
    None stands for a column that is not sent."""

    __slots__ = ("columns", "relation", "rows")

    def __init__(
        self, relation: RelationData, columns: Sequence[TupleColumn | None], rows: int
    ) -> None:
        if len(columns) != len(relation.attributes):
            raise ValueError("a column for each attribute")
        self.relation: Final = relation
        self.columns: Final = tuple(columns)
        self.rows: Final = rows

    @classmethod
    def typed(
        cls,
        relation: RelationData,
        arrays: Sequence[pa.Array | None],
        rows: int,
        unchanged: Mapping[str, Mask] | None = None,
    ) -> TupleColumns:
        """Make tuples from Arrow arrays in the form of ``pgtypes``, None for a column not sent.
        ``unchanged`` is by column name; it is true for TOAST values that were not sent."""
        masks = unchanged or {}
        columns = [
            None
            if array is None
            else TupleColumn(
                array, type_oid=a.type_oid, typmod=a.typmod, unchanged=masks.get(a.name)
            )
            for a, array in zip(relation.attributes, arrays, strict=True)
        ]
        return cls(relation, columns, rows)

    @classmethod
    def texts(
        cls,
        relation: RelationData,
        arrays: Sequence[pa.Array | None],
        rows: int,
        unchanged: Mapping[str, Mask] | None = None,
    ) -> TupleColumns:
        """Make tuples from PostgreSQL's output text, for sources that have nothing else."""
        masks = unchanged or {}
        columns = [
            None if array is None else TupleColumn(text=array, unchanged=masks.get(a.name))
            for a, array in zip(relation.attributes, arrays, strict=True)
        ]
        return cls(relation, columns, rows)

    def __len__(self) -> int:
        return self.rows

    def row(self, number: int) -> Tuple:
        """Return a view of one row."""
        return Tuple(self, number)

    def slice(self, offset: int, length: int) -> TupleColumns:
        """Return a run of rows, without a copy."""
        columns = [None if c is None else c.slice(offset, length) for c in self.columns]
        return TupleColumns(self.relation, columns, min(length, self.rows - offset))

    @property
    def nbytes(self) -> int:
        """The bytes of the columns, roughly."""
        return sum(c.nbytes for c in self.columns if c is not None)


class Tuple:
    """A view of one row. Indexes are those of the relation's attributes."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: TupleColumns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __len__(self) -> int:
        return len(self._columns.columns)

    def text(self, index: int) -> str | Unsent | None:
        """Return PostgreSQL's output text, None for NULL."""
        column = self._columns.columns[index]
        if column is None:
            return Unsent.NOT_SENT
        if column.unchanged is not None and column.unchanged[self._row]:
            return Unsent.UNCHANGED_TOAST
        return column.text_at(self._row)

    def binary(self, index: int) -> bytes | None:
        """Return the value in binary format; None if ``text`` has no value, or the type or the
        source has only text."""
        column = self._columns.columns[index]
        return None if column is None else column.binary_at(self._row)

    def value(self, index: int) -> Any:
        """Return the Python value of the lake's type, None for NULL, or an ``Unsent``. If the
        source has only text, return the text."""
        column = self._columns.columns[index]
        if column is None:
            return Unsent.NOT_SENT
        if column.unchanged is not None and column.unchanged[self._row]:
            return Unsent.UNCHANGED_TOAST
        if column.values is None:
            return column.text_at(self._row)
        return column.values[self._row].as_py()


class Detoasted(Tuple):
    """A new row in which unchanged TOAST values are taken from the old row, if it has them."""

    __slots__ = ("_old",)

    def __init__(self, new: Tuple, old: Tuple) -> None:
        super().__init__(new._columns, new._row)
        self._old = old

    def text(self, index: int) -> str | Unsent | None:
        return self._old.text(index) if self._is_old(index) else super().text(index)

    def binary(self, index: int) -> bytes | None:
        return self._old.binary(index) if self._is_old(index) else super().binary(index)

    def value(self, index: int) -> Any:
        return self._old.value(index) if self._is_old(index) else super().value(index)

    def _is_old(self, index: int) -> bool:
        unchanged = super().text(index) is Unsent.UNCHANGED_TOAST
        return unchanged and isinstance(self._old.text(index), str)
