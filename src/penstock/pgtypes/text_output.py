"""Arrow columns as PostgreSQL prints them: the output functions of all types (utils/adt).

The texts are those of a session with datestyle ISO, intervalstyle postgres, bytea_output hex,
extra_float_digits above 0 and the time zone UTC; subscribers set these.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.cells import Cells
from penstock.errors import FeatureNotSupported
from penstock.pgtypes.datetime import date_text, timestamp_text
from penstock.pgtypes.family import Family
from penstock.pgtypes.floating import float_text
from penstock.pgtypes.numeric import decimal_text
from penstock.pgtypes.pg_type import BOOL, BPCHAR, DATE, INET, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.pgtypes.registry import element_oid, find
from penstock.pgtypes.variant import VARIANT, variant_text
from penstock.pgtypes.varlena import OUTPUT_TEXT, bytea_text

_QUOTED: Final = r'^$|^(?i:null)$|[{}",\\\s\v]'
"""Elements that need quotes. RE2's blanks lack the vertical tab, which PostgreSQL's have."""


def text_output(array: pa.Array, type_oid: int = 0, typmod: int = -1) -> pa.Array:
    """Return the text of each value, null for NULL.

    Columns that are kept as PostgreSQL's text pass through. Type oid and typmod are unused, since
    the Arrow type is enough. Raises FeatureNotSupported, ValueNotRepresentable.
    """
    if isinstance(array, pa.ChunkedArray):
        return pa.chunked_array(map(text_output, array.chunks), pa.binary())
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return bytea_text(array.cast(pa.binary()))
    return _text(array).cast(pa.binary())


def text_cast(array: pa.Array, type_oid: int = 0, typmod: int = -1) -> pa.Array:
    """Return the text of ``value::text``, which for three types is not the output function's."""
    text = text_output(array, type_oid, typmod)
    if type_oid not in (BOOL, INET, BPCHAR):
        return text
    text = text.cast(pa.string())
    if type_oid == BOOL:
        return pc.if_else(pc.equal(text, "t"), "true", "false").cast(pa.binary())
    if type_oid == BPCHAR:
        return pc.utf8_rtrim(text, " ").cast(pa.binary())
    netmask = pc.if_else(pc.match_substring(text, ":"), "/128", "/32")
    whole = pc.binary_join_element_wise(text, netmask, "")
    return pc.if_else(pc.match_substring(text, "/"), text, whole).cast(pa.binary())


def _text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind):
        return array
    if pa.types.is_large_string(kind) or pa.types.is_integer(kind):
        return pc.cast(array, pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(array, "t", "f")
    for matches, print_ in _BY_KIND:
        if matches(kind):
            return print_(array)
    raise FeatureNotSupported(f"columns of the type {kind} cannot be published")


def _list(array: pa.Array) -> pa.Array:
    values = _element_text(array.flatten())
    quotes = pc.match_substring_regex(values, _QUOTED)
    if pc.any(quotes).as_py():
        escaped = pc.replace_substring_regex(values, r'(["\\])', r"\\\1")
        quoted = pc.binary_join_element_wise('"', escaped, '"', "")
        values = pc.if_else(quotes, quoted, values)
    values = pc.fill_null(values, "NULL")
    counts = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cast(pc.cumulative_sum(counts), pa.int32())]
    )
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, values), ",")
    text = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(pc.is_valid(array), text, pa.scalar(None, pa.string()))


def _is_variant(kind: pa.DataType) -> bool:
    return bool(kind == VARIANT)


def _element_text(values: pa.Array) -> pa.Array:
    if pa.types.is_binary(values.type):
        return text_output(values).cast(pa.string())
    return _text(values)


_BY_KIND: Final = (
    (pa.types.is_floating, float_text),
    (pa.types.is_decimal, decimal_text),
    (pa.types.is_date, date_text),
    (pa.types.is_timestamp, timestamp_text),
    (pa.types.is_list, _list),
    (_is_variant, variant_text),
)


# Columns with text as target: values as PostgreSQL prints them, even beyond what our type holds. A
# publisher is asked for text if a target wants it. If it sends binary nevertheless, the value is
# first read as the type here, so a value beyond this type is an error.

AS_TEXT: Final = 0
"""An oid that no type has: such a column is read as the text of its output function."""
_PARTLY: Final = frozenset({DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC})


def may_not_fit(type_oid: int, typmod: int) -> bool:
    """Return whether PostgreSQL's type has values that ours lacks: infinity, NaN, years before 1
    and after 9999, arrays of other dimensions."""
    if pa.types.is_string(find(type_oid).arrow(typmod)):
        return False
    return type_oid in _PARTLY or element_oid(type_oid) is not None


class AsText:
    """A reader of a type's cells as text."""

    def __init__(self, family: Family) -> None:
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
