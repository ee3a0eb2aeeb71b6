"""Transaction blocks on tables of the lake that are prepared, or whose commits are under way.

In: a connection inside a transaction. Out: frozen rows. A row is there from PREPARE TRANSACTION, or
from before the first table's commit, until after the last table's, or until those that were made
are taken back: what finds one after a crash finishes it. What it does is JSON, whose meaning is the
executor's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum

from sqlalchemy import BigInteger, Column, Connection, RowMapping, String, Table, Text, func, select

from penstock.catalog.metadata import METADATA

_TABLE = Table(
    "penstock_block_commit",
    METADATA,
    Column("block", String(36), primary_key=True),
    Column("state", String(8), nullable=False),
    Column("content", Text, nullable=False),
    Column("gid", String(200)),
    Column("owner", BigInteger),
    Column("prepare_time", BigInteger),
    Column("xid", BigInteger),
)


class BlockState(Enum):
    """What becomes of a block: it waits, all of its commits are made, or none is to be left."""

    PREPARED = "prepared"
    COMMITS = "commits"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class BlockCommit:
    """``block``: its id, which its commits bear. ``gid``, ``owner`` (a role's oid),
    ``prepare_time`` (microseconds since 1970) and ``xid``: of PREPARE TRANSACTION."""

    block: str
    state: BlockState
    content: str
    gid: str | None = None
    owner: int | None = None
    prepare_time: int | None = None
    xid: int | None = None


class BlockCommits:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[BlockCommit, ...]:
        """Those that are there."""
        rows = self._connection.execute(select(_TABLE).order_by(_TABLE.c.xid)).mappings()
        return tuple(map(_row, rows))

    def prepared(self, gid: str) -> BlockCommit | None:
        """The one of that name that waits."""
        return next(
            (one for one in self.all() if one.state is BlockState.PREPARED and one.gid == gid), None
        )

    def next_xid(self) -> int:
        """A number for the next one that is prepared."""
        last = self._connection.execute(select(func.max(_TABLE.c.xid))).scalar_one()
        return 1 if last is None else int(last) + 1

    def put(self, commit: BlockCommit) -> None:
        """Insert one, or replace the one of that block."""
        self.delete(commit.block)
        values = {**asdict(commit), "state": commit.state.value}
        self._connection.execute(_TABLE.insert().values(**values))

    def delete(self, block: str) -> None:
        """No effect when it is gone."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.block == block))


def _row(row: RowMapping) -> BlockCommit:
    return BlockCommit(
        row["block"],
        BlockState(row["state"]),
        row["content"],
        row["gid"],
        row["owner"],
        row["prepare_time"],
        row["xid"],
    )
