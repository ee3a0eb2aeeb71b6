"""Commits of the lake in one total order, with positions that stay: the node's WAL (xlog.c).

In: a connection inside a transaction. Out: frozen ``LakeTransaction`` rows, and how far each table
has been sequenced. Who finds the commits is left to the sequencer (walsender). A transaction's
changes are not here: they are what lies between two versions of its tables. Messages that sessions
emit are in the same order; what one says is read by itself, as it may be long. So are PREPARE
TRANSACTION, with the changes that it has staged, and what became of it (``two_phase_records``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    RowMapping,
    String,
    Table,
    Text,
    func,
    select,
)

from penstock.catalog import block_messages, sequenced
from penstock.catalog.block_messages import BlockMessage, MessageHead
from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.catalog.prepared_blocks import first_prepare, last_prepared_xid
from penstock.catalog.sequenced import Sequenced
from penstock.catalog.two_phase_records import TwoPhaseKind, TwoPhaseRecord, from_text, to_text
from penstock.lsn import Lsn

FIRST_LSN: Final = Lsn(0x0100_0000)
"""Where a node's WAL begins: the second segment, as PostgreSQL's does."""
_FIRST_XID: Final = 3  # FirstNormalTransactionId (transam.h)
_LAST_XID: Final = (1 << 32) - 1
_COMMIT_RECORD: Final = 48
"""Bytes between a transaction's commit_lsn and its end, as of a commit record."""
_ALIGNMENT: Final = 8
_MESSAGE_RECORD: Final = 24 + 2 + 24 + 1
"""Bytes of a message's record besides its prefix and content: headers, xl_logical_message, the end
of the prefix."""

_TRANSACTION: Final = Table(
    "penstock_transaction",
    METADATA,
    Column("end_lsn", LsnColumn, primary_key=True, autoincrement=False),
    Column("commit_lsn", LsnColumn, nullable=False),
    Column("begin_lsn", LsnColumn, nullable=False),
    Column("xid", BigInteger, nullable=False),
    Column("commit_time", BigInteger, nullable=False),
    Column("origin", String(64)),
    Column("origin_lsn", LsnColumn),
    Column("members", Text, nullable=False),
    Column("message_transactional", Boolean),  # and the others: NULL where there is no message
    Column("message_prefix", Text),
    Column("message_content", LargeBinary),  # and of PREPARE: what it has staged
    # NULL where it is no record of two-phase commit; and in stores of before there was such a thing
    Column("two_phase", Text),
    # NULL where it is the transaction's own
    Column("newest_xid", BigInteger),
    # NULL where the block has emitted none, or it is of no block
    Column("block_messages", Text),
    Column("block_contents", LargeBinary),
)
_LONG: Final = ("message_content", "block_contents")
_END: Final = select(func.max(_TRANSACTION.c.end_lsn))
_READ: Final = tuple(c for c in _TRANSACTION.c if c.name not in _LONG)


@dataclass(frozen=True, slots=True)
class Member:
    """What one transaction did to a table: all that lies between two versions of it.

    ``relation``: its oid (pg_class). ``from_version``: -1 where the table was not there yet.
    ``table_id``: the Delta table's own id at ``to_version``, None: not recorded.
    ``lost_to``: None, or what lies between cannot be told, and these publications (oids) held it,
    none where nobody publishes the table.
    """

    relation: int
    uri: str
    from_version: int
    to_version: int
    table_id: str | None = None
    lost_to: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """What a session has emitted (pg_logical_emit_message), but for its content."""

    transactional: bool
    prefix: str


