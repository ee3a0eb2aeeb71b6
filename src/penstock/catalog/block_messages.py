"""Messages that belong to transaction blocks (xl_logical_message, transactional).

In: a connection inside a transaction. Out: frozen values. They are kept by the id of a block whose
commits are under way, or of a prepared transaction, until the log has them together with the rows
of the block, or until it is certain that nobody will get them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Column, Connection, LargeBinary, String, Table, Text, select

from penstock.catalog.metadata import METADATA

_TABLE: Final = Table(
    "penstock_block_message",
    METADATA,
    Column("block", String(36), primary_key=True),
    # Oids of the tables that the block changes; NULL in rows that older versions have written
    Column("relations", Text),
    Column("heads", Text, nullable=False),
    Column("contents", LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True)
class MessageHead:
    """A message without its content. ``size``: bytes of the content.

    ``after``: the largest oid among the tables that the block had changed when the message was
    emitted; 0 if none. Decoding sends the rows in the order of these oids, and the message after
    the rows of this table."""

    prefix: str
    size: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class BlockMessage:
    """A message that a session has emitted in a block."""

    head: MessageHead
    content: bytes


class BlockMessages:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(
        self, block: str, messages: Sequence[BlockMessage], relations: Sequence[int] = ()
    ) -> None:
        """Replace the messages of a block by these, which are in order."""
        self.delete(block)
        if messages:
            values = {
                "block": block,
                "relations": json.dumps(list(relations)),
                "heads": to_text(message.head for message in messages),
                "contents": b"".join(message.content for message in messages),
            }
            self._connection.execute(_TABLE.insert().values(**values))

    def of(self, block: str) -> tuple[BlockMessage, ...]:
        """Return the messages of a block, () if it has none."""
        query = select(_TABLE).where(_TABLE.c.block == block)
        row = self._connection.execute(query).mappings().one_or_none()
        if row is None:
            return ()
        heads = from_text(row["heads"])
        parts = split(heads, bytes(row["contents"]))
        return tuple(map(BlockMessage, heads, parts))

    def take(self, blocks: Iterable[str]) -> tuple[BlockMessage, ...]:
        """Remove and return the messages of all these blocks."""
        found: list[BlockMessage] = []
        for block in sorted(blocks):
            found += self.of(block)
            self.delete(block)
        return tuple(found)

    def relations(self) -> Mapping[str, tuple[int, ...] | None]:
        """Return the oids of the tables that each block with messages changes; None if unknown."""
        query = select(_TABLE.c.block, _TABLE.c.relations)
        found = self._connection.execute(query)
        return {block: None if text is None else tuple(json.loads(text)) for block, text in found}

    def delete(self, block: str) -> None:
        """Delete the messages of a block; no effect if it has none."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.block == block))


def to_text(heads: Iterable[MessageHead]) -> str:
    """Return the heads as a row keeps them."""
    return json.dumps([[head.prefix, head.size, head.after] for head in heads])


def from_text(text: str) -> tuple[MessageHead, ...]:
    """Return the heads that ``to_text`` has written."""
    return tuple(MessageHead(*values) for values in json.loads(text))


def split(heads: Iterable[MessageHead], contents: bytes) -> tuple[bytes, ...]:
    """Return the content of each message; ``contents`` holds them one after another."""
    found, start = [], 0
    for head in heads:
        found.append(contents[start : start + head.size])
        start += head.size
    return tuple(found)
