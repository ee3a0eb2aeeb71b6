"""Prepared transactions of publishers and of the node's own sessions (twophase.c).

A publisher's transaction has a row from its PREPARE TRANSACTION until a cut has its changes after
COMMIT PREPARED, or until it is rolled back. Its changes are kept in the warehouse, in ``folder``;
no reader sees them before it is committed.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from typing import Annotated, Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Connection, String, Text, func, select

from penstock.catalog.block_commits import BlockMessages
from penstock.catalog.metadata import (
    LIST,
    ColumnForm,
    LsnColumn,
    StoredTable,
    TableAccess,
    enum_form,
)
from penstock.lsn import Lsn

# Records of two-phase commit in the node's WAL (xact.h, xl_xact_prepare, xl_xact_twophase).


class TwoPhaseKind(StrEnum):
    """The kinds of records."""

    PREPARE = "prepare"
    COMMIT_PREPARED = "commit"
    ROLLBACK_PREPARED = "rollback"


@dataclass(frozen=True, slots=True)
class PrepareRecord:
    """The record of a PREPARE TRANSACTION in the node's WAL: its LSN, its end, and its time in
    microseconds since the Unix epoch."""

    lsn: Lsn
    end: Lsn
    time: int


@dataclass(frozen=True, slots=True)
class TwoPhaseRecord:
    """A record of two-phase commit. ``prepare``: the PREPARE that it commits or rolls back; None if
    the record is a PREPARE itself."""

    kind: TwoPhaseKind
    gid: str
    prepare: PrepareRecord | None = None


def to_text(record: TwoPhaseRecord) -> str:
    """Return the record as text for a column."""
    at = record.prepare
    prepare = None if at is None else [at.lsn, at.end, at.time]
    return json.dumps([record.kind.value, record.gid, prepare])


def from_text(text: str) -> TwoPhaseRecord:
    """Return the record that ``to_text`` has written."""
    kind, gid, prepare = json.loads(text)
    at = None
    if prepare is not None:
        lsn, end, time = prepare
        at = PrepareRecord(Lsn(lsn), Lsn(end), time)
    return TwoPhaseRecord(TwoPhaseKind(kind), gid, at)


@dataclass(frozen=True, slots=True)
class PreparedXact:
    """A prepared transaction. ``xid`` and ``gid`` are the publisher's. ``prepare_time``:
    microseconds since 1970. ``runs``: the number of frames in each file of the folder;
    ``relations``: OIDs of the relations that these frames define. ``prepare_lsn``: the LSN of its
    PREPARE, which SKIP takes; None if an older node wrote the row. ``commit_lsn``, ``finish_lsn``:
    LSN and end of its COMMIT PREPARED, once that has arrived. ``skipped``: it is not applied."""

    subid: Annotated[int, Column("subid", BigInteger, primary_key=True, autoincrement=False)]
    xid: Annotated[int, Column("xid", BigInteger, primary_key=True, autoincrement=False)]
    gid: Annotated[str, Column("gid", String(200), nullable=False)]
    prepare_end_lsn: Annotated[Lsn, Column("prepare_end_lsn", LsnColumn, nullable=False)]
    prepare_time: Annotated[int, Column("prepare_time", BigInteger, nullable=False)]
    folder: Annotated[str, Column("folder", String, nullable=False)]
    runs: Annotated[tuple[int, ...], Column("runs", Text, nullable=False), LIST]
    relations: Annotated[tuple[int, ...], Column("relations", Text, nullable=False), LIST]
    finish_lsn: Annotated[Lsn | None, Column("finish_lsn", LsnColumn)] = None
    prepare_lsn: Annotated[Lsn | None, Column("prepare_lsn", LsnColumn)] = None
    commit_lsn: Annotated[Lsn | None, Column("commit_lsn", LsnColumn)] = None
    skipped: Annotated[bool, Column("skipped", Boolean)] = False

    @property
    def local_gid(self) -> str:
        """The name that PostgreSQL's subscriber gives it (TwoPhaseTransactionGid): several
        publishers may use the same ``gid``."""
        return f"pg_gid_{self.subid}_{self.xid}"


_TABLE: Final = StoredTable("penstock_prepared_xact", PreparedXact)


class PgPreparedXacts(TableAccess):
    """The table, within one transaction."""

    def all(self, subid: int | None = None) -> tuple[PreparedXact, ...]:
        """Return the prepared transactions of one subscription, or of all."""
        where = () if subid is None else (_TABLE.c.subid == subid,)
        order = (_TABLE.c.subid, _TABLE.c.prepare_end_lsn)
        return _TABLE.all(self.connection, *where, order_by=order)

    def find(self, subid: int, xid: int) -> PreparedXact | None:
        """Return a subscription's transaction by its xid, or None."""
        return _TABLE.find(self.connection, _TABLE.c.subid == subid, _TABLE.c.xid == xid)

    def put(self, xact: PreparedXact) -> None:
        """Insert a transaction; it replaces a row with the same subscription and xid."""
        self.delete(xact.subid, xact.xid)
        _TABLE.insert(self.connection, xact)

    def delete(self, subid: int, xid: int) -> None:
        """Delete a transaction; no effect when it is gone."""
        _TABLE.delete(self.connection, _TABLE.c.subid == subid, _TABLE.c.xid == xid)

    def delete_all(self, subid: int) -> None:
        """Delete the transactions of a subscription that is dropped."""
        _TABLE.delete(self.connection, _TABLE.c.subid == subid)


# Prepared transactions of the node's own sessions (twophase.c). A row is made before the block is
# prepared. It is deleted when the commits of all tables are in their Delta logs and in the node's
# WAL, or when the files of a rolled back block are gone. Only the executor interprets ``content``,
# which is JSON.


