"""Unfinished commits of transaction blocks that span several tables or were prepared.

A row exists from before the first table's commit until after the last table's commit, or until the
block's commits are taken back. A process that finds a row after a crash finishes the block. Only
the executor interprets ``content``, which is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final

from sqlalchemy import Boolean, Column, LargeBinary, String, Text, select

from penstock.catalog.metadata import LIST, ColumnForm, StoredTable, TableAccess
from penstock.catalog.pg_class import LakeTable, lake_table, stored_table
from penstock.catalog.pg_sequence import Sequence

# Tables that a transaction block has made, and that are in no catalog yet.


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A table that a block has made. ``entry``: the lines of the first entry of its Delta log,
    which is not written yet."""

    row: LakeTable
    sequences: tuple[Sequence, ...]
    entry: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the table's relations: its own and those of its sequences."""
        return (*self.row.own_names, *(sequence.name for sequence in self.sequences))

    @property
    def uri(self) -> str:
        """The URI where the table will lie."""
        return self.row.uri or ""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The Delta table's ``metaData`` action."""
        found = (json.loads(line).get("metaData") for line in self.entry)
        return next(metadata for metadata in found if metadata)

    @property
    def table_id(self) -> str:
        """The Delta table's id."""
        return str(self.metadata["id"])


def to_json(table: MadeTable) -> dict[str, Any]:
    """Return the table as JSON."""
    return {
        "row": stored_table(table.row),
        "sequences": [asdict(sequence) for sequence in table.sequences],
        "entry": list(table.entry),
    }


def from_json(found: Mapping[str, Any]) -> MadeTable:
    """Return the table that ``to_json`` has written."""
    return MadeTable(
        lake_table(found["row"]),
        tuple(Sequence(**sequence) for sequence in found["sequences"]),
        tuple(found["entry"]),
    )


_MADE: Final = ColumnForm(
    lambda made: json.dumps([to_json(table) for table in made]) if made else None,
    lambda text: tuple(map(from_json, json.loads(text))),
)


@dataclass(frozen=True, slots=True)
class BlockCommit:
    """The commit of one transaction block.

    ``block``: the block's id, which its tables' commits bear. ``relations``: oids of its tables.
    ``undone``: all of its commits must be taken back. ``prepared``: the id of the prepared
    transaction that it commits. ``made``: tables that it makes, which are in no catalog while the
    row exists. ``noted``: it has or needs a row here, for example because it has messages.
    """

    block: Annotated[str, Column("block", String(36), primary_key=True)]
    relations: Annotated[tuple[int, ...], Column("relations", Text, nullable=False), LIST]
    content: Annotated[str, Column("content", Text, nullable=False)]
    undone: Annotated[bool, Column("undone", Boolean, nullable=False)] = False
    prepared: Annotated[str | None, Column("prepared", String(36))] = None
    made: Annotated[tuple[MadeTable, ...], Column("made", Text), _MADE] = ()
    noted: bool = field(default=False, compare=False)

    @property
    def is_alone(self) -> bool:
        """Return whether the block is one table's commit, which needs no row here."""
        more = self.prepared is not None or self.made or self.noted
        return len(self.relations) == 1 and not more


_TABLE: Final = StoredTable("penstock_block_commit", BlockCommit)


