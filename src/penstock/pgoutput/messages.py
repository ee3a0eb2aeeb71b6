"""Logical replication messages as values (logicalproto.h; protocol chapter "Logical Replication
Message Formats"), versions 1 to 4.

Fields are in the order of the wire. LSNs are ``Lsn``; times are microseconds since 2000-01-01 UTC
as sent. ``xid`` of a change is only set within a streamed block (version 2 on). The apply worker
interprets the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.lsn import Lsn
from penstock.relation import Relation, ReplicaIdentity

# TupleData: the cells of one row version as they are sent (LogicalRepTupleData). The four kinds of
# cells have four types, so "NULL" and "not sent" cannot be confused (law 4).


class Absent(Enum):
    """Cells without bytes: NULL, or an unchanged TOAST value that was not sent."""

    NULL = "n"
    UNCHANGED = "u"


NULL = Absent.NULL
UNCHANGED = Absent.UNCHANGED


@dataclass(frozen=True, slots=True)
class Text:
    """A value as the type's output function prints it."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """A value as the type's send function gives it."""

    raw: bytes


Cell = Absent | Text | Binary
TupleData = tuple[Cell, ...]


class OldTuple(Enum):
    """The kind of an old tuple: the replica identity's columns, or all (REPLICA IDENTITY FULL)."""

    KEY = "K"
    ROW = "O"

    @classmethod
    def of(cls, identity: ReplicaIdentity) -> OldTuple:
        """Return the kind that a table with this replica identity sends."""
        return cls.ROW if identity is ReplicaIdentity.FULL else cls.KEY


@dataclass(frozen=True, slots=True)
class Begin:
    """``B``. ``final_lsn`` is the commit_lsn of the Commit that follows, never 0."""

    final_lsn: Lsn
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """``C``. ``end_lsn``: the end of the commit record, which a subscriber acknowledges."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class Origin:
    """``O``: the transaction was replicated to the publisher from another origin."""

    origin_lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """``R``: the columns of a relation's tuples from now on."""

    relation: Relation
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """``Y``: the base type's name of a column type that is not built in."""

    type_oid: int
    schema: str
    name: str
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """``I``."""

    relation_oid: int
    new: TupleData
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """``U``. ``old`` and ``old_kind`` are both None or both set."""

    relation_oid: int
    new: TupleData
    old: TupleData | None = None
    old_kind: OldTuple | None = None
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """``D``."""

    relation_oid: int
    old: TupleData
    old_kind: OldTuple
    xid: int | None = None


RowMessage = Insert | Update | Delete
"""The change of one row."""

TRANSFORMATIONS: Final[Mapping[tuple[bool, bool], type[RowMessage] | None]] = {
    (False, False): None,
    (False, True): Insert,
    (True, False): Delete,
    (True, True): Update,
}
"""The message that publishes an UPDATE (pgoutput_row_filter), None for none. Keys: whether the old
and the new row match the row filter."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """``T``: several relations at once."""

    relation_oids: tuple[int, ...]
    cascade: bool = False
    restart_identity: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """``M``: pg_logical_emit_message(); outside of a transaction if not transactional."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """``S`` (version 2): a block of a transaction that has not ended yet."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """``E`` (version 2): the end of a block."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """``c`` (version 2)."""

    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """``A`` (version 2). LSN and time are set only if streaming is ``parallel`` (version 4)."""

    xid: int
    subxid: int
    abort_lsn: Lsn | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """``b`` (version 3)."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """``P`` (version 3)."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """``K`` (version 3)."""

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """``r`` (version 3). ``prepare_end_lsn`` equals the Prepare's end_lsn."""

    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    """``p`` (version 3)."""

    prepare_lsn: Lsn
    end_lsn: Lsn
    prepare_time: int
    xid: int
    gid: str


Message = (
    Begin
    | Commit
    | Origin
    | RelationMessage
    | TypeMessage
    | Insert
    | Update
    | Delete
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
"""Every message of the protocol."""
