"""Commits of the lake in one total order, with fixed LSNs: the node's WAL (xlog.c).

The sequencer (walsender) finds the commits. A transaction's changes are not kept here: they lie
between two versions of its tables. Messages that sessions emit are part of the same order; their
content may be long and is read separately. PREPARE TRANSACTION, with the changes that it has
staged, and its outcome are also part of the order (``TwoPhaseRecord``).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    LargeBinary,
    String,
    Table,
    Text,
    func,
    select,
)

from penstock.catalog.block_commits import (
    HEADS,
    BlockMessage,
    MessageHead,
    split_contents,
)
from penstock.catalog.metadata import METADATA, ColumnForm, LsnColumn, StoredTable, TableAccess
from penstock.catalog.pg_prepared_xacts import (
    TwoPhaseKind,
    TwoPhaseRecord,
    first_prepare,
    from_text,
    last_prepared_xid,
    to_text,
)
from penstock.lsn import Lsn

FIRST_LSN: Final = Lsn(0x0100_0000)
"""The start of a node's WAL: the second segment, as in PostgreSQL."""
_FIRST_XID: Final = 3  # FirstNormalTransactionId (transam.h)
_LAST_XID: Final = (1 << 32) - 1
_COMMIT_RECORD: Final = 48
"""Bytes between a transaction's commit_lsn and its end: the size of a commit record."""
_ALIGNMENT: Final = 8
_MESSAGE_RECORD: Final = 24 + 2 + 24 + 1
"""Bytes of a message's record besides its prefix and content: headers, xl_logical_message, the end
of the prefix."""


@dataclass(frozen=True, slots=True)
class Member:
    """The changes that one transaction made to a table, which lie between two versions of it.
    ``relation``: the table's oid (pg_class). ``from_version``: -1 if the table did not exist yet.
    ``table_id``: the Delta table's id at ``to_version``, None: not recorded. ``lost_to``: None
    while the changes can be read; afterwards the oids of the publications that had the table.
    """

    relation: int
    uri: str
    from_version: int
    to_version: int
    table_id: str | None = None
    lost_to: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """A message that a session has emitted (pg_logical_emit_message), without its content."""

    transactional: bool
    prefix: str


def _member(values: Sequence[Any]) -> Member:
    """Return a member of a row. Older nodes wrote only the first four values."""
    relation, uri, before, after, table_id, lost_to = (*values, None, None)[:6]
    held = None if lost_to is None else tuple(lost_to)
    return Member(relation, uri, before, after, table_id, held)


_MEMBERS: Final = ColumnForm(
    lambda members: json.dumps([list(dataclasses.astuple(member)) for member in members]),
    lambda text: tuple(map(_member, json.loads(text))),
)
_TWO_PHASE: Final = ColumnForm(to_text, from_text)


@dataclass(frozen=True, slots=True)
class LakeTransaction:
    """One entry of the WAL, mostly a committed transaction. ``begin`` < ``commit`` < ``end``; the
    ``end`` of an entry is the ``begin`` of the next.

    ``two_phase``: set for an entry of two-phase commit. PREPARE is an entry of its own: its members
    have the versions against which it was checked, and its content has the changes. COMMIT PREPARED
    has members like any transaction. Both have the same xid.

    ``messages``: messages that a block has emitted beside its changes.

    ``message``: the message of which the entry consists, instead of changes. A message that is not
    transactional belongs to no transaction: ``commit`` equals ``begin``, and ``xid`` is the
    previous one.

    ``commit_time``: microseconds since the Unix epoch. ``origin``, ``origin_lsn``: for a
    transaction that a subscription wrote, the name of its replication origin and the LSN there. The
    name is an appId if the subscription was dropped or is another node's.
    """

    xid: Annotated[int, Column("xid", BigInteger, nullable=False)]
    begin: Annotated[Lsn, Column("begin_lsn", LsnColumn, nullable=False)]
    commit: Annotated[Lsn, Column("commit_lsn", LsnColumn, nullable=False)]
    end: Annotated[Lsn, Column("end_lsn", LsnColumn, primary_key=True, autoincrement=False)]
    commit_time: Annotated[int, Column("commit_time", BigInteger, nullable=False)]
    members: Annotated[tuple[Member, ...], Column("members", Text, nullable=False), _MEMBERS]
    origin: Annotated[str | None, Column("origin", String(64))] = None
    origin_lsn: Annotated[Lsn | None, Column("origin_lsn", LsnColumn)] = None
    message: Annotated[
        EmittedMessage | None,
        (Column("message_transactional", Boolean), Column("message_prefix", Text)),
        ColumnForm(attrgetter("transactional", "prefix"), EmittedMessage),
    ] = None
    # NULL also in rows that older versions have written
    two_phase: Annotated[TwoPhaseRecord | None, Column("two_phase", Text), _TWO_PHASE] = None
    # NULL if no block has made the transaction, or the block has emitted no messages
    messages: Annotated[tuple[MessageHead, ...], Column("block_messages", Text), HEADS] = ()

    @property
    def place(self) -> Lsn:
        """The LSN as of which the catalogs are read to decode the entry: where its changes were
        made. For COMMIT PREPARED this is the PREPARE's LSN."""
        record = self.two_phase
        return self.begin if record is None or record.prepare is None else record.prepare.lsn

    @property
    def is_transaction(self) -> bool:
        """Return whether the entry is a transaction, with a beginning and a commit."""
        return self.message is None or self.message.transactional

    @property
    def message_end(self) -> Lsn:
        """The end of its message's record."""
        return self.commit if self.is_transaction else self.end

    @property
    def message_ends(self) -> tuple[Lsn, ...]:
        """The ends of the records of ``messages``, which lie directly before the commit."""
        sizes = [_message_size(head.prefix, head.size) for head in self.messages]
        ends = itertools.accumulate(sizes, initial=self.commit - sum(sizes))
        return tuple(map(Lsn, ends))[1:]


