"""Messages that carry changes and what they need: R, Y, I, U, D, T, M (proto.c).

In: a reader behind the type byte and, within a streamed block, behind the xid, which the caller
passes on. Out: the message. Errors: ProtocolViolation.
"""

from __future__ import annotations

from typing import Final

from penstock.attribute import Attribute
from penstock.errors import ProtocolViolation
from penstock.pgoutput.messages import (
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    RelationMessage,
    Truncate,
    TypeMessage,
    Update,
)
from penstock.pgoutput.reader import Reader
from penstock.pgoutput.tuple_data import NULL, UNCHANGED, Binary, Cell, Text, TupleData
from penstock.relation import Relation, ReplicaIdentity

KEY_FLAG: Final = 1
CASCADE_FLAG: Final = 1
RESTART_IDENTITY_FLAG: Final = 2
TRANSACTIONAL_FLAG: Final = 1

_OLD: Final = {kind.value: kind for kind in OldTuple}
_IDENTITY: Final = {identity.value: identity for identity in ReplicaIdentity}
_PG_CATALOG: Final = "pg_catalog"


def read_relation(reader: Reader, xid: int | None = None) -> RelationMessage:
    """Read ``R`` (logicalrep_read_rel). An empty schema name means pg_catalog."""
    oid = reader.uint32()
    schema = reader.string() or _PG_CATALOG
    name = reader.string()
    identity = reader.char()
    if identity not in _IDENTITY:
        raise ProtocolViolation(f'unrecognized replica identity "{identity}"')
    attributes = tuple(_attribute(reader) for _ in range(reader.uint16()))
    return RelationMessage(Relation(oid, schema, name, _IDENTITY[identity], attributes), xid)


def read_type(reader: Reader, xid: int | None = None) -> TypeMessage:
    """Read ``Y`` (logicalrep_read_typ)."""
    oid = reader.uint32()
    schema = reader.string() or _PG_CATALOG
    return TypeMessage(oid, schema, reader.string(), xid)


def read_insert(reader: Reader, xid: int | None = None) -> Insert:
    """Read ``I`` (logicalrep_read_insert)."""
    oid = reader.uint32()
    _expect_new(reader.char())
    return Insert(oid, read_tuple(reader), xid)


def read_update(reader: Reader, xid: int | None = None) -> Update:
    """Read ``U`` (logicalrep_read_update)."""
    oid = reader.uint32()
    kind = reader.char()
    if kind not in _OLD:
        _expect_new(kind)
        return Update(oid, read_tuple(reader), xid=xid)
    old = _read_old(reader)
    _expect_new(reader.char())
    return Update(oid, read_tuple(reader), old, _OLD[kind], xid)


def read_delete(reader: Reader, xid: int | None = None) -> Delete:
    """Read ``D`` (logicalrep_read_delete)."""
    oid = reader.uint32()
    kind = reader.char()
    if kind not in _OLD:
        raise ProtocolViolation(f"expected action 'O' or 'K', got {kind}")
    return Delete(oid, _read_old(reader), _OLD[kind], xid)


def read_truncate(reader: Reader, xid: int | None = None) -> Truncate:
    """Read ``T`` (logicalrep_read_truncate)."""
    count = reader.uint32()
    flags = reader.uint8()
    oids = tuple(reader.uint32() for _ in range(count))
    return Truncate(oids, bool(flags & CASCADE_FLAG), bool(flags & RESTART_IDENTITY_FLAG), xid)


def read_logical_message(reader: Reader, xid: int | None = None) -> LogicalMessage:
    """Read ``M`` (logicalrep_write_message)."""
    flags = reader.uint8()
    lsn = reader.lsn()
    prefix = reader.string()
    content = reader.raw(reader.uint32())
    return LogicalMessage(bool(flags & TRANSACTIONAL_FLAG), lsn, prefix, content, xid)


def read_tuple(reader: Reader) -> TupleData:
    """Read the cells of a tuple (logicalrep_read_tuple)."""
    return tuple(_cell(reader) for _ in range(reader.uint16()))


def expected_new(kind: str) -> ProtocolViolation:
    """Return PostgreSQL's error for another tuple in the place of the new one."""
    return ProtocolViolation(f"expected new tuple but got {ord(kind)}")


def unchanged_in_old_tuple() -> ProtocolViolation:
    """Return the error for an old tuple with an unchanged TOAST value: the server sends the values
    in old tuples (heapam.c, ExtractReplicaIdentity).
    """
    return ProtocolViolation("old tuple with a TOAST value that was not sent")


def unknown_representation(kind: str) -> ProtocolViolation:
    """Return PostgreSQL's error for a cell of an unknown kind."""
    return ProtocolViolation(f"unrecognized data representation type '{kind}'")


def _expect_new(kind: str) -> None:
    if kind != "N":
        raise expected_new(kind)


def _read_old(reader: Reader) -> TupleData:
    cells = read_tuple(reader)
    if UNCHANGED in cells:
        raise unchanged_in_old_tuple()
    return cells


def _cell(reader: Reader) -> Cell:
    kind = reader.char()
    if kind == NULL.value:
        return NULL
    if kind == UNCHANGED.value:
        return UNCHANGED
    if kind == "t":
        return Text(reader.raw(reader.int32()))
    if kind == "b":
        return Binary(reader.raw(reader.int32()))
    raise unknown_representation(kind)


def _attribute(reader: Reader) -> Attribute:
    key = bool(reader.uint8() & KEY_FLAG)
    name = reader.string()
    return Attribute(name, reader.uint32(), reader.int32(), key=key)
