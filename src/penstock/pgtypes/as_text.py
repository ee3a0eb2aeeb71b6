"""Columns whose target is text: each value as PostgreSQL prints it, whether or not its type here
could hold it.

In: cells. Out: strings. A publisher is asked for text where a target wants it; what has come in
binary all the same is read as its type and printed, so that a value which that does not hold is an
error there.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.cells import Cells
from penstock.pgtypes.family import TypeFamily
from penstock.pgtypes.pg_type import DATE, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.pgtypes.registry import element_oid, find
from penstock.pgtypes.text_output import text_output
from penstock.pgtypes.varlena import OUTPUT_TEXT

AS_TEXT: Final = 0
"""An oid that no type has: such a column is read as the text of its output function."""
_PARTLY: Final = frozenset({DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC})


def may_not_fit(type_oid: int, typmod: int) -> bool:
    """Whether PostgreSQL's type has values that ours has not: infinity, NaN, years before 1 and
    after 9999, arrays of other dimensions."""
    if pa.types.is_string(find(type_oid).arrow(typmod)):
        return False
    return type_oid in _PARTLY or element_oid(type_oid) is not None


class AsText:
    """Reads the cells of a type as text."""

    def __init__(self, family: TypeFamily) -> None:
        self._family = family

    def arrow(self, typmod: int) -> pa.DataType:
        """Whatever the type is."""
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in text format. Raises ValueNotRepresentable (22021: no UTF-8)."""
        return OUTPUT_TEXT.text_column(cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Cells in binary format. Raises as the family does."""
        return text_output(self._family.binary_column(cells, typmod)).cast(pa.string())