_TABLE: Final = StoredTable(
    "penstock_transaction",
    LakeTransaction,
    Column("message_content", LargeBinary),  # for PREPARE: the changes that it has staged
    # NULL if it is the transaction's own xid
    Column("newest_xid", BigInteger),
    Column("block_contents", LargeBinary),
)
_TRANSACTION: Final = _TABLE.table
_LONG: Final = ("message_content", "block_contents")
_END: Final = select(func.max(_TRANSACTION.c.end_lsn))
_READ: Final = tuple(c for c in _TRANSACTION.c if c.name not in _LONG)


# The version of each table up to which its commits are in the WAL. The sequencer (walsender) finds
# later commits.

_SEQUENCED: Final = Table(
    "penstock_sequenced",
    METADATA,
    Column("relid", BigInteger, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("table_id", Text),
)
_PARAMETERS: Final = 500
"""The most parameters of a statement: a caller that asks for more tables gets all rows."""


@dataclass(frozen=True, slots=True)
class Sequenced:
    """The last version of a table that is in the WAL. ``table_id``: the id of the Delta table
    (``metaData.id``), None if an older node did not record it."""

    version: int
    table_id: str | None = None


class PgTransactions(TableAccess):
    """The node's WAL, within one transaction of the state store."""

    def end(self) -> Lsn:
        """Return the end of the last transaction: the next one begins there
        (pg_current_wal_lsn)."""
        end = self.connection.execute(_END).scalar_one()
        return FIRST_LSN if end is None else Lsn(end)

    def next_xid(self) -> int:
        """Return the ID that the next transaction will get."""
        return self._xid_after(self._last())

    def xid_at(self, lsn: Lsn) -> int:
        """Return the ID of the first transaction that commits at or after ``lsn``, or the ID that
        the next one will get."""
        query = select(_TRANSACTION.c.xid).where(_after(lsn))
        found = self.connection.execute(query.order_by(_TRANSACTION.c.end_lsn).limit(1)).scalar()
        return self.next_xid() if found is None else int(found)

    def versions(self) -> Mapping[int, int]:
        """Return, by table oid, the version up to which a table's commits are in the WAL."""
        return {relid: at.version for relid, at in self.sequenced().items()}

    def sequenced(self, relations: Collection[int] | None = None) -> Mapping[int, Sequenced]:
        """Return, by table oid, how far a table's commits are in the WAL. The result has all
        tables, or at least those of ``relations``."""
        few = relations is not None and len(relations) <= _PARAMETERS
        query = select(_SEQUENCED)
        if few:
            query = query.where(_SEQUENCED.c.relid.in_(relations or ()))
        rows = self.connection.execute(query).mappings()
        return {int(row["relid"]): Sequenced(row["version"], row["table_id"]) for row in rows}

    def latest_commit_time(self) -> int:
        """Return the latest commit time in the WAL, 0 if the WAL is empty."""
        query = select(func.max(_TRANSACTION.c.commit_time))
        return int(self.connection.execute(query).scalar_one() or 0)

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
        """Append a transaction. ``size``: the bytes of WAL that its changes take. ``xid``: an ID
        that was given out already; None: the next ID. ``content``: the staged changes of a PREPARE.
        """
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
        more: dict[str, Any] = {"message_content": content}
        if messages:
            more["block_contents"] = b"".join(message.content for message in messages)
        if xid is not None:
            more["newest_xid"] = max(self._newest_xid(), xid)
        _TABLE.insert(self.connection, transaction, **more)
        if two_phase is None or two_phase.kind is not TwoPhaseKind.PREPARE:
            for member in members:
                self.advance(member.relation, member.to_version, member.table_id)
        return transaction

    def emit(self, message: EmittedMessage, content: bytes, *, commit_time: int) -> LakeTransaction:
        """Append a message (LogLogicalMessage)."""
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
        _TABLE.insert(self.connection, emitted, message_content=content)
        return emitted

    def content(self, transaction: LakeTransaction) -> bytes:
        """Return the content of a transaction's message, or of a PREPARE. It is kept as long as a
        slot needs it."""
        c = _TRANSACTION.c
        query = select(c.message_content).where(c.end_lsn == transaction.end)
        return bytes(self.connection.execute(query).scalar_one())

    def contents(self, transaction: LakeTransaction) -> tuple[bytes, ...]:
        """Return the contents of a block's messages, in order. They are kept as long as a slot
        needs them."""
        c = _TRANSACTION.c
        query = select(c.block_contents).where(c.end_lsn == transaction.end)
        contents = bytes(self.connection.execute(query).scalar_one() or b"")
        return split_contents(transaction.messages, contents)

    def advance(self, relid: int, version: int, table_id: str | None = None) -> None:
        """Record how far a table has been sequenced, also for the first time. ``table_id`` None
        keeps the recorded id."""
        same = _SEQUENCED.c.relid == relid
        values: dict[str, Any] = {"version": version}
        if table_id is not None:
            values["table_id"] = table_id
        moved = self.connection.execute(_SEQUENCED.update().where(same).values(**values))
        if moved.rowcount == 0:
            self.connection.execute(_SEQUENCED.insert().values(relid=relid, **values))

    def forget(self, relid: int) -> None:
        """Forget a table that is gone; no effect when it is not known."""
        self.connection.execute(_SEQUENCED.delete().where(_SEQUENCED.c.relid == relid))

    def after(self, lsn: Lsn, limit: int) -> tuple[LakeTransaction, ...]:
        """Return the next transactions that commit at or after ``lsn``, in order, at most
        ``limit``.

        The LSN of the commit counts, not its end (SnapBuildXactNeedsSkip): a client that asks
        from a transaction's finish LSN + 1 on does not want that transaction.
        """
        query = select(*_READ).where(_after(lsn))
        query = query.order_by(_TRANSACTION.c.end_lsn).limit(limit)
        return _TABLE.records(self.connection.execute(query))

    def count_after(self, lsn: Lsn) -> int:
        """Return the number of transactions that commit at or after ``lsn``."""
        query = select(func.count()).where(_after(lsn))
        return int(self.connection.execute(query).scalar_one())

    def boundary(self, lsn: Lsn) -> Lsn:
        """Return ``lsn``. If it lies in a commit record, return the end of that record instead."""
        c = _TRANSACTION.c
        query = select(c.commit_lsn, c.end_lsn).where(c.end_lsn > lsn).order_by(c.end_lsn).limit(1)
        row = self.connection.execute(query).one_or_none()
        return lsn if row is None or row.commit_lsn >= lsn else Lsn(row.end_lsn)

    def oldest(self) -> Lsn:
        """Return the start of the WAL, which has every transaction that ends after it."""
        begin = self.connection.execute(select(func.min(_TRANSACTION.c.begin_lsn))).scalar_one()
        return FIRST_LSN if begin is None else Lsn(begin)

    def oldest_place(self) -> Lsn:
        """Return the earliest LSN as of which the catalogs may be read to decode the WAL's entries,
        now or later. A prepared transaction counts from its PREPARE (``LakeTransaction.place``)."""
        query = select(_TRANSACTION.c.two_phase).where(_TRANSACTION.c.two_phase.is_not(None))
        records = [from_text(text) for (text,) in self.connection.execute(query)]
        places = [record.prepare.lsn for record in records if record.prepare is not None]
        first = first_prepare(self.connection)
        return min([self.oldest(), *places, *([] if first is None else [first])])

    def prune(self, before: Lsn) -> int:
        """Forget transactions that end at or before ``before``, but never the last one. Return
        their number."""
        end = min(before, Lsn(self.end() - 1))
        return self.connection.execute(
            _TRANSACTION.delete().where(_TRANSACTION.c.end_lsn <= end)
        ).rowcount

    def _xid_after(self, last: LakeTransaction | None) -> int:
        """Return the next ID, after those of the WAL and those of prepared transactions."""
        given = [_FIRST_XID - 1 if last is None else self._newest_xid()]
        prepared = last_prepared_xid(self.connection)
        return _next_xid(max(given if prepared is None else [*given, prepared]))

    def _newest_xid(self) -> int:
        """Return the newest ID in the WAL. It need not be the last entry's: a prepared transaction
        has an older ID than transactions that are committed before it."""
        c = _TRANSACTION.c
        query = select(func.coalesce(c.newest_xid, c.xid)).order_by(c.end_lsn.desc()).limit(1)
        newest = self.connection.execute(query).scalar_one_or_none()
        return _FIRST_XID - 1 if newest is None else int(newest)

    def _last(self) -> LakeTransaction | None:
        query = select(*_READ).order_by(_TRANSACTION.c.end_lsn.desc()).limit(1)
        return _TABLE.one(self.connection.execute(query))


def _after(lsn: Lsn) -> ColumnElement[bool]:
    # The commit implies the condition on the end, which the primary key can look up.
    return (_TRANSACTION.c.end_lsn > lsn) & (_TRANSACTION.c.commit_lsn >= lsn)


def _align(size: int) -> int:
    return max(_ALIGNMENT, -(-size // _ALIGNMENT) * _ALIGNMENT)


def _message_size(prefix: str, content: int) -> int:
    return _align(_MESSAGE_RECORD + len(prefix.encode()) + content)


def _next_xid(xid: int) -> int:
    return _FIRST_XID if xid >= _LAST_XID else xid + 1
