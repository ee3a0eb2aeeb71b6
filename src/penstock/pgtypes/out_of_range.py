"""Replace values that the target's type lacks: infinity, decimal NaN, arrays of two dimensions.

By the policy for such values, a reader of a type's columns replaces them by NULL or the nearest
value, and counts them. Columns that identify rows are read without replacements (``find``): two
keys must not become the same one. Single values are examined only in a column that its family has
refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.cells import Cells
from penstock.errors import ValueNotRepresentable
from penstock.pgtypes.family import Family, Unfit
from penstock.pgtypes.gather import cells_of, strings
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import DATE, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.pgtypes.registry import find

ERROR: Final = "error"
NULL: Final = "null"
CLAMP: Final = "clamp"
TEXT: Final = "text"
OUT_OF_RANGE: Final = (ERROR, NULL, CLAMP, TEXT)
"""Policies: the subscription stops; NULL; the nearest value, NULL if there is none (NaN, arrays);
or text. With text, the subscription makes such columns as text, and existing ones stop it."""

_FIRST: Final = datetime.datetime(1, 1, 1)
_LAST: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)


class OutOfRange:
    """One policy, and the number of values that it has replaced."""

    def __init__(self, policy: str = ERROR) -> None:
        self.policy: Final = policy
        self._replaced = 0

    def find(self, type_oid: int) -> Family | Replacing:
        """Return the reader of a type."""
        family = find(type_oid)
        return family if self.policy in (ERROR, TEXT) else Replacing(family, self._instead)

    def take(self) -> int:
        """Return how many values were replaced, and reset the count."""
        replaced, self._replaced = self._replaced, 0
        return replaced

    def _instead(self, type_oid: int, error: ValueNotRepresentable, typmod: int, count: int) -> Any:
        self._replaced += count
        if self.policy == NULL or not isinstance(error, Unfit):
            return None
        return nearest(type_oid, error.value, typmod)


def nearest(type_oid: int, text: str, typmod: int) -> Any:
    """Return the value that replaces one that is too small or too large; None for none."""
    # A time in the publisher's zone may be in year 1 and still before it, in UTC.
    low = text.startswith(("-", "0001-")) or text.endswith(" BC")
    end = _FIRST if low else _LAST
    match type_oid:
        case oid if oid == DATE:
            return end.date()
        case oid if oid == TIMESTAMP:
            return end
        case oid if oid == TIMESTAMPTZ:
            return end.replace(tzinfo=datetime.UTC)
        case oid if oid == NUMERIC and text.lower() != "nan":
            shape = precision_and_scale(typmod)
            assert shape is not None, "a numeric that is kept as text holds every value"
            precision, scale = shape
            return Decimal((int(low), (9,) * precision, -scale))
    return None


_Instead = Callable[[int, ValueNotRepresentable, int, int], Any]
"""Type OID, error, typmod and number of values -> the value that replaces them."""


class Replacing:
    """A family's reader with replacements. Raises other errors only: ProtocolViolation."""

    def __init__(self, family: Family, instead: _Instead) -> None:
        self._family = family
        self._instead = instead
        self._oid = family.oids[0] if family.oids else 0

    def arrow(self, typmod: int) -> pa.DataType:
        """Return the family's Arrow type."""
        return self._family.arrow(typmod)

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in text format."""
        return self._column(self._family.text_column, cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in binary format."""
        return self._column(self._family.binary_column, cells, typmod)

    def copy_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells of the initial copy."""
        return self._column(self._family.copy_column, cells, typmod)

    def _column(
        self, read: Callable[[Cells, int], pa.Array], cells: Cells, typmod: int
    ) -> pa.Array:
        try:
            return read(cells, typmod)
        except ValueNotRepresentable:
            raws = strings(cells, pa.binary())
            return self._each(raws, lambda part: read(cells_of(part), typmod), typmod)

    def _each(self, raws: pa.Array, read: Callable[[pa.Array], pa.Array], typmod: int) -> pa.Array:
        """Read each different value once: usually the same one value does not fit."""
        encoded = raws.dictionary_encode()
        indices = encoded.indices
        counts = np.bincount(indices.drop_null().to_numpy(), minlength=len(encoded.dictionary))
        return self._halves(encoded.dictionary, counts, read, typmod).take(indices)

    def _halves(
        self,
        array: pa.Array,
        counts: np.ndarray,
        read: Callable[[pa.Array], pa.Array],
        typmod: int,
    ) -> pa.Array:
        """Read the values by halves, so that those that fit are read together."""
        try:
            return read(array)
        except ValueNotRepresentable as error:
            if len(array) == 1:
                value = self._instead(self._oid, error, typmod, int(counts[0]))
                return pa.array([value], self.arrow(typmod))
        half = len(array) // 2
        parts = [
            self._halves(array.slice(start, length), counts[start : start + length], read, typmod)
            for start, length in ((0, half), (half, len(array) - half))
        ]
        return pa.concat_arrays(parts)
