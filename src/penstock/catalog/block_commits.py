"""Transaction blocks over several tables, and prepared ones, whose commits are under way.

In: a connection inside a transaction. Out: frozen rows. A row is there from before the first
table's commit until after the last table's, or until those that were made are taken back: what
finds one after a crash finishes it. What it does is JSON, whose meaning is the executor's.
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
    """``block``: its id, which its commits bear. ``relations``: oids of its tables. ``undone``: no
    commit of it is to be left. ``prepared``: the id of the prepared transaction that it commits.
    ``made``: tables that it makes, which are in no catalog as long as it is noted here.
    ``noted``: whether it is, or is to be, a row here, as one with messages (``block_messages``) is
    always."""

    block: str
    relations: tuple[int, ...]
    content: str
    undone: bool = False
    prepared: str | None = None
    made: tuple[MadeTable, ...] = ()
    noted: bool = field(default=False, compare=False)

    @property
    def is_alone(self) -> bool:
        """Whether it is one commit, which is not written down."""
        more = self.prepared is not None or self.made or self.noted
        return len(self.relations) == 1 and not more


class BlockCommits:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[BlockCommit, ...]:
        """Those that are under way."""
        return tuple(map(_row, self._connection.execute(select(_TABLE)).mappings()))

    def touch(self, relations: Iterable[int]) -> bool:
        """Whether any of them commits to one of these tables."""
        wanted = set(relations)
        found = self._connection.execute(select(_TABLE.c.relations)).scalars()
        return any(wanted.intersection(json.loads(text)) for text in found)

    def made(self) -> tuple[MadeTable, ...]:
        """Tables that they make."""
        found = self._connection.execute(select(_TABLE.c.made)).scalars()
        return tuple(table for text in found for table in _made(text))

    def makes(self, schema: str, name: str) -> bool:
        """Whether a table that they make is, or has, a relation of that name."""
        return any(table.row.schema == schema and name in table.names for table in self.made())

    def put(self, commit: BlockCommit) -> None:
        """Insert one, or replace the one of that block."""
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
        """No effect when it is gone."""
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
