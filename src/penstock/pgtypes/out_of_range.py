"""Values that PostgreSQL has and the target's type has not: infinity, NaN in a decimal, arrays of
two dimensions.

In: what is to become of them, a type's family. Out: a reader of its columns that puts NULL or the
nearest value there, and counts. What identifies rows is read without (``find``): two keys must not
become the same one. Only a column that its family has refused is looked at value by value.
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
from penstock.pgtypes.family import TypeFamily, Unfit
from penstock.pgtypes.gather import cells_of, strings
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import DATE, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.pgtypes.registry import find

ERROR: Final = "error"
NULL: Final = "null"
CLAMP: Final = "clamp"
TEXT: Final = "text"
OUT_OF_RANGE: Final = (ERROR, NULL, CLAMP, TEXT)
"""What becomes of them: the subscription stops; NULL; the nearest value, NULL where there is none
(NaN, arrays); or columns that the subscription makes are text, and those that there are stop."""

_FIRST: Final = datetime.datetime(1, 1, 1)
_LAST: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)


class OutOfRange:
    """One way, and how many values have gone it."""

    def __init__(self, policy: str = ERROR) -> None:
        self.policy: Final = policy
        self._replaced = 0

    def find(self, type_oid: int) -> TypeFamily | Replacing:
        """The reader of a type."""
        family = find(type_oid)
        return family if self.policy in (ERROR, TEXT) else Replacing(family, self._instead)

    def take(self) -> int:
        """How many values were replaced; they are forgotten."""
        replaced, self._replaced = self._replaced, 0
        return replaced

    def _instead(self, type_oid: int, error: ValueNotRepresentable, typmod: int, count: int) -> Any:
        self._replaced += count
        if self.policy == NULL or not isinstance(error, Unfit):
            return None
        return nearest(type_oid, error.value, typmod)


def nearest(type_oid: int, text: str, typmod: int) -> Any:
    """The value that stands for one that is too small or too large; None: there is none."""
    low = text.startswith("-") or text.endswith(" BC")
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
            most = Decimal(10 ** shape[0] - 1).scaleb(-shape[1])
            return -most if low else most
    return None


_Instead = Callable[[int, ValueNotRepresentable, int, int], Any]
"""Type OID, error, typmod and number of values -> what stands for them."""


class Replacing:
    """A family's reader. Raises what is no matter of the value's range: ProtocolViolation."""

    def __init__(self, family: TypeFamily, instead: _Instead) -> None:
        self._family = family
        self._instead = instead
        self._oid = family.oids[0] if family.oids else 0

    def arrow(self, typmod: int) -> pa.DataType:
        """As the family's."""
        return self._family.arrow(typmod)

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in text format."""
        return self._column(self._family.text_column, cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in binary format."""
        return self._column(self._family.binary_column, cells, typmod)

    def copy_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells that the initial copy has read."""
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
        """Each different value once: as a rule it is one and the same that does not fit."""
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
        """Those that can be read are read together."""
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
