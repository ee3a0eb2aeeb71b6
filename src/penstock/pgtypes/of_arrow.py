"""The PostgreSQL type that a column has which no PostgreSQL has made: a table that Spark wrote.

In: an Arrow type. Out: type oid and typmod, which are a part of what subscribers see of a table, so
they never change.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.pgtypes.pg_type import NUMERIC
from penstock.pgtypes.registry import array_oid
from penstock.pgtypes.type_names import numeric_typmod

_OIDS: Final[dict[pa.DataType, int]] = {
    pa.bool_(): 16,
    pa.binary(): 17,
    pa.int64(): 20,
    pa.int8(): 21,
    pa.int16(): 21,
    pa.int32(): 23,
    pa.string(): 25,
    pa.float32(): 700,
    pa.float64(): 701,
    pa.date32(): 1082,
    pa.timestamp("us"): 1114,
    pa.timestamp("us", "UTC"): 1184,
}


def pg_type(arrow: pa.DataType) -> tuple[int, int]:
    """(type oid, typmod). Raises FeatureNotSupported for structs, maps and nested arrays."""
    if pa.types.is_decimal128(arrow):
        return NUMERIC, numeric_typmod(arrow.precision, arrow.scale)
    if arrow in _OIDS:
        return _OIDS[arrow], -1
    if pa.types.is_list(arrow) and not pa.types.is_list(arrow.value_type):
        element, typmod = pg_type(arrow.value_type)
        return array_oid(element), typmod
    raise FeatureNotSupported(f"columns of the type {arrow} cannot be published")
