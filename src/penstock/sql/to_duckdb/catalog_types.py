"""Types of PostgreSQL's catalogs, and what holds their values in DuckDB (pg_type.dat).

In: type names as pg_type.typname has them (``_name`` is ``name[]``, ``char`` is ``"char"``). Out:
oid, length, DuckDB type. Values are written and read by ``penstock.pg_catalog``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import UndefinedObject

UNKNOWN: Final = "unknown"
INT2_FROM_0: Final = "_int2 from 0"
"""int2vector cast to int2[]: an array whose first subscript stays 0."""


@dataclass(frozen=True, slots=True)
class CatalogType:
    """``size``: typlen. ``held``: the DuckDB type of its values."""

    name: str
    oid: int
    size: int
    held: str


_SCALARS: Final = """
bool 16 1 1000 BOOLEAN
bytea 17 -1 1001 BLOB
char 18 1 1002 VARCHAR
name 19 64 1003 VARCHAR
int8 20 8 1016 BIGINT
int2 21 2 1005 SMALLINT
int4 23 4 1007 INTEGER
regproc 24 4 1008 BIGINT
text 25 -1 1009 VARCHAR
oid 26 4 1028 BIGINT
xid 28 4 1011 BIGINT
json 114 -1 199 VARCHAR
pg_node_tree 194 -1 0 VARCHAR
float4 700 4 1021 FLOAT
float8 701 8 1022 DOUBLE
inet 869 -1 1041 VARCHAR
aclitem 1033 16 1034 VARCHAR
bpchar 1042 -1 1014 VARCHAR
varchar 1043 -1 1015 VARCHAR
date 1082 4 1182 DATE
timestamp 1114 8 1115 TIMESTAMP
timestamptz 1184 8 1185 TIMESTAMP
interval 1186 16 1187 VARCHAR
numeric 1700 -1 1231 DECIMAL(38,6)
regprocedure 2202 4 2207 BIGINT
regoper 2203 4 2208 BIGINT
regoperator 2204 4 2209 BIGINT
regclass 2205 4 2210 BIGINT
regtype 2206 4 2211 BIGINT
record 2249 -1 2287 VARCHAR
anyarray 2277 -1 0 VARCHAR
void 2278 4 0 VARCHAR
uuid 2950 16 2951 VARCHAR
pg_lsn 3220 8 3221 UBIGINT
pg_ndistinct 3361 -1 0 VARCHAR
pg_dependencies 3402 -1 0 VARCHAR
regconfig 3734 4 3735 BIGINT
regdictionary 3769 4 3770 BIGINT
jsonb 3802 -1 3807 VARCHAR
regnamespace 4089 4 4090 BIGINT
regrole 4096 4 4097 BIGINT
regcollation 4191 4 4192 BIGINT
pg_mcv_list 5017 -1 0 VARCHAR
xid8 5069 8 271 BIGINT
"""

_TYPES: Final[dict[str, CatalogType]] = {
    UNKNOWN: CatalogType(UNKNOWN, 25, -1, "VARCHAR"),
    "int2vector": CatalogType("int2vector", 22, -1, "SMALLINT[]"),
    "oidvector": CatalogType("oidvector", 30, -1, "BIGINT[]"),
    INT2_FROM_0: CatalogType(INT2_FROM_0, 1005, -1, "SMALLINT[]"),
}
for _line in _SCALARS.strip().splitlines():
    _name, _oid, _size, _array, _held = _line.split()
    _TYPES[_name] = CatalogType(_name, int(_oid), int(_size), _held)
    if int(_array):
        _TYPES[f"_{_name}"] = CatalogType(f"_{_name}", int(_array), -1, f"{_held}[]")

_ELEMENTS: Final = {"int2vector": "int2", "oidvector": "oid", INT2_FROM_0: "int2"}
NAMED_TYPES: Final = frozenset(name for name in _TYPES if name.startswith("reg")) | {"pg_lsn"}
"""Types held as numbers and written as names: functions ``<type>in`` and ``<type>out`` know."""


def catalog_type(name: str) -> CatalogType:
    """The type of that name. Raises UndefinedObject (42704)."""
    found = _TYPES.get(name)
    if found is None:
        raise UndefinedObject(f'type "{name}" does not exist')
    return found


def element_type(name: str) -> str | None:
    """The type of an array's elements, None for what is no array."""
    if name in _ELEMENTS:
        return _ELEMENTS[name]
    return name[1:] if name.startswith("_") else None
