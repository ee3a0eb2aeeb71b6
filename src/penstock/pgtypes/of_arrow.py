"""PostgreSQL types of columns that were not made by us (seen as Arrow types).

In: an Arrow type. Out: the type oid and modifier that a publication shows for it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock.pgtypes.registry import _ARRAY_OIDS

_OIDS: Final[dict[pa.DataType, int]] = {
    pa.int8(): 21,
    pa.int16(): 21,
    pa.int32(): 23,
    pa.int64(): 20,
    pa.float32(): 700,
    pa.float64(): 701,
    pa.bool_(): 16,
    pa.string(): 25,
    pa.binary(): 17,
    pa.date32(): 1082,
    pa.timestamp("us", "UTC"): 1184,
    pa.timestamp("us"): 1114,
}


def pg_type(arrow: pa.DataType) -> tuple[int, int]:
    """(type oid, typmod); text for what has no type of its own."""
    if pa.types.is_decimal(arrow):
        return 1700, ((arrow.precision << 16) | arrow.scale) + 4
    if pa.types.is_list(arrow):
        element, typmod = pg_type(arrow.value_type)
        return _ARRAY_OIDS.get(element, 1009), typmod
    return _OIDS.get(arrow, 25), -1
