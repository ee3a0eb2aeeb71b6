"""Chunks of messages: the input and the output of the columnar decoder.

In: CopyData frames, or messages without their headers. Out: ``MessageChunk``, ``DecodedChunk`` and
their parts. All positions of messages ("sequence") count within one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.pgoutput.messages import LogicalMessage
from penstock.relation import Relation

XLOGDATA_HEADER: Final = 25
"""Bytes before the message in a frame: ``w``, start, end, send time (walsender.c)."""

PADDING: Final = 8
"""Bytes behind the last message, so that fields may be read before their end is checked."""

_XLOGDATA: Final = ord("w")


@dataclass(frozen=True, slots=True, eq=False)
class MessageChunk:
    """A run of raw messages, in order: message i is ``buffer[starts[i]:ends[i]]``.

    The buffer is smaller than 2 GiB. If it goes on for ``PADDING`` bytes behind the last message,
    it is decoded without a copy.
    """

    buffer: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_copy_data(cls, frames: Sequence[bytes]) -> MessageChunk:
        """Make a chunk of frames as libpq hands them out, one XLogData each.

        Joins them once, without a copy per message. Raises ProtocolViolation if a frame is
        something else or holds no message.
        """
        sizes = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(sizes)
        begins = ends - sizes
        buffer = b"".join((*frames, bytes(PADDING)))
        if (sizes <= XLOGDATA_HEADER).any():
            raise ProtocolViolation("insufficient data left in message")
        if (np.frombuffer(buffer, np.uint8)[begins] != _XLOGDATA).any():
            raise ProtocolViolation("replication message that is not XLogData among changes")
        return cls(buffer, begins + XLOGDATA_HEADER, ends)

    @classmethod
    def of_messages(cls, messages: Sequence[bytes]) -> MessageChunk:
        """Make a chunk of messages without headers. Raises ProtocolViolation if one is empty."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        if not sizes.all():
            raise ProtocolViolation("insufficient data left in message")
        ends = np.cumsum(sizes)
        return cls(b"".join((*messages, bytes(PADDING))), ends - sizes, ends)

    @classmethod
    def of_cells(cls, cells: Cells) -> MessageChunk:
        """Make a chunk of messages in another buffer, in order, with anything between them.

        The messages are copied. Raises ProtocolViolation if one is empty or NULL.
        """
        if cells.null is not None or not cells.length.all():
            raise ProtocolViolation("insufficient data left in message")
        ends = (cells.start + cells.length).astype(np.int64, copy=False)
        whole = cells.buffer[: int(ends[-1]) if len(ends) else 0]
        buffer = b"".join((whole.data, bytes(PADDING)))
        return cls(buffer, cells.start.astype(np.int64, copy=False), ends)

    @classmethod
    def joined(cls, parts: Sequence[MessageChunk]) -> MessageChunk:
        """Return the messages of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        bases = np.cumsum([0, *(len(part.buffer) for part in parts)]).tolist()
        starts = [part.starts + base for part, base in zip(parts, bases, strict=False)]
        ends = [part.ends + base for part, base in zip(parts, bases, strict=False)]
        nothing = [np.empty(0, np.int64)]
        return cls(
            b"".join([*(part.buffer for part in parts), bytes(0 if parts else PADDING)]),
            np.concatenate(starts or nothing),
            np.concatenate(ends or nothing),
        )

    @property
    def size(self) -> int:
        """Bytes of memory that the messages take."""
        return len(self.buffer)

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """The type byte of each message."""
        return np.frombuffer(self.buffer, np.uint8)[self.starts]

    def message(self, index: int) -> bytes:
        """Return one of the messages."""
        return self.buffer[self.starts[index] : self.ends[index]]

    def messages(self) -> Iterator[bytes]:
        """Yield all messages one by one: slow, for rare uses."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.buffer[start:end]

    def between(self, begin: int, end: int) -> MessageChunk:
        """Return messages ``begin`` to ``end`` as a chunk that holds no memory of the others."""
        if begin == 0 and end == len(self):
            return self
        if begin >= end:
            return MessageChunk(bytes(PADDING), self.starts[:0], self.ends[:0])
        first, last = int(self.starts[begin]), int(self.ends[end - 1])
        buffer = b"".join((memoryview(self.buffer)[first:last], bytes(PADDING)))
        return MessageChunk(buffer, self.starts[begin:end] - first, self.ends[begin:end] - first)


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """All row changes of one relation (one version of its definition) in a chunk, in order.

    Shapes are (n,) for n changes, and n rows in ``new`` and ``old``.

    - ``sequence``: position of the message, ascending; ``operation``: ``I``, ``U`` or ``D``.
    - ``new``: the new tuples in the relation's columns. NULL also stands for a missing tuple, as in
      ``D``, and for a value that was not sent; ``unchanged`` marks the latter: column name to mask,
      only for columns that have any.
    - ``old``: the old tuples, NULL where none was sent; None if no change has one.
      ``old_kind``: 0 for none, ``K`` (only the key's columns mean something), ``O`` (all).
    """

    relation: Relation
    sequence: NDArray[np.int64]
    operation: NDArray[np.uint8]
    new: pa.RecordBatch
    unchanged: Mapping[str, NDArray[np.bool_]]
    old: pa.RecordBatch | None
    old_kind: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """Row changes of one relation that cannot be read, with the error, apart from ``changes``."""

    relation: Relation
    sequence: NDArray[np.int64]
    error: ValueNotRepresentable | ProtocolViolation


@dataclass(frozen=True, slots=True)
class TruncateEvent:
    """A Truncate message. ``relations``: the definitions of ``relation_oids`` at this message."""

    sequence: int
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DecodedChunk:
    """Everything in a chunk that an applier needs.

    - ``changes``: ordered by their first message.
    - ``commit_sequence``, ``commit_lsn``, ``end_lsn``, ``commit_time`` (microseconds since the Unix
      epoch, UTC): one entry per Commit message.
    - ``begin_sequence``, ``final_lsn``, ``xid``: one entry per Begin message.
    - ``unreadable``: must be looked at; whoever follows one of these relations must raise its
      error.
    - ``messages``: logical messages that sessions have emitted, with their sequence.
    - ``announced``: OIDs of all Relation messages, repeated ones included.
    - ``announced_leaves``: partitions whose changes are published as their root's: sequence, OID of
      the root, OID of the partition.
    """

    changes: tuple[ChangeBatch, ...]
    truncates: tuple[TruncateEvent, ...]
    commit_sequence: NDArray[np.int64]
    commit_lsn: NDArray[np.int64]
    end_lsn: NDArray[np.int64]
    commit_time: NDArray[np.int64]
    unreadable: tuple[Unreadable, ...] = ()
    messages: tuple[tuple[int, LogicalMessage], ...] = ()
    begin_sequence: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    final_lsn: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    xid: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    announced: frozenset[int] = frozenset()
    announced_leaves: tuple[tuple[int, int, int], ...] = ()

    @property
    def restarts(self) -> frozenset[int]:
        """Sequences of the TRUNCATEs with RESTART IDENTITY."""
        return frozenset(each.sequence for each in self.truncates if each.restart_identity)
