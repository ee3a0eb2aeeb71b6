"""Messages that belong to transaction blocks (xl_logical_message, transactional).

In: a connection inside a transaction. Out: frozen values. They are kept by the id of a block whose
commits are under way, or of a prepared transaction, until the log has them with the rows of the
block, or nobody is to have them.
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
    # Oids of the tables that it changes; NULL in stores of before there was such a thing
    Column("relations", Text),
    Column("heads", Text, nullable=False),
    Column("contents", LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True)
class MessageHead:
    """What the log tells of a message without reading it. ``size``: bytes of its content.

    ``after``: the largest oid of the tables that the block had changed when it was emitted, 0: of
    none. Rows come in the order of these oids, and the message after those of this one."""

    prefix: str
    size: int
    after: int = 0


@dataclass(frozen=True, slots=True)
class BlockMessage:
    """One that a session has emitted in a block."""

    head: MessageHead
    content: bytes


class BlockMessages:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(
        self, block: str, messages: Sequence[BlockMessage], relations: Sequence[int] = ()
    ) -> None:
        """Those of a block, in order, in the place of what was there."""
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
        """Those of a block, none where it has none."""
        query = select(_TABLE).where(_TABLE.c.block == block)
        row = self._connection.execute(query).mappings().one_or_none()
        if row is None:
            return ()
        heads = from_text(row["heads"])
        parts = split(heads, bytes(row["contents"]))
        return tuple(map(BlockMessage, heads, parts))

    def take(self, blocks: Iterable[str]) -> tuple[BlockMessage, ...]:
        """Those of all of them, which have none afterwards."""
        found: list[BlockMessage] = []
        for block in sorted(blocks):
            found += self.of(block)
            self.delete(block)
        return tuple(found)

    def relations(self) -> Mapping[str, tuple[int, ...] | None]:
        """By block that has some, oids of the tables that it changes; None: that is not known."""
        query = select(_TABLE.c.block, _TABLE.c.relations)
        found = self._connection.execute(query)
        return {block: None if text is None else tuple(json.loads(text)) for block, text in found}

    def delete(self, block: str) -> None:
        """No effect where it has none."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.block == block))


def to_text(heads: Iterable[MessageHead]) -> str:
    """As a row keeps them."""
    return json.dumps([[head.prefix, head.size, head.after] for head in heads])


def from_text(text: str) -> tuple[MessageHead, ...]:
    """The reverse."""
    return tuple(MessageHead(*values) for values in json.loads(text))


def split(heads: Iterable[MessageHead], contents: bytes) -> tuple[bytes, ...]:
    """The content of each, which follow one another."""
    found, start = [], 0
    for head in heads:
        found.append(contents[start : start + head.size])
        start += head.size
    return tuple(found)
