"""Replace types that only catalogs have by types that DuckDB can compute with.

The typed query stays the same, but in other types: oid and reg* types become bigint, "char" and
types without operators become text, pg_lsn becomes numeric(20), int2vector int2[]. Casts to and
from text become calls of the types' input and output functions, which read the catalogs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, TypeVar

from penstock.attribute import Attribute
from penstock.interrupts import check_for_interrupts
from penstock.pgtypes.pg_type import (
    ACLITEM,
    ANYARRAY,
    BOOL,
    BPCHAR,
    CHAR,
    DATE,
    FLOATS,
    INET,
    INT2,
    INT2VECTOR,
    INT4,
    INT8,
    INTEGERS,
    JSON,
    JSONB,
    NAME,
    NUMERIC,
    OID,
    OIDVECTOR,
    PG_DEPENDENCIES,
    PG_LSN,
    PG_MCV_LIST,
    PG_NDISTINCT,
    PG_NODE_TREE,
    RECORD,
    REG_TYPES,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    VARCHAR,
    VOID,
    XID,
    XID8,
    XML,
)
from penstock.pgtypes.type_names import numeric_typmod
from penstock.sql.builtin import types, types_by_name
from penstock.sql.grammar.parsenodes import field_names
from penstock.sql.text.array_literals import join_array
from penstock.sql.to_duckdb.duckdb_values import duckdb_type
from penstock.sql.typed.coercion import array_of, element
from penstock.sql.typed.function_analysis import with_defaults
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    CoerceViaIO,
    Coercion,
    Const,
    FuncExpr,
    Node,
    OpExpr,
    Param,
    RelabelType,
    SubscriptingRef,
)
from penstock.sql.typed.query_nodes import TableScan
from penstock.sqlstate import IndeterminateDatatype

_VECTORS: Final = frozenset({INT2VECTOR, OIDVECTOR})
_INTEGERS: Final = frozenset({OID, XID, XID8}) | REG_TYPES
_PRINTED: Final = frozenset({CHAR, JSON, JSONB, XML, INET, ACLITEM, VOID, UNKNOWN})
_TEXTS: Final = _PRINTED | {ANYARRAY, PG_NODE_TREE, PG_NDISTINCT, PG_DEPENDENCIES, PG_MCV_LIST}
_STRINGS: Final = frozenset({TEXT, NAME, BPCHAR, VARCHAR, CHAR})
_NAMED: Final = REG_TYPES | {PG_LSN}
_READ: Final = frozenset(
    {BOOL, *INTEGERS, OID, XID, *FLOATS, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, XID8}
)
"""The types to which text can be cast."""
INPUT: Final = "input"
"""A call of a type's input function: the text, and the oid of the type."""
_OIDS: Final = frozenset({OID}) | REG_TYPES
_INT4PL: Final = 177
"""pg_proc.oid of int4pl"""
_SUBSCRIPTS: Final = "generate_subscripts"
_BOUNDS: Final = frozenset({"array_lower", "array_upper", "array_length", _SUBSCRIPTS})
_LSN_TYPMOD: Final = numeric_typmod(20, 0)

INT2_FROM_0: Final = "_int2 from 0"
"""int2vector cast to int2[]: the array keeps 0 as its first subscript."""
NAMED_TYPES: Final = frozenset(types()[oid].name for oid in _NAMED)
"""Types computed as numbers; the functions ``<type>in`` and ``<type>out`` convert their text."""
_HELD_AS: Final = {
    "numeric": "DECIMAL(38,6)",
    "pg_lsn": "UBIGINT",
    "record": "VARCHAR",
    "timestamptz": "TIMESTAMP",
}

_T = TypeVar("_T")


def held(oid: int) -> int:
    """Return the type in which values of a type are computed."""
    if oid in _INTEGERS:
        return INT8
    if oid in _TEXTS:
        return TEXT
    if oid == PG_LSN:
        return NUMERIC
    item = element(oid)
    if item and (held(item) != item or oid in _VECTORS):
        return array_of(held(item))
    return oid


def held_as(name: str) -> str:
    """Return DuckDB's type for values of a type (pg_type.typname), outside of queries.

    Raises FeatureNotSupported for types that catalogs do not use.
    """
    if name in _HELD_AS:
        return _HELD_AS[name]
    item = element_type(name)
    if item is not None:
        return f"{held_as(item)}[]"
    return duckdb_type(held(types_by_name()[name].oid), None)


def element_type(name: str) -> str | None:
    """Return the type of an array's elements, None for other types."""
    if name == INT2_FROM_0:
        return "int2"
    item = types_by_name()[name].element
    return types()[item].name if item else None


def from_zero(node: Node) -> bool:
    """Tell whether the first subscript is 0, as in vectors and arrays cast from vectors."""
    if isinstance(node, ArrayCoerceExpr | RelabelType):
        return from_zero(node.argument)
    return node.type in _VECTORS


_PLAIN: Final = (str, int, type(None))


