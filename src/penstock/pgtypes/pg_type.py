"""PostgreSQL 18's own types (pg_type.dat), and the row of any other type.

``pg_type.tsv``, which tools/dump_catalogs.py writes from a server, is read as frozen rows by oid
and by name. Types that code refers to have constants for their oids (pg_type_d.h). Composite types,
domains and their arrays are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_TRUE_ARRAYS = frozenset(("array_in", "int2vectorin", "oidvectorin"))


@dataclass(frozen=True, slots=True)
class Type:
    """A row of pg_type, functions by name. ``sql_name``: as format_type prints it.

    ``typelem`` is set for every type with subscripts, ``element`` for true arrays only. ``schema``
    and ``labels`` are set for other types than PostgreSQL's own, ``labels`` only for enums.
    """

    oid: int
    name: str
    sql_name: str
    length: int
    by_value: bool
    kind: str
    category: str
    preferred: bool
    delimiter: str
    typelem: int
    array: int
    align: str
    storage: str
    collation: int
    input: str
    output: str
    receive: str
    receive_oid: int
    schema: str = "pg_catalog"
    labels: tuple[str, ...] = ()

    @property
    def element(self) -> int:
        """The oid of the elements of a true array, 0 for other types (get_element_type).

        int2vector and oidvector are such arrays, though their texts are not an array's.
        """
        return self.typelem if self.input in _TRUE_ARRAYS else 0

    @property
    def is_vector(self) -> bool:
        """True for a type with elements, but its own name and text (format_type: typstorage)."""
        return bool(self.element) and self.storage == "p"


@cache
def types() -> Mapping[int, Type]:
    """Return all types by oid."""
    text = Path(__file__).with_suffix(".tsv").read_text("utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return {type_.oid: type_ for type_ in map(_type, rows)}


@cache
def types_by_name() -> Mapping[str, Type]:
    """Return all types by their name in pg_type."""
    return {type_.name: type_ for type_ in types().values()}


def _type(row: list[str]) -> Type:
    oid, name, sql_name, length, by_value, kind, category, preferred, delimiter, *rest = row
    typelem, array, align, storage, collation, input_, output, receive, receive_oid = rest
    return Type(
        oid=int(oid),
        name=name,
        sql_name=sql_name,
        length=int(length),
        by_value=by_value == "t",
        kind=kind,
        category=category,
        preferred=preferred == "t",
        delimiter=delimiter,
        typelem=int(typelem),
        array=int(array),
        align=align,
        storage=storage,
        collation=int(collation),
        input=input_,
        output=output,
        receive=receive,
        receive_oid=int(receive_oid),
    )


def _oid(name: str) -> int:
    return types_by_name()[name].oid


BOOL: Final = _oid("bool")
BYTEA: Final = _oid("bytea")
CHAR: Final = _oid("char")
NAME: Final = _oid("name")
INT8: Final = _oid("int8")
INT2: Final = _oid("int2")
INT2VECTOR: Final = _oid("int2vector")
INT4: Final = _oid("int4")
TEXT: Final = _oid("text")
TID: Final = _oid("tid")
OID: Final = _oid("oid")
XID: Final = _oid("xid")
CID: Final = _oid("cid")
OIDVECTOR: Final = _oid("oidvector")
JSON: Final = _oid("json")
XML: Final = _oid("xml")
PG_NODE_TREE: Final = _oid("pg_node_tree")
FLOAT4: Final = _oid("float4")
FLOAT8: Final = _oid("float8")
UNKNOWN: Final = _oid("unknown")
INET: Final = _oid("inet")
CIDR: Final = _oid("cidr")
ACLITEM: Final = _oid("aclitem")
BPCHAR: Final = _oid("bpchar")
VARCHAR: Final = _oid("varchar")
DATE: Final = _oid("date")
TIME: Final = _oid("time")
TIMESTAMP: Final = _oid("timestamp")
TIMESTAMPTZ: Final = _oid("timestamptz")
INTERVAL: Final = _oid("interval")
TIMETZ: Final = _oid("timetz")
BIT: Final = _oid("bit")
VARBIT: Final = _oid("varbit")
NUMERIC: Final = _oid("numeric")
RECORD: Final = _oid("record")
CSTRING: Final = _oid("cstring")
ANY: Final = _oid("any")
ANYARRAY: Final = _oid("anyarray")
VOID: Final = _oid("void")
ANYELEMENT: Final = _oid("anyelement")
UUID: Final = _oid("uuid")
PG_LSN: Final = _oid("pg_lsn")
JSONB: Final = _oid("jsonb")
ANYNONARRAY: Final = _oid("anynonarray")
ANYENUM: Final = _oid("anyenum")
ANYCOMPATIBLE: Final = _oid("anycompatible")
ANYCOMPATIBLEARRAY: Final = _oid("anycompatiblearray")
ANYCOMPATIBLENONARRAY: Final = _oid("anycompatiblenonarray")
PG_NDISTINCT: Final = _oid("pg_ndistinct")
PG_DEPENDENCIES: Final = _oid("pg_dependencies")
PG_MCV_LIST: Final = _oid("pg_mcv_list")
XID8: Final = _oid("xid8")
INT2_ARRAY: Final = _oid("_int2")
TEXT_ARRAY: Final = _oid("_text")

REG_TYPES: Final = frozenset(oid for oid, type_ in types().items() if type_.name.startswith("reg"))
"""regproc, regclass and the like: numbers that are read and printed as names."""
INTEGERS: Final = frozenset({INT2, INT4, INT8})
FLOATS: Final = frozenset({FLOAT4, FLOAT8})
