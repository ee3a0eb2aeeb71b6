"""Which family reads which type: the one place where families are registered.

In: a type's OID (pg_type.dat; built-in types have fixed ones). Out: its family. An OID that is not
here, a domain's or an enum's for instance, is read as the text of the type's output function.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.pgtypes import boolean, bytea, datetime, floating, integer, json, numeric, text, uuid
from penstock.pgtypes.array import ArrayFamily
from penstock.pgtypes.family import TypeFamily

_SCALARS: Final[tuple[TypeFamily, ...]] = (
    *integer.families(),
    *floating.families(),
    *numeric.families(),
    *boolean.families(),
    *text.families(),
    *bytea.families(),
    *datetime.families(),
    *uuid.families(),
    *json.families(),
)

_ARRAY_OIDS: Final = {
    16: 1000,
    17: 1001,
    19: 1003,
    20: 1016,
    21: 1005,
    23: 1007,
    25: 1009,
    114: 199,
    700: 1021,
    701: 1022,
    1042: 1014,
    1043: 1015,
    1082: 1182,
    1114: 1115,
    1184: 1185,
    1700: 1231,
    2950: 2951,
    3802: 3807,
}
"""pg_type.typarray of each scalar type."""
_ELEMENT_OIDS: Final = {array: element for element, array in _ARRAY_OIDS.items()}

FAMILIES: Final[tuple[TypeFamily, ...]] = (
    *_SCALARS,
    *(ArrayFamily(_ARRAY_OIDS[oid], family) for family in _SCALARS for oid in family.oids),
)

_BY_OID: Final = {oid: family for family in FAMILIES for oid in family.oids}


def find(type_oid: int) -> TypeFamily:
    """The family of a type; that of the output function's text for every type without one."""
    return _BY_OID.get(type_oid, text.OUTPUT_TEXT)


def arrow_type(type_oid: int, typmod: int) -> pa.DataType:
    """What a column of this type becomes. Raises nothing: the last resort is a string."""
    return find(type_oid).arrow(typmod)


def binary_supported(type_oid: int) -> bool:
    """Whether the type can be read when the publisher is asked for the binary format."""
    return find(type_oid).binary


def array_oid(type_oid: int) -> int:
    """The type of arrays of a type (pg_type.typarray). Raises KeyError where there is no family."""
    return _ARRAY_OIDS[type_oid]


def element_oid(type_oid: int) -> int | None:
    """The type of an array type's elements (pg_type.typelem), None for other types."""
    return _ELEMENT_OIDS.get(type_oid)
