"""Character types (varlena.c, varchar.c, name.c), and the text of every type without a family.

text, varchar(n), char(n) with its trailing blanks, and name have the same bytes in text and in
binary format. All other types (enums, domains, ranges, composites, network, geometric, interval,
time, xml, extensions ...) stay what their output function prints; their binary format cannot be
read here.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.cells import Cells
from penstock.errors import ValueNotRepresentable
from penstock.pgtypes.family import Family, shown, storage
from penstock.pgtypes.gather import strings


class TextFamily(Family):
    """Bytes in the client encoding, which is always UTF8."""

    def __init__(self, name: str, *oids: int) -> None:
        self.name = name
        self.oids = oids

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        return utf8_column(cells)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        return utf8_column(cells)

    def text_value(self, raw: bytes, typmod: int) -> str:
        return utf8_value(raw)

    def binary_value(self, raw: bytes, typmod: int) -> str:
        return utf8_value(raw)

    def copy_column(self, array: pa.Array, typmod: int) -> pa.Array:
        return storage(array).cast(pa.string())


class OutputTextFamily(TextFamily):
    """Every type that nobody else reads: the text of its output function."""

    binary = False

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        raise self.malformed_binary()

    def binary_value(self, raw: bytes, typmod: int) -> str:
        raise self.malformed_binary()

    def copy_expression(self, column_sql: str, typmod: int) -> str:
        # A cast to text is not the output function: inet gains a netmask, a domain over char(n)
        # loses blanks, one over boolean becomes "true". format() calls the output function;
        # num_nulls() tells NULL from a composite value whose fields are all NULL.
        return (
            f"CASE WHEN pg_catalog.num_nulls({column_sql}) = 0"
            f" THEN pg_catalog.format('%s', {column_sql}) END"
        )


def utf8_column(cells: Cells) -> pa.Array:
    """Cells as strings. Raises ValueNotRepresentable (22021) where they are not UTF-8.

    A database with encoding SQL_ASCII sends whatever it has, unconverted.
    """
    column = strings(cells, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index in range(len(cells)):
            utf8_value(cells.raw(index) or b"")
        raise
    return column


def utf8_value(raw: bytes) -> str:
    """One string. Raises ValueNotRepresentable (22021) where it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueNotRepresentable(
            f'invalid byte sequence for encoding "UTF8": "{shown(raw)}"',
            hint="The publisher's database holds bytes that are not valid in its encoding.",
            sqlstate="22021",
        ) from None


OUTPUT_TEXT = OutputTextFamily("text")


def families() -> tuple[Any, ...]:
    """Each type has a family of its own, since array types differ too."""
    return (
        TextFamily("text", 25),
        TextFamily("character varying", 1043),
        TextFamily("character", 1042),
        TextFamily("name", 19),
    )