@dataclass(frozen=True, slots=True)
class LakeTransaction:
    """One committed transaction. ``begin`` < ``commit`` < ``end``; ``end`` of one is ``begin`` of
    the next.

    ``two_phase``: where it is about one that was prepared. PREPARE is an entry by itself, whose
    members say which versions it was checked against, and whose changes are its content; COMMIT
    PREPARED has members as any transaction has; the xid is the same in both.

    ``messages``: what a block has emitted, beside its changes.

    ``message``: what it consists of instead of changes. One that is not transactional is a record
    by itself, of no transaction: ``commit`` is its ``begin``, and ``xid`` the one before.

    ``commit_time``: microseconds since the Unix epoch. ``origin``: where a subscription wrote it,
    the name of its replication origin, and the position there; of a dropped one, or of another
    node's, its appId.
    """

    xid: int
    begin: Lsn
    commit: Lsn
    end: Lsn
    commit_time: int
    members: tuple[Member, ...]
    origin: str | None = None
    origin_lsn: Lsn | None = None
    message: EmittedMessage | None = None
    two_phase: TwoPhaseRecord | None = None
    messages: tuple[MessageHead, ...] = ()

    @property
    def place(self) -> Lsn:
        """By the catalogs of which place it is decoded: where its changes were made, before what
        was prepared was committed."""
        record = self.two_phase
        return self.begin if record is None or record.prepare is None else record.prepare.lsn

    @property
    def is_transaction(self) -> bool:
        """Whether it has a beginning and a commit."""
        return self.message is None or self.message.transactional

    @property
    def message_end(self) -> Lsn:
        """Where the record of its message ends."""
        return self.commit if self.is_transaction else self.end

    @property
    def message_ends(self) -> tuple[Lsn, ...]:
        """Where the records of ``messages`` end: the last things before the commit."""
        sizes = [_message_size(head.prefix, head.size) for head in self.messages]
        ends = itertools.accumulate(sizes, initial=self.commit - sum(sizes))
        return tuple(map(Lsn, ends))[1:]


