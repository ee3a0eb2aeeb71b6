"""The only registry of families: a family for each type, and a type for each Arrow column.

A type's OID gives its family (built-in types have the fixed OIDs of pg_type.dat). An Arrow type
gives OID and typmod. An unknown OID, such as a domain's or an enum's, is read as the text of the
type's output function.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.pgtypes import pg_type
from penstock.pgtypes.array import ArrayFamily
from penstock.pgtypes.datetime import DateFamily, TimestampFamily
from penstock.pgtypes.family import Family
from penstock.pgtypes.floating import FloatFamily
from penstock.pgtypes.integer import BooleanFamily, IntegerFamily
from penstock.pgtypes.numeric import NumericFamily
from penstock.pgtypes.type_names import numeric_typmod
from penstock.pgtypes.uuid import UuidFamily
from penstock.pgtypes.variant import type_name
from penstock.pgtypes.varlena import OUTPUT_TEXT, ByteaFamily, JsonbFamily, TextFamily

_SCALARS: Final[tuple[Family, ...]] = (
    BooleanFamily(),
    IntegerFamily(pg_type.INT2, 2),
    IntegerFamily(pg_type.INT4, 4),
    IntegerFamily(pg_type.INT8, 8),
    FloatFamily(pg_type.FLOAT4, 4),
    FloatFamily(pg_type.FLOAT8, 8),
    NumericFamily(),
    TextFamily(pg_type.TEXT),
    TextFamily(pg_type.VARCHAR),
    TextFamily(pg_type.BPCHAR),
    TextFamily(pg_type.NAME),
    TextFamily(pg_type.JSON),
    JsonbFamily(pg_type.JSONB),
    ByteaFamily(),
    DateFamily(),
    TimestampFamily(pg_type.TIMESTAMP),
    TimestampFamily(pg_type.TIMESTAMPTZ),
    UuidFamily(),
)

_ARRAYS: Final = {oid: pg_type.types()[oid].array for family in _SCALARS for oid in family.oids}
_ELEMENTS: Final = {array: element for element, array in _ARRAYS.items()}

FAMILIES: Final[tuple[Family, ...]] = (
    *_SCALARS,
    *(ArrayFamily(_ARRAYS[oid], family) for family in _SCALARS for oid in family.oids),
)

_BY_OID: Final = {oid: family for family in FAMILIES for oid in family.oids}

_OF_ARROW: Final[dict[pa.DataType, int]] = {
    pa.bool_(): pg_type.BOOL,
    pa.binary(): pg_type.BYTEA,
    pa.int64(): pg_type.INT8,
    pa.int8(): pg_type.INT2,
    pa.int16(): pg_type.INT2,
    pa.int32(): pg_type.INT4,
    pa.string(): pg_type.TEXT,
    pa.float32(): pg_type.FLOAT4,
    pa.float64(): pg_type.FLOAT8,
    pa.date32(): pg_type.DATE,
    pa.timestamp("us"): pg_type.TIMESTAMP,
    pa.timestamp("us", "UTC"): pg_type.TIMESTAMPTZ,
}


def find(type_oid: int) -> Family:
    """Return the family of a type; types without one get that of the output function's text."""
    return _BY_OID.get(type_oid, OUTPUT_TEXT)


def arrow_type(type_oid: int, typmod: int) -> pa.DataType:
    """Return the Arrow type of a column, which is a string if no family fits. Never raises."""
    return find(type_oid).arrow(typmod)


def binary_supported(type_oid: int) -> bool:
    """Return whether the type can be read when the publisher is asked for the binary format."""
    return find(type_oid).binary


def array_oid(type_oid: int) -> int:
    """Return the array type of a type (pg_type.typarray). Raises KeyError if it has no family."""
    return _ARRAYS[type_oid]


def element_oid(type_oid: int) -> int | None:
    """Return the type of an array type's elements (pg_type.typelem), None for other types."""
    return _ELEMENTS.get(type_oid)


def type_of_arrow(arrow: pa.DataType) -> tuple[int, int]:
    """Return OID and typmod for a column of a table that Spark wrote, which PostgreSQL never saw.

    Subscribers see them, so they never change. Raises FeatureNotSupported for structs, maps and
    nested arrays.
    """
    if pa.types.is_decimal128(arrow):
        return pg_type.NUMERIC, numeric_typmod(arrow.precision, arrow.scale)
    if arrow in _OF_ARROW:
        return _OF_ARROW[arrow], -1
    if pa.types.is_list(arrow) and not pa.types.is_list(arrow.value_type):
        element, typmod = type_of_arrow(arrow.value_type)
        return array_oid(element), typmod
    raise FeatureNotSupported(f"columns of the type {type_name(arrow)} cannot be published")
