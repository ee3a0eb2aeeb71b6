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
from penstock.pgtypes.pg_type import types

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

_ARRAYS: Final = {oid: types()[oid].array for family in _SCALARS for oid in family.oids}
_ELEMENTS: Final = {array: element for element, array in _ARRAYS.items()}

FAMILIES: Final[tuple[TypeFamily, ...]] = (
    *_SCALARS,
    *(ArrayFamily(_ARRAYS[oid], family) for family in _SCALARS for oid in family.oids),
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
    return _ARRAYS[type_oid]


def element_oid(type_oid: int) -> int | None:
    """The type of an array type's elements (pg_type.typelem), None for other types."""
    return _ELEMENTS.get(type_oid)