class PreparedState(Enum):
    """The state of a block."""

    PREPARING = "p"
    """The client has no answer yet. If the node ends now, the client gets no answer, and the block
    is rolled back."""
    PREPARED = "r"
    ROLLED_BACK = "d"
    """The block's files are removed once no slot needs its outcome any more."""
    COMMITTED = "c"
    """The block's tables have their commits, but the node's WAL does not have them yet."""


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A prepared transaction. ``prepared``: microseconds since 1970. ``owner``: oid of a role.
    ``relations``: oids of the tables that it changes. ``prepare``: its PREPARE in the node's WAL;
    None if the WAL gets the transaction only at its commit, like any other. ``commit_block``: the
    block id that its commits bear."""

    id: Annotated[str, Column("id", String(36), primary_key=True)]
    gid: Annotated[str, Column("gid", String(200), nullable=False)]
    xid: Annotated[int, Column("xid", BigInteger, nullable=False)]
    prepared: Annotated[int, Column("prepared", BigInteger, nullable=False)]
    owner: Annotated[int, Column("owner", BigInteger, nullable=False)]
    relations: Annotated[tuple[int, ...], Column("relations", Text, nullable=False), LIST]
    content: Annotated[str, Column("content", Text, nullable=False)]
    state: Annotated[
        PreparedState, Column("state", String(1), nullable=False), enum_form(PreparedState)
    ] = PreparedState.PREPARING
    # NULL if the WAL has no PREPARE of it, or already has its outcome
    prepare: Annotated[
        PrepareRecord | None,
        (Column("prepare_lsn", LsnColumn), Column("prepare_end", LsnColumn)),
        ColumnForm(attrgetter("lsn", "end"), PrepareRecord, also=("prepared",)),
    ] = None
    # NULL before COMMIT PREPARED
    commit_block: Annotated[str | None, Column("commit_block", String(36))] = None

    @property
    def in_doubt(self) -> bool:
        """Return whether the block waits for its second phase."""
        return self.state is PreparedState.PREPARED

    @property
    def holds(self) -> bool:
        """Return whether the block still locks its rows and its name against others."""
        return self.state in (PreparedState.PREPARING, PreparedState.PREPARED)


_BLOCKS: Final = StoredTable("penstock_prepared_block", PreparedBlock)


class PreparedBlocks(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[PreparedBlock, ...]:
        """Return all blocks in the order of their transaction IDs."""
        return _BLOCKS.all(self.connection, order_by=[_BLOCKS.c.xid])

    def get(self, block_id: str) -> PreparedBlock | None:
        """Return the block of that id, or None."""
        return next((block for block in self.all() if block.id == block_id), None)

    def find(self, gid: str) -> PreparedBlock | None:
        """Return the block that holds that name, or None."""
        return next((block for block in self.all() if block.gid == gid and block.holds), None)

    def holding(self, relations: Collection[int]) -> tuple[PreparedBlock, ...]:
        """Return the blocks that hold rows of any of these tables."""
        wanted = set(relations)
        return tuple(b for b in self.all() if b.holds and not wanted.isdisjoint(b.relations))

    def xids(self) -> frozenset[int]:
        """Return the transaction IDs of the blocks that have no outcome yet."""
        return frozenset(block.xid for block in self.all() if block.holds)

    def committed_by(self, block: str) -> PreparedBlock | None:
        """Return the block whose commits bear that id, or None."""
        return next((found for found in self.all() if found.commit_block == block), None)

    def put(self, block: PreparedBlock) -> None:
        """Insert a block; it replaces the row with its id."""
        self.delete(block.id)
        _BLOCKS.insert(self.connection, block)

    def set_state(self, block_id: str, state: PreparedState) -> None:
        """Set a block's state; no effect when it is gone."""
        same = _BLOCKS.c.id == block_id
        self.connection.execute(_BLOCKS.table.update().where(same).values(state=state.value))

    def begin_commit(self, block_id: str, block: str) -> None:
        """Record the id that the block's commits bear."""
        same = _BLOCKS.c.id == block_id
        self.connection.execute(_BLOCKS.table.update().where(same).values(commit_block=block))

    def end_commit(self, block_id: str) -> None:
        """Record that the block has its commits. If the WAL has its PREPARE, the row stays until
        the WAL has the outcome; otherwise it is deleted."""
        found = self.get(block_id)
        if found is not None and found.prepare is not None:
            self.set_state(block_id, PreparedState.COMMITTED)
        else:
            self.delete(block_id)

    def told(self, block_id: str, prepare: PrepareRecord | None) -> None:
        """Record that the WAL has the block's PREPARE; None: the WAL has the outcome, too."""
        values: dict[str, Any] = {"prepare_lsn": None, "prepare_end": None}
        if prepare is not None:
            values = {
                "prepare_lsn": prepare.lsn,
                "prepare_end": prepare.end,
                "prepared": prepare.time,
            }
        same = _BLOCKS.c.id == block_id
        self.connection.execute(_BLOCKS.table.update().where(same).values(**values))

    def delete(self, block_id: str) -> None:
        """Delete a block and its messages; no effect when it is gone."""
        BlockMessages(self.connection).delete(block_id)
        _BLOCKS.delete(self.connection, _BLOCKS.c.id == block_id)


def first_prepare(connection: Connection) -> Lsn | None:
    """Return the LSN of the first PREPARE in the WAL whose outcome is still open, or None."""
    first = connection.execute(select(func.min(_BLOCKS.c.prepare_lsn))).scalar_one_or_none()
    return None if first is None else Lsn(first)


def last_prepared_xid(connection: Connection) -> int | None:
    """Return the last transaction ID of the blocks here, or None."""
    query = select(func.max(_BLOCKS.c.xid))
    last = connection.execute(query).scalar_one()
    return None if last is None else int(last)
