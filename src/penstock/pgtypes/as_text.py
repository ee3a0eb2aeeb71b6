"""Columns with text as target: values as PostgreSQL prints them, even beyond what our type holds.

A publisher is asked for text if a target wants it. If it sends binary all the same, the value is
first read as the type here, so that a value beyond this type is an error.
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
    """Tell whether PostgreSQL's type has values that ours lacks: infinity, NaN, years before 1 and
    after 9999, arrays of other dimensions."""
    if pa.types.is_string(find(type_oid).arrow(typmod)):
        return False
    return type_oid in _PARTLY or element_oid(type_oid) is not None


class AsText:
    """A reader of a type's cells as text."""

    def __init__(self, family: TypeFamily) -> None:
        self._family = family

    def arrow(self, typmod: int) -> pa.DataType:
        """Return string, whatever the type is."""
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in text format. Raises ValueNotRepresentable (22021) for invalid UTF-8."""
        return OUTPUT_TEXT.text_column(cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in binary format. Raises as the family does."""
        return text_output(self._family.binary_column(cells, typmod)).cast(pa.string())
