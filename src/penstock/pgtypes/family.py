"""The interface of every type family, and its error for a value that does not fit.

A family never names table and column: the decoder of a relation adds them as detail.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import pyarrow as pa

from penstock.cells import Cells
from penstock.errors import ProtocolViolation, ValueNotRepresentable

_SHOWN = 100
CORRECT: Final = (
    "Correct the value at the publisher, or leave it out with a row filter or a column list of the "
    "publication. Or set the subscription's option out_of_range to null or clamp; or to text, and "
    "copy the table again."
)
"""The hint for a value that the target cannot hold."""


class Unfit(ValueNotRepresentable):
    """A value that the type allows and the target cannot hold."""

    value: str = ""
    """The text of the value."""


class Family:
    """PostgreSQL types that become the same Arrow type in the same way.

    ``name``: as format_type() prints it. ``oids``: the pg_type.oid of each type of this family; ()
    if it takes all other types. ``binary``: the family can read the binary format, and the initial
    copy uses it unless ``copied_as_text``.
    """

    name: str
    oids: tuple[int, ...]
    binary: bool = True

    def arrow(self, typmod: int) -> pa.DataType:
        """Return the Arrow type of a column of this type."""
        raise NotImplementedError

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in text format. Raises ValueNotRepresentable, ProtocolViolation."""
        raise NotImplementedError

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in binary format (the type's send function). Raises as ``text_column``."""
        raise NotImplementedError

    def text_value(self, raw: bytes, typmod: int) -> Any:
        """Read one value in text format; equals ``text_column`` with ``as_py()``."""
        raise NotImplementedError

    def binary_value(self, raw: bytes, typmod: int) -> Any:
        """Read one value in binary format; equals ``binary_column`` with ``as_py()``."""
        raise NotImplementedError

    def copied_as_text(self, typmod: int) -> bool:
        """Return whether the initial copy asks the server for the text of each value."""
        return False

    def copy_expression(self, column_sql: str, typmod: int) -> str:
        """Return a SELECT expression for a quoted column; ``copy_column`` reads its binary format.

        Some expressions yield text, so the session needs ``datestyle=ISO``,
        ``intervalstyle=postgres`` and ``extra_float_digits=3`` as every subscriber sets them.
        """
        return f"{column_sql}::text" if self.copied_as_text(typmod) else column_sql

    def copy_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells of ``copy_expression`` in binary format. Raises as ``text_column``."""
        by_text = self.copied_as_text(typmod)
        return self.text_column(cells, typmod) if by_text else self.binary_column(cells, typmod)

    def check_text(self, cells: Cells, wrong: int, typmod: int) -> None:
        """Raise the error of the cell ``wrong``, which a kernel could not read; -1: there is none.
        ``text_value`` knows why."""
        if wrong >= 0:
            self.text_value(cells.raw(wrong) or b"", typmod)
            raise self.malformed_text(cells.raw(wrong) or b"")

    def refuse_text(self, cells: Cells, typmod: int) -> NoReturn:
        """Raise the error of the first bad value in a column that could not be read as a whole."""
        for index in range(len(cells)):
            raw = cells.raw(index)
            if raw is not None:
                self.text_value(raw, typmod)
        raise ProtocolViolation(f"invalid input syntax for type {self.name}", sqlstate="22P02")

    def malformed_text(self, raw: bytes) -> ProtocolViolation:
        """Return PostgreSQL's own error of an input function."""
        return ProtocolViolation(
            f'invalid input syntax for type {self.name}: "{shown(raw)}"', sqlstate="22P02"
        )

    def malformed_binary(self) -> ProtocolViolation:
        """Return PostgreSQL's own error of a receive function."""
        return ProtocolViolation(
            "incorrect binary data format", detail=f"Type: {self.name}.", sqlstate="22P03"
        )

    def unfit(self, value: object, sqlstate: str = "22003") -> Unfit:
        """Return the error for a value that the target cannot hold."""
        error = Unfit(
            f'value "{shown(value)}" of type {self.name} cannot be represented in the target',
            hint=CORRECT,
            sqlstate=sqlstate,
        )
        error.value = value.decode() if isinstance(value, bytes) else str(value)
        return error


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
