"""Commits under way of transaction blocks that span several tables or were prepared.

In: a connection inside a transaction. Out: frozen rows. A row exists from before the first table's
commit until after the last table's, or until the commits already made are taken back. Whoever finds
a row after a crash finishes it. ``content`` is JSON that only the executor interprets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Boolean, Column, Connection, RowMapping, String, Table, Text, select

from penstock.catalog.made_tables import MadeTable, from_json, to_json
from penstock.catalog.metadata import METADATA

_TABLE = Table(
    "penstock_block_commit",
    METADATA,
    Column("block", String(36), primary_key=True),
    Column("undone", Boolean, nullable=False),
    Column("relations", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("prepared", String(36)),
    Column("made", Text),
)


@dataclass(frozen=True, slots=True)
class BlockCommit:
    """The commit of one transaction block.

    ``block``: its id, which its commits bear. ``relations``: oids of its tables. ``undone``: none
    of its commits may remain. ``prepared``: the id of the prepared transaction that it commits.
    ``made``: tables that it makes, which are in no catalog while the row exists. ``noted``: the
    commit is a row here or has to become one, as that of a block with messages
    (``block_messages``) always does."""

    block: str
    relations: tuple[int, ...]
    content: str
    undone: bool = False
    prepared: str | None = None
    made: tuple[MadeTable, ...] = ()
    noted: bool = field(default=False, compare=False)

    @property
    def is_alone(self) -> bool:
        """Tell whether the block is one table's commit, which needs no row here."""
        more = self.prepared is not None or self.made or self.noted
        return len(self.relations) == 1 and not more


class BlockCommits:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[BlockCommit, ...]:
        """Return all commits that are under way."""
        return tuple(map(_row, self._connection.execute(select(_TABLE)).mappings()))

    def touch(self, relations: Iterable[int]) -> bool:
        """Tell whether any of them commits to one of these tables."""
        wanted = set(relations)
        found = self._connection.execute(select(_TABLE.c.relations)).scalars()
        return any(wanted.intersection(json.loads(text)) for text in found)

    def made(self) -> tuple[MadeTable, ...]:
        """Return the tables that they make."""
        found = self._connection.execute(select(_TABLE.c.made)).scalars()
        return tuple(table for text in found for table in _made(text))

    def makes(self, schema: str, name: str) -> bool:
        """Tell whether a table that they make is, or owns, a relation of that name."""
        return any(table.row.schema == schema and name in table.names for table in self.made())

    def put(self, commit: BlockCommit) -> None:
        """Insert a commit, or replace the one of the same block."""
        self.delete(commit.block)
        values = {
            "block": commit.block,
            "undone": commit.undone,
            "relations": json.dumps(commit.relations),
            "content": commit.content,
            "prepared": commit.prepared,
            "made": json.dumps([to_json(table) for table in commit.made]) if commit.made else None,
        }
        self._connection.execute(_TABLE.insert().values(**values))

    def delete(self, block: str) -> None:
        """Delete the block's row; no effect when it is gone."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.block == block))


def _row(row: RowMapping) -> BlockCommit:
    relations = tuple(json.loads(row["relations"]))
    return BlockCommit(
        row["block"],
        relations,
        row["content"],
        row["undone"],
        row["prepared"],
        _made(row["made"]),
        noted=True,
    )


def _made(text: str | None) -> tuple[MadeTable, ...]:
    return tuple(map(from_json, json.loads(text or "[]")))