def lowered(item: _T) -> _T:
    """Lower a query, or a part of one."""
    check_for_interrupts()
    if isinstance(item, tuple):
        parts: Any = tuple(lowered(each) for each in item)
        return parts  # type: ignore[no-any-return]
    if isinstance(item, Attribute):
        typmod = _LSN_TYPMOD if item.type_oid == PG_LSN else item.typmod
        return replace(item, type_oid=held(item.type_oid), typmod=typmod)
    if isinstance(item, Node):
        return _node(item)  # type: ignore[no-any-return]
    if not field_names(type(item)) or type(item).__module__.endswith("parsenodes"):
        return item
    made: _T = _below(item)
    return made


def _below(item: Any) -> Any:
    parts = {name: getattr(item, name) for name in field_names(type(item))}
    changed = {name: lowered(part) for name, part in parts.items() if not isinstance(part, _PLAIN)}
    return replace(item, **changed)


def _node(node: Node) -> Any:
    if isinstance(node, FuncExpr):
        node = with_defaults(node)
    match node:
        case Const():
            return _constant(node)
        case Param() if node.type == UNKNOWN:
            raise IndeterminateDatatype(
                f"could not determine data type of parameter ${node.number}"
            )
        case Param() if node.type in _NAMED:
            text = replace(node, type=TEXT)
            return _call(f"{_name(node.type)}in", held(node.type), text)
        case CoerceViaIO(argument=argument):
            return _through_text(node, argument)
        case Coercion(argument=Const(text=text)) if node.type in REG_TYPES and text is not None:
            return replace(_below(node), type=INT8)
        case FuncExpr(arguments=(argument,)) if node.type == CHAR and argument.type in _STRINGS:
            return FuncExpr(TEXT, 0, "left", (lowered(argument), Const(INT4, "1")))
        case FuncExpr(arguments=(argument,)) if (
            node.type in REG_TYPES and argument.type in _STRINGS and node.name == _name(node.type)
        ):
            return _call(f"{node.name}in", INT8, lowered(argument))
        case FuncExpr(name=name, arguments=(array, _)) if name in _BOUNDS:
            zero = "_from_0" if from_zero(array) else ""
            # generate_subscripts keeps its oid, by which ``has_set`` sees that it returns a set.
            oid = node.oid if name == _SUBSCRIPTS else 0
            return replace(_below(node), oid=oid, name=f"{name}{zero}")
        case SubscriptingRef(array=array) if from_zero(array):
            below = _below(node)
            index = OpExpr(INT4, 0, _INT4PL, "+", (below.index, Const(INT4, "1")))
            return replace(below, type=held(node.type), index=index)
        case FuncExpr(name="oid", arguments=(argument,)) if argument.type == INT8:
            return _call("oid_of_int8", INT8, lowered(argument))
        case FuncExpr(arguments=(argument,)) if node.type in _OIDS and argument.type == INT2:
            return _call("oid_of_int4", INT8, lowered(argument))
        case RelabelType(argument=argument) if node.type in _OIDS and argument.type == INT4:
            return _call("oid_of_int4", INT8, lowered(argument))
        case RelabelType(argument=argument) if node.type == INT4 and argument.type in _OIDS:
            return _call("signed_oid", INT4, lowered(argument))
        case TableScan():
            return _below(node)
        case FuncExpr() if node.type == RECORD:
            return _below(node)
    return replace(_below(node), type=held(node.type))


def _constant(node: Const) -> Node:
    type_ = held(node.type)
    if node.text is None:
        return replace(node, type=type_, typmod=-1)
    if node.type in REG_TYPES:
        return _call(f"{_name(node.type)}in", INT8, Const(TEXT, node.text))
    if node.type == PG_LSN:
        high, low = (int(half, 16) for half in node.text.split("/"))
        return Const(NUMERIC, str(high << 32 | low))
    if node.type in _VECTORS:
        return Const(type_, join_array(list(node.text.split())))
    return replace(node, type=type_)


def _through_text(node: CoerceViaIO, argument: Node) -> Node:
    below: Node = lowered(argument)
    if argument.type in _NAMED and node.type in _STRINGS:
        return _call(f"{_name(argument.type)}out", TEXT, below)
    if node.type in _NAMED and (argument.type in _STRINGS or argument.type == UNKNOWN):
        return _call(f"{_name(node.type)}in", held(node.type), below)
    if argument.type in _VECTORS and node.type in _STRINGS:
        return FuncExpr(node.type, 0, "array_to_string", (below, Const(TEXT, " ")))
    if node.type in _READ and argument.type in (*_STRINGS, UNKNOWN):
        reads = Const(INT4, str(node.type))
        return FuncExpr(held(node.type), 0, INPUT, (below, reads))
    if held(node.type) == below.type:
        return below
    return CoerceViaIO(held(node.type), below, -1, node.form)


def _name(oid: int) -> str:
    return types()[oid].name


def _call(name: str, type_: int, argument: Node) -> Node:
    return FuncExpr(type_, 0, name, (argument,))
