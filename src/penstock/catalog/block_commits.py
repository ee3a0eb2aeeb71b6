"""Commits under way of transaction blocks that span several tables or were prepared.

In: a connection inside a transaction. Out: frozen rows. A row exists from before the first table's
commit until after the last table's, or until the commits already made are taken back. Whoever finds
a row after a crash finishes it. ``content`` is JSON that only the executor interprets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from sqlalchemy import Boolean, Column, Connection, String, Text, select

from penstock.catalog.made_tables import MadeTable, from_json, to_json
from penstock.catalog.metadata import LIST, ColumnForm, StoredTable

_MADE: Final = ColumnForm(
    lambda made: json.dumps([to_json(table) for table in made]) if made else None,
    lambda text: tuple(map(from_json, json.loads(text))),
)


@dataclass(frozen=True, slots=True)
class BlockCommit:
    """The commit of one transaction block.

    ``block``: its id, which its commits bear. ``relations``: oids of its tables. ``undone``: none
    of its commits may remain. ``prepared``: the id of the prepared transaction that it commits.
    ``made``: tables that it makes, which are in no catalog while the row exists. ``noted``: the
    commit is a row here or has to become one, as that of a block with messages
    (``block_messages``) always does."""

    block: Annotated[str, Column("block", String(36), primary_key=True)]
    relations: Annotated[tuple[int, ...], Column("relations", Text, nullable=False), LIST]
    content: Annotated[str, Column("content", Text, nullable=False)]
    undone: Annotated[bool, Column("undone", Boolean, nullable=False)] = False
    prepared: Annotated[str | None, Column("prepared", String(36))] = None
    made: Annotated[tuple[MadeTable, ...], Column("made", Text), _MADE] = ()
    noted: bool = field(default=False, compare=False)

    @property
    def is_alone(self) -> bool:
        """Tell whether the block is one table's commit, which needs no row here."""
        more = self.prepared is not None or self.made or self.noted
        return len(self.relations) == 1 and not more


_TABLE: Final = StoredTable("penstock_block_commit", BlockCommit)


class BlockCommits:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[BlockCommit, ...]:
        """Return all commits that are under way."""
        return tuple(replace(commit, noted=True) for commit in _TABLE.all(self._connection))

    def touch(self, relations: Iterable[int]) -> bool:
        """Tell whether any of them commits to one of these tables."""
        wanted = set(relations)
        found = self._connection.execute(select(_TABLE.c.relations)).scalars()
        return any(wanted.intersection(json.loads(text)) for text in found)

    def made(self) -> tuple[MadeTable, ...]:
        """Return the tables that they make."""
        return tuple(table for commit in self.all() for table in commit.made)

    def makes(self, schema: str, name: str) -> bool:
        """Tell whether a table that they make is, or owns, a relation of that name."""
        return any(table.row.schema == schema and name in table.names for table in self.made())

    def put(self, commit: BlockCommit) -> None:
        """Insert a commit, or replace the one of the same block."""
        self.delete(commit.block)
        _TABLE.insert(self._connection, commit)

    def delete(self, block: str) -> None:
        """Delete the block's row; no effect when it is gone."""
        _TABLE.delete(self._connection, _TABLE.c.block == block)