class BlockCommits(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[BlockCommit, ...]:
        """Return all commits that are under way."""
        return tuple(replace(commit, noted=True) for commit in _TABLE.all(self.connection))

    def touch(self, relations: Iterable[int]) -> bool:
        """Return whether any commit under way changes one of the tables."""
        wanted = set(relations)
        found = self.connection.execute(select(_TABLE.c.relations)).scalars()
        return any(wanted.intersection(json.loads(text)) for text in found)

    def made(self) -> tuple[MadeTable, ...]:
        """Return the tables that the commits under way make."""
        return tuple(table for commit in self.all() for table in commit.made)

    def makes(self, schema: str, name: str) -> bool:
        """Return whether a relation of a table in ``made`` has the name."""
        return any(table.row.schema == schema and name in table.names for table in self.made())

    def put(self, commit: BlockCommit) -> None:
        """Insert a commit; it replaces the block's row if there is one."""
        self.delete(commit.block)
        _TABLE.insert(self.connection, commit)

    def delete(self, block: str) -> None:
        """Delete the block's row; no effect when it is gone."""
        _TABLE.delete(self.connection, _TABLE.c.block == block)


# Messages that belong to transaction blocks (xl_logical_message, transactional). They are kept by
# the id of a block whose commits are under way, or of a prepared transaction. They stay until the
# node's WAL has them with the rows of the block, or until the block is certainly undone.


@dataclass(frozen=True, slots=True)
class MessageHead:
    """A message without its content. ``size``: bytes of the content.

    ``after``: the largest oid among the tables that the block had changed when the message was
    emitted; 0 if none. Decoding sends rows in the order of their tables' oids, and the message
    after the rows of table ``after``."""

    prefix: str
    size: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class BlockMessage:
    """A message that a session has emitted in a block."""

    head: MessageHead
    content: bytes


HEADS: Final = ColumnForm(
    lambda heads: (
        json.dumps([[head.prefix, head.size, head.after] for head in heads]) if heads else None
    ),
    lambda text: tuple(MessageHead(*values) for values in json.loads(text)),
)
"""The heads of messages as a row keeps them; NULL for none."""


@dataclass(frozen=True, slots=True)
class _Messages:
    """All messages of a block. ``relations``: oids of the tables that the block changes; None in
    rows that older versions have written."""

    block: Annotated[str, Column("block", String(36), primary_key=True)]
    relations: Annotated[tuple[int, ...] | None, Column("relations", Text), LIST]
    heads: Annotated[tuple[MessageHead, ...], Column("heads", Text, nullable=False), HEADS]
    contents: Annotated[bytes, Column("contents", LargeBinary, nullable=False)]


_MESSAGES: Final = StoredTable("penstock_block_message", _Messages)


class BlockMessages(TableAccess):
    """The table, within one transaction."""

    def put(
        self, block: str, messages: Collection[BlockMessage], relations: Iterable[int] = ()
    ) -> None:
        """Replace the messages of a block by ``messages``, which are in order."""
        self.delete(block)
        if messages:
            heads = tuple(message.head for message in messages)
            contents = b"".join(message.content for message in messages)
            _MESSAGES.insert(self.connection, _Messages(block, tuple(relations), heads, contents))

    def of(self, block: str) -> tuple[BlockMessage, ...]:
        """Return the messages of a block, () if it has none."""
        found = _MESSAGES.find(self.connection, _MESSAGES.c.block == block)
        if found is None:
            return ()
        return tuple(map(BlockMessage, found.heads, split_contents(found.heads, found.contents)))

    def take(self, blocks: Iterable[str]) -> tuple[BlockMessage, ...]:
        """Remove and return the messages of all these blocks."""
        found: list[BlockMessage] = []
        for block in sorted(blocks):
            found += self.of(block)
            self.delete(block)
        return tuple(found)

    def relations(self) -> Mapping[str, tuple[int, ...] | None]:
        """Return the oids of the tables that each block with messages changes; None if unknown."""
        query = select(_MESSAGES.c.block, _MESSAGES.c.relations)
        found = self.connection.execute(query)
        return {block: None if text is None else LIST.read(text) for block, text in found}

    def delete(self, block: str) -> None:
        """Delete the messages of a block; no effect if it has none."""
        _MESSAGES.delete(self.connection, _MESSAGES.c.block == block)


def split_contents(heads: Iterable[MessageHead], contents: bytes) -> tuple[bytes, ...]:
    """Return the content of each message; ``contents`` has them one after the other."""
    found, start = [], 0
    for head in heads:
        found.append(contents[start : start + head.size])
        start += head.size
    return tuple(found)
