"""The reference decoder of single messages; read it with the protocol chapter (proto.c).

The decoder keeps one bit of state: within a streamed block every change begins with an xid.
``columnar`` is the fast decoder; a property test keeps both equal. Errors: ProtocolViolation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from penstock.attribute import Attribute
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgoutput.messages import (
    NULL,
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Cell,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
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
from penstock.relation import Relation, ReplicaIdentity


class Reader:
    """A reader of big-endian integers and NUL-terminated strings."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def raw(self, size: int) -> bytes:
        """Return ``size`` bytes. Raises ProtocolViolation if fewer are left."""
        end = self._at + size
        if size < 0 or end > len(self._payload):
            raise ProtocolViolation("insufficient data left in message")
        taken = self._payload[self._at : end]
        self._at = end
        return taken

    def char(self) -> str:
        """Return one byte as a character."""
        return chr(self.raw(1)[0])

    def uint8(self) -> int:
        return self.raw(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.raw(2), "big")

    def uint32(self) -> int:
        return int.from_bytes(self.raw(4), "big")

    def int32(self) -> int:
        return int.from_bytes(self.raw(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self.raw(8), "big", signed=True)

    def lsn(self) -> Lsn:
        return Lsn(int.from_bytes(self.raw(8), "big"))

    def string(self) -> str:
        """Return a NUL-terminated string in the client encoding, UTF8."""
        end = self._payload.find(b"\0", self._at)
        if end < 0:
            raise ProtocolViolation("invalid string in message")
        text = self.raw(end - self._at)
        self.raw(1)
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation(
                'invalid byte sequence for encoding "UTF8" in message', sqlstate="22021"
            ) from None

    def finish(self) -> None:
        """Raise ProtocolViolation if bytes are left."""
        if self._at != len(self._payload):
            raise ProtocolViolation("invalid message format")


# Messages with changes and their relations and types: R, Y, I, U, D, T, M. A reader begins after
# the type byte and, within a streamed block, after the xid, which the caller passes on.

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


def _expect_new(kind: str) -> None:
    if kind != "N":
        raise ProtocolViolation(f"expected new tuple but got {ord(kind)}")


def _read_old(reader: Reader) -> TupleData:
    cells = read_tuple(reader)
    if UNCHANGED in cells:
        # the server sends the values in old tuples (heapam.c, ExtractReplicaIdentity)
        raise ProtocolViolation("old tuple with a TOAST value that was not sent")
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
    raise ProtocolViolation(f"unrecognized data representation type '{kind}'")


def _attribute(reader: Reader) -> Attribute:
    key = bool(reader.uint8() & KEY_FLAG)
    name = reader.string()
    return Attribute(name, reader.uint32(), reader.int32(), key=key)


# Messages around changes: B, C, O; S, E, c, A of streamed and b, P, K, r, p of prepared
# transactions. A reader begins after the type byte.

_Prepared = TypeVar("_Prepared", Prepare, CommitPrepared, StreamPrepare)


def read_begin(reader: Reader) -> Begin:
    """Read ``B`` (logicalrep_read_begin)."""
    final_lsn = _set(reader.lsn(), "final_lsn not set in begin message")
    return Begin(final_lsn, reader.int64(), reader.uint32())


def read_commit(reader: Reader) -> Commit:
    """Read ``C`` (logicalrep_read_commit)."""
    _no_flags(reader.uint8(), "commit")
    return Commit(reader.lsn(), reader.lsn(), reader.int64())


def read_origin(reader: Reader) -> Origin:
    """Read ``O`` (logicalrep_read_origin)."""
    return Origin(reader.lsn(), reader.string())


def read_stream_start(reader: Reader) -> StreamStart:
    """Read ``S`` (logicalrep_read_stream_start)."""
    return StreamStart(reader.uint32(), reader.uint8() == 1)


def read_stream_commit(reader: Reader) -> StreamCommit:
    """Read ``c`` (logicalrep_read_stream_commit)."""
    xid = reader.uint32()
    _no_flags(reader.uint8(), "commit")
    return StreamCommit(xid, reader.lsn(), reader.lsn(), reader.int64())


def read_stream_abort(reader: Reader, parallel: bool) -> StreamAbort:
    """Read ``A`` (logicalrep_read_stream_abort): LSN and time are sent only if ``parallel``."""
    xid, subxid = reader.uint32(), reader.uint32()
    if not parallel:
        return StreamAbort(xid, subxid)
    return StreamAbort(xid, subxid, reader.lsn(), reader.int64())


def read_begin_prepare(reader: Reader) -> BeginPrepare:
    """Read ``b`` (logicalrep_read_begin_prepare)."""
    prepare_lsn = _set(reader.lsn(), "prepare_lsn not set in begin prepare message")
    end_lsn = _set(reader.lsn(), "end_lsn not set in begin prepare message")
    return BeginPrepare(prepare_lsn, end_lsn, reader.int64(), reader.uint32(), reader.string())


def read_prepared(reader: Reader, kind: type[_Prepared], called: str) -> _Prepared:
    """Read ``P``, ``K`` and ``p``, which have the same fields (logicalrep_read_prepare_common)."""
    _no_flags(reader.uint8(), called)
    return kind(
        _set(reader.lsn(), f"LSN not set in {called} message"),
        _set(reader.lsn(), f"end_lsn not set in {called} message"),
        reader.int64(),
        reader.uint32(),
        reader.string(),
    )


def read_rollback_prepared(reader: Reader) -> RollbackPrepared:
    """Read ``r`` (logicalrep_read_rollback_prepared)."""
    _no_flags(reader.uint8(), "rollback prepared")
    return RollbackPrepared(
        _set(reader.lsn(), "prepare_end_lsn is not set in rollback prepared message"),
        _set(reader.lsn(), "rollback_end_lsn is not set in rollback prepared message"),
        reader.int64(),
        reader.int64(),
        reader.uint32(),
        reader.string(),
    )


def _set(lsn: Lsn, message: str) -> Lsn:
    if not lsn:
        raise ProtocolViolation(message)
    return lsn


def _no_flags(flags: int, called: str) -> None:
    if flags:
        raise ProtocolViolation(f"unrecognized flags {flags} in {called} message")


_CHANGES: Final[dict[str, Callable[[Reader, int | None], Message]]] = {
    "R": read_relation,
    "Y": read_type,
    "I": read_insert,
    "U": read_update,
    "D": read_delete,
    "T": read_truncate,
    "M": read_logical_message,
}

_OTHERS: Final[dict[str, tuple[int, Callable[[Reader], Message]]]] = {
    "B": (1, read_begin),
    "C": (1, read_commit),
    "O": (1, read_origin),
    "S": (2, read_stream_start),
    "E": (2, lambda reader: StreamStop()),
    "c": (2, read_stream_commit),
    "b": (3, read_begin_prepare),
    "P": (3, lambda reader: read_prepared(reader, Prepare, "prepare")),
    "K": (3, lambda reader: read_prepared(reader, CommitPrepared, "commit prepared")),
    "r": (3, read_rollback_prepared),
    "p": (3, lambda reader: read_prepared(reader, StreamPrepare, "stream prepare")),
}
"""Each message's first protocol version, and its reader. Stream Abort's has a parameter."""


class Decoder:
    """``proto_version``: as requested. ``parallel``: streaming was requested as ``parallel``."""

    def __init__(self, proto_version: int = 1, *, parallel: bool = False) -> None:
        self._proto_version = proto_version
        self._parallel = parallel
        self._streaming = False

    def decode(self, payload: bytes) -> Message:
        """Decode one message. Raises ProtocolViolation if it is truncated, too long or unknown."""
        reader = Reader(payload)
        message = self._read(reader.char(), reader)
        reader.finish()
        if isinstance(message, StreamStart | StreamStop):
            self._streaming = self._toggled(isinstance(message, StreamStart))
        return message

    def _read(self, kind: str, reader: Reader) -> Message:
        if kind in _CHANGES:
            xid = reader.uint32() if self._streaming else None
            return _CHANGES[kind](reader, xid)
        if kind == "A" and self._proto_version >= 2:
            return read_stream_abort(reader, self._parallel)
        since, read = _OTHERS.get(kind, (0, None))
        if read is None or self._proto_version < since:
            raise unknown_message(ord(kind))
        return read(reader)

    def _toggled(self, start: bool) -> bool:
        if start == self._streaming:
            raise ProtocolViolation(
                "duplicate STREAM START message"
                if start
                else "STREAM STOP message without STREAM START"
            )
        return start


def unknown_message(kind: int) -> ProtocolViolation:
    """Return PostgreSQL's error for an unknown type byte (worker.c, apply_dispatch)."""
    return ProtocolViolation(f'invalid logical replication message type "??? ({kind})"')
