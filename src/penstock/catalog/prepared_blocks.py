"""Prepared transactions of the node's own sessions (twophase.c).

In: a connection inside a transaction. Out: frozen rows. A row exists from before the block is
prepared until all its tables have their commits, in their logs and in the node's, or until its
files are gone. ``content`` is JSON that only the executor interprets. Prepared transactions of
publishers are in ``pg_prepared_xacts``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any, Final

from sqlalchemy import BigInteger, Column, Connection, String, Text, func, select

from penstock.catalog.block_messages import BlockMessages
from penstock.catalog.metadata import LIST, ColumnForm, LsnColumn, StoredTable, enum_form
from penstock.catalog.two_phase_records import PrepareRecord
from penstock.lsn import Lsn


class PreparedState(Enum):
    """The state of a block."""

    PREPARING = "p"
    """The client has no answer yet. If the node ends there will be none: the block is rolled back
    then."""
    PREPARED = "r"
    ROLLED_BACK = "d"
    """The block's files are removed once no slot has to be told of it any more."""
    COMMITTED = "c"
    """The block's tables have their commits, but the log does not say so yet."""


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A prepared transaction. ``prepared``: microseconds since 1970. ``owner``: oid of a role.
    ``relations``: oids of the tables that it changes. ``prepare``: the place of its PREPARE in the
    log; None if the log has it only when it is committed, like any transaction. ``commit_block``:
    the block id that its commits bear."""

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
    # NULL if the log has no PREPARE of it, or already has its outcome
    prepare: Annotated[
        PrepareRecord | None,
        (Column("prepare_lsn", LsnColumn), Column("prepare_end", LsnColumn)),
        ColumnForm(attrgetter("lsn", "end"), PrepareRecord, also=("prepared",)),
    ] = None
    # NULL before COMMIT PREPARED
    commit_block: Annotated[str | None, Column("commit_block", String(36))] = None

    @property
    def in_doubt(self) -> bool:
        """Tell whether it waits for its second phase."""
        return self.state is PreparedState.PREPARED

    @property
    def holds(self) -> bool:
        """Tell whether it still bars others from changing its rows and from taking its name."""
        return self.state in (PreparedState.PREPARING, PreparedState.PREPARED)


_TABLE: Final = StoredTable("penstock_prepared_block", PreparedBlock)


class PreparedBlocks:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[PreparedBlock, ...]:
        """Return all blocks in the order of their transaction IDs."""
        return _TABLE.all(self._connection, order_by=[_TABLE.c.xid])

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
        """Return the transaction IDs that are given out and are in no log."""
        return frozenset(block.xid for block in self.all() if block.holds)

    def committed_by(self, block: str) -> PreparedBlock | None:
        """Return the block whose commits bear that id, or None."""
        return next((found for found in self.all() if found.commit_block == block), None)

    def put(self, block: PreparedBlock) -> None:
        """Insert a block, or replace the one of the same id."""
        self.delete(block.id)
        _TABLE.insert(self._connection, block)

    def set_state(self, block_id: str, state: PreparedState) -> None:
        """Set a block's state; no effect when it is gone."""
        same = _TABLE.c.id == block_id
        self._connection.execute(_TABLE.table.update().where(same).values(state=state.value))

    def begin_commit(self, block_id: str, block: str) -> None:
        """Record the id that the block's commits bear."""
        same = _TABLE.c.id == block_id
        self._connection.execute(_TABLE.table.update().where(same).values(commit_block=block))

    def end_commit(self, block_id: str) -> None:
        """Record that the block has its commits. Only the log has still to say so, if it has the
        PREPARE; otherwise the row is deleted."""
        found = self.get(block_id)
        if found is not None and found.prepare is not None:
            self.set_state(block_id, PreparedState.COMMITTED)
        else:
            self.delete(block_id)

    def told(self, block_id: str, prepare: PrepareRecord | None) -> None:
        """Record that the log has the block's PREPARE; None: it has the outcome, too, and nothing
        more is to come."""
        values: dict[str, Any] = {"prepare_lsn": None, "prepare_end": None}
        if prepare is not None:
            values = {
                "prepare_lsn": prepare.lsn,
                "prepare_end": prepare.end,
                "prepared": prepare.time,
            }
        same = _TABLE.c.id == block_id
        self._connection.execute(_TABLE.table.update().where(same).values(**values))

    def delete(self, block_id: str) -> None:
        """Delete a block and its messages; no effect when it is gone."""
        BlockMessages(self._connection).delete(block_id)
        _TABLE.delete(self._connection, _TABLE.c.id == block_id)


def first_prepare(connection: Connection) -> Lsn | None:
    """Return the place of the first PREPARE in the log whose outcome is still open, or None."""
    first = connection.execute(select(func.min(_TABLE.c.prepare_lsn))).scalar_one_or_none()
    return None if first is None else Lsn(first)


def last_prepared_xid(connection: Connection) -> int | None:
    """Return the last transaction ID of the blocks here, or None."""
    query = select(func.max(_TABLE.c.xid))
    last = connection.execute(query).scalar_one()
    return None if last is None else int(last)