class PgTransactions:
    """The log, within one transaction of the state store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def end(self) -> Lsn:
        """The end of the last transaction: where the next one begins (pg_current_wal_lsn)."""
        end = self._connection.execute(_END).scalar_one()
        return FIRST_LSN if end is None else Lsn(end)

    def next_xid(self) -> int:
        """The ID that the next transaction is given."""
        return self._xid_after(self._last())

    def versions(self) -> Mapping[int, int]:
        """Table oid -> the version up to which its commits are in the log."""
        return {relid: at.version for relid, at in self.sequenced().items()}

    def sequenced(self, relations: Collection[int] | None = None) -> Mapping[int, Sequenced]:
        """Table oid -> how far its commits are in the log; of all tables, or of these at least."""
        return sequenced.sequenced(self._connection, relations)

    def latest_commit_time(self) -> int:
        """The latest commit time of all, 0 without any."""
        query = select(func.max(_TRANSACTION.c.commit_time))
        return int(self._connection.execute(query).scalar_one() or 0)

    def append(
        self,
        members: Sequence[Member],
        *,
        commit_time: int,
        size: int,
        origin: str | None = None,
        origin_lsn: Lsn | None = None,
        xid: int | None = None,
        two_phase: TwoPhaseRecord | None = None,
        content: bytes | None = None,
        messages: Sequence[BlockMessage] = (),
    ) -> LakeTransaction:
        """Put a transaction at the end. ``size``: bytes of WAL that it stands for. ``xid``: one
        that is given out already, None: the next one. ``content``: of PREPARE."""
        last = self._last()
        begin = FIRST_LSN if last is None else last.end
        heads = tuple(message.head for message in messages)
        told = sum(_message_size(head.prefix, head.size) for head in heads)
        commit = Lsn(begin + _align(size) + told)
        transaction = LakeTransaction(
            xid=self._xid_after(last) if xid is None else xid,
            begin=begin,
            commit=commit,
            end=Lsn(commit + _COMMIT_RECORD),
            commit_time=commit_time,
            members=tuple(members),
            origin=origin,
            origin_lsn=origin_lsn,
            two_phase=two_phase,
            messages=heads,
        )
        row = _values(transaction) | {"message_content": content}
        if messages:
            row["block_contents"] = b"".join(message.content for message in messages)
        if xid is not None:
            row["newest_xid"] = max(self._newest_xid(), xid)
        self._connection.execute(_TRANSACTION.insert().values(**row))
        if two_phase is None or two_phase.kind is not TwoPhaseKind.PREPARE:
            for member in members:
                self.advance(member.relation, member.to_version, member.table_id)
        return transaction

    def emit(self, message: EmittedMessage, content: bytes, *, commit_time: int) -> LakeTransaction:
        """Put a message at the end (LogLogicalMessage)."""
        last = self._last()
        begin = FIRST_LSN if last is None else last.end
        xid = self._newest_xid()
        size = _message_size(message.prefix, len(content))
        commit = end = Lsn(begin + size)
        if message.transactional:
            xid, end = self._xid_after(last), Lsn(commit + _COMMIT_RECORD)
        else:
            commit = begin
        emitted = LakeTransaction(xid, begin, commit, end, commit_time, (), message=message)
        row = _values(emitted) | {
            "message_transactional": message.transactional,
            "message_prefix": message.prefix,
            "message_content": content,
        }
        self._connection.execute(_TRANSACTION.insert().values(**row))
        return emitted

    def content(self, transaction: LakeTransaction) -> bytes:
        """Of a transaction's message, or of what is prepared; there as long as a slot needs it."""
        c = _TRANSACTION.c
        query = select(c.message_content).where(c.end_lsn == transaction.end)
        return bytes(self._connection.execute(query).scalar_one())

    def contents(self, transaction: LakeTransaction) -> tuple[bytes, ...]:
        """Of the messages of a block, in order; there as long as a slot needs them."""
        c = _TRANSACTION.c
        query = select(c.block_contents).where(c.end_lsn == transaction.end)
        contents = bytes(self._connection.execute(query).scalar_one() or b"")
        return block_messages.split(transaction.messages, contents)

    def advance(self, relid: int, version: int, table_id: str | None = None) -> None:
        """Record how far a table has been sequenced; also the first time. ``table_id`` None: the
        one that is recorded."""
        sequenced.advance(self._connection, relid, version, table_id)

    def forget(self, relid: int) -> None:
        """A table is gone; no effect when it is not known."""
        sequenced.forget(self._connection, relid)

    def after(self, lsn: Lsn, limit: int) -> tuple[LakeTransaction, ...]:
        """The next transactions that commit at or after ``lsn``, in order, ``limit`` at most.

        The place of the commit counts, not its end (SnapBuildXactNeedsSkip): who asks for what
        comes after the finish LSN of a transaction + 1 does not want that transaction.
        """
        query = select(*_READ).where(_after(lsn))
        query = query.order_by(_TRANSACTION.c.end_lsn).limit(limit)
        return tuple(_transaction(row) for row in self._connection.execute(query).mappings())

    def count_after(self, lsn: Lsn) -> int:
        """How many transactions commit at or after ``lsn``."""
        query = select(func.count()).where(_after(lsn))
        return int(self._connection.execute(query).scalar_one())

    def boundary(self, lsn: Lsn) -> Lsn:
        """``lsn``, or the end of the commit record that it lies in: nothing is in between."""
        c = _TRANSACTION.c
        query = select(c.commit_lsn, c.end_lsn).where(c.end_lsn > lsn).order_by(c.end_lsn).limit(1)
        row = self._connection.execute(query).one_or_none()
        return lsn if row is None or row.commit_lsn >= lsn else Lsn(row.end_lsn)

    def oldest(self) -> Lsn:
        """Where the log begins: what ends after it is there."""
        begin = self._connection.execute(select(func.min(_TRANSACTION.c.begin_lsn))).scalar_one()
        return FIRST_LSN if begin is None else Lsn(begin)

    def oldest_place(self) -> Lsn:
        """By the catalogs of no earlier place is anything decoded that is in the log, or will be:
        what is prepared counts where its PREPARE is (``LakeTransaction.place``)."""
        query = select(_TRANSACTION.c.two_phase).where(_TRANSACTION.c.two_phase.is_not(None))
        records = [from_text(text) for (text,) in self._connection.execute(query)]
        places = [record.prepare.lsn for record in records if record.prepare is not None]
        first = first_prepare(self._connection)
        return min([self.oldest(), *places, *([] if first is None else [first])])

    def prune(self, before: Lsn) -> int:
        """Forget transactions that end at or before ``before``, but never the last; how many."""
        end = min(before, Lsn(self.end() - 1))
        return self._connection.execute(
            _TRANSACTION.delete().where(_TRANSACTION.c.end_lsn <= end)
        ).rowcount

    def _xid_after(self, last: LakeTransaction | None) -> int:
        """Those of prepared transactions are given out, too."""
        given = [_FIRST_XID - 1 if last is None else self._newest_xid()]
        prepared = last_prepared_xid(self._connection)
        return _next_xid(max(given if prepared is None else [*given, prepared]))

    def _newest_xid(self) -> int:
        """Of the log: what was prepared has an older one than what stands before its end."""
        c = _TRANSACTION.c
        query = select(func.coalesce(c.newest_xid, c.xid)).order_by(c.end_lsn.desc()).limit(1)
        newest = self._connection.execute(query).scalar_one_or_none()
        return _FIRST_XID - 1 if newest is None else int(newest)

    def _last(self) -> LakeTransaction | None:
        query = select(*_READ).order_by(_TRANSACTION.c.end_lsn.desc()).limit(1)
        row = self._connection.execute(query).mappings().one_or_none()
        return None if row is None else _transaction(row)


