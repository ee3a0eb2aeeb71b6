"""Encoder of messages: the reverse of ``decoder`` (proto.c, logicalrep_write_*).

An xid is written if the message has one; the caller decides that.
"""

from __future__ import annotations

import struct
from functools import singledispatch

from penstock.pgoutput.decoder import (
    CASCADE_FLAG,
    KEY_FLAG,
    RESTART_IDENTITY_FLAG,
    TRANSACTIONAL_FLAG,
)
from penstock.pgoutput.messages import (
    Absent,
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Text,
    Truncate,
    TupleData,
    TypeMessage,
    Update,
)


@singledispatch
def _encode(message: object) -> bytes:
    raise TypeError(f"not a logical replication message: {type(message).__name__}")


def encode(message: Message) -> bytes:
    """Return the payload of one message."""
    return _encode(message)


@_encode.register
def _(message: Begin) -> bytes:
    return b"B" + struct.pack("!QqI", message.final_lsn, message.commit_time, message.xid)


@_encode.register
def _(message: Commit) -> bytes:
    lsns = (message.commit_lsn, message.end_lsn)
    return b"C" + struct.pack("!BQQq", 0, *lsns, message.commit_time)


@_encode.register
def _(message: Origin) -> bytes:
    return b"O" + struct.pack("!Q", message.origin_lsn) + _string(message.name)


@_encode.register
def _(message: RelationMessage) -> bytes:
    relation = message.relation
    out = b"R" + _xid(message.xid) + struct.pack("!I", relation.oid)
    out += _string("" if relation.schema == "pg_catalog" else relation.schema)
    out += _string(relation.name) + relation.replica_identity.value.encode()
    out += struct.pack("!H", len(relation.attributes))
    for attribute in relation.attributes:
        out += bytes([KEY_FLAG if attribute.key else 0]) + _string(attribute.name)
        out += struct.pack("!Ii", attribute.type_oid, attribute.typmod)
    return out


@_encode.register
def _(message: TypeMessage) -> bytes:
    schema = "" if message.schema == "pg_catalog" else message.schema
    head = b"Y" + _xid(message.xid) + struct.pack("!I", message.type_oid)
    return head + _string(schema) + _string(message.name)


@_encode.register
def _(message: Insert) -> bytes:
    head = b"I" + _xid(message.xid) + struct.pack("!I", message.relation_oid)
    return head + b"N" + _tuple(message.new)


@_encode.register
def _(message: Update) -> bytes:
    out = b"U" + _xid(message.xid) + struct.pack("!I", message.relation_oid)
    if message.old is not None and message.old_kind is not None:
        out += message.old_kind.value.encode() + _tuple(message.old)
    return out + b"N" + _tuple(message.new)


@_encode.register
def _(message: Delete) -> bytes:
    head = b"D" + _xid(message.xid) + struct.pack("!I", message.relation_oid)
    return head + message.old_kind.value.encode() + _tuple(message.old)


@_encode.register
def _(message: Truncate) -> bytes:
    flags = CASCADE_FLAG if message.cascade else 0
    flags |= RESTART_IDENTITY_FLAG if message.restart_identity else 0
    oids = message.relation_oids
    head = b"T" + _xid(message.xid) + struct.pack("!IB", len(oids), flags)
    return head + struct.pack(f"!{len(oids)}I", *oids)


@_encode.register
def _(message: LogicalMessage) -> bytes:
    flags = TRANSACTIONAL_FLAG if message.transactional else 0
    head = b"M" + _xid(message.xid) + struct.pack("!BQ", flags, message.lsn)
    return head + _string(message.prefix) + _sized(message.content)


@_encode.register
def _(message: StreamStart) -> bytes:
    return b"S" + struct.pack("!IB", message.xid, message.first_segment)


@_encode.register
def _(message: StreamStop) -> bytes:
    return b"E"


@_encode.register
def _(message: StreamCommit) -> bytes:
    lsns = (message.commit_lsn, message.end_lsn)
    return b"c" + struct.pack("!IBQQq", message.xid, 0, *lsns, message.commit_time)


@_encode.register
def _(message: StreamAbort) -> bytes:
    out = b"A" + struct.pack("!II", message.xid, message.subxid)
    if message.abort_lsn is None or message.abort_time is None:
        return out
    return out + struct.pack("!Qq", message.abort_lsn, message.abort_time)


@_encode.register
def _(message: BeginPrepare) -> bytes:
    lsns = (message.prepare_lsn, message.end_lsn)
    body = struct.pack("!QQqI", *lsns, message.prepare_time, message.xid)
    return b"b" + body + _string(message.gid)


@_encode.register(Prepare)
@_encode.register(StreamPrepare)
def _(message: Prepare | StreamPrepare) -> bytes:
    kind = b"P" if isinstance(message, Prepare) else b"p"
    lsns = (message.prepare_lsn, message.end_lsn)
    body = struct.pack("!BQQqI", 0, *lsns, message.prepare_time, message.xid)
    return kind + body + _string(message.gid)


@_encode.register
def _(message: CommitPrepared) -> bytes:
    lsns = (message.commit_lsn, message.end_lsn)
    body = struct.pack("!BQQqI", 0, *lsns, message.commit_time, message.xid)
    return b"K" + body + _string(message.gid)


@_encode.register
def _(message: RollbackPrepared) -> bytes:
    lsns = (message.prepare_end_lsn, message.rollback_end_lsn)
    times = (message.prepare_time, message.rollback_time)
    return b"r" + struct.pack("!BQQqqI", 0, *lsns, *times, message.xid) + _string(message.gid)


def _tuple(cells: TupleData) -> bytes:
    out = struct.pack("!H", len(cells))
    for cell in cells:
        if isinstance(cell, Absent):
            out += cell.value.encode()
        else:
            out += (b"t" if isinstance(cell, Text) else b"b") + _sized(cell.raw)
    return out


def _sized(raw: bytes) -> bytes:
    return struct.pack("!I", len(raw)) + raw


def _string(text: str) -> bytes:
    return text.encode("utf-8") + b"\0"


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack("!I", xid)