def _after(lsn: Lsn) -> ColumnElement[bool]:
    # The end is what the primary key finds: it is implied by the commit.
    return (_TRANSACTION.c.end_lsn > lsn) & (_TRANSACTION.c.commit_lsn >= lsn)


def _align(size: int) -> int:
    return max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)


def _message_size(prefix: str, content: int) -> int:
    return _align(_MESSAGE_RECORD + len(prefix.encode()) + content)


def _next_xid(xid: int) -> int:
    return _FIRST_XID if xid >= _LAST_XID else xid + 1


def _values(transaction: LakeTransaction) -> dict[str, Any]:
    members = [list(dataclasses.astuple(member)) for member in transaction.members]
    return {
        "end_lsn": transaction.end,
        "commit_lsn": transaction.commit,
        "begin_lsn": transaction.begin,
        "xid": transaction.xid,
        "commit_time": transaction.commit_time,
        "origin": transaction.origin,
        "origin_lsn": transaction.origin_lsn,
        "members": json.dumps(members),
        "two_phase": None if transaction.two_phase is None else to_text(transaction.two_phase),
        "block_messages": block_messages.to_text(transaction.messages)
        if transaction.messages
        else None,
    }


def _transaction(row: RowMapping) -> LakeTransaction:
    transactional, message = row["message_transactional"], None
    if transactional is not None:
        message = EmittedMessage(transactional, row["message_prefix"])
    return LakeTransaction(
        xid=row["xid"],
        begin=row["begin_lsn"],
        commit=row["commit_lsn"],
        end=row["end_lsn"],
        commit_time=row["commit_time"],
        members=tuple(map(_member, json.loads(row["members"]))),
        origin=row["origin"],
        origin_lsn=row["origin_lsn"],
        message=message,
        two_phase=None if row["two_phase"] is None else from_text(row["two_phase"]),
        messages=block_messages.from_text(row["block_messages"] or "[]"),
    )


def _member(values: Sequence[Any]) -> Member:
    """Older nodes wrote the first four."""
    relation, uri, before, after, table_id, lost_to = (*values, None, None)[:6]
    held = None if lost_to is None else tuple(lost_to)
    return Member(relation, uri, before, after, table_id, held)
