"""The fast decoder: it turns runs of messages into Arrow columns, without Python per row.

Chunks of messages of protocol version 1 become a ``DecodedChunk``: row changes per relation,
truncates and commits. The relation map is kept from call to call. The apply worker checks that
transactions are complete and that commits match their Begin (``check_commits``). ``decoder`` is the
readable decoder of single messages; a property test keeps both equal (law 7).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.attribute import Attribute
from penstock.cells import Cells, int32_at, uint16_at, window
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.kernel import BYTES, NUMBERS, kernel, part
from penstock.lsn import Lsn
from penstock.pgoutput.decoder import (
    Decoder,
    Reader,
    read_origin,
    unknown_message,
)
from penstock.pgoutput.messages import LogicalMessage, RelationMessage, Truncate
from penstock.relation import Relation, ReplicaIdentity

XLOGDATA_HEADER: Final = 25
"""Bytes before the message in a frame: ``w``, start, end, send time (walsender.c)."""

_XLOGDATA: Final = ord("w")


@dataclass(frozen=True, slots=True, eq=False)
class MessageChunk:
    """A run of raw messages, in order: message i is ``buffer[starts[i]:ends[i]]``.

    The buffer is smaller than 2 GiB.
    """

    buffer: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def from_copy_data(cls, frames: Sequence[bytes]) -> MessageChunk:
        """Make a chunk of libpq's frames, one XLogData each.

        Joins them once, without a copy per message. Raises ProtocolViolation if a frame is no
        XLogData or holds no message.
        """
        sizes = np.fromiter(map(len, frames), np.int64, len(frames))
        ends = np.cumsum(sizes)
        begins = ends - sizes
        buffer = b"".join(frames)
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
        return cls(b"".join(messages), ends - sizes, ends)

    @classmethod
    def of_cells(cls, cells: Cells) -> MessageChunk:
        """Make a chunk of messages in another buffer, in order, with anything between them.

        The messages are copied. Raises ProtocolViolation if one is empty or NULL.
        """
        if cells.null is not None or not cells.length.all():
            raise ProtocolViolation("insufficient data left in message")
        ends = (cells.start + cells.length).astype(np.int64, copy=False)
        whole = cells.buffer[: int(ends[-1]) if len(ends) else 0]
        return cls(whole.tobytes(), cells.start.astype(np.int64, copy=False), ends)

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
            b"".join(part.buffer for part in parts),
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
            return MessageChunk(b"", self.starts[:0], self.ends[:0])
        first, last = int(self.starts[begin]), int(self.ends[end - 1])
        starts, ends = self.starts[begin:end] - first, self.ends[begin:end] - first
        return MessageChunk(self.buffer[first:last], starts, ends)


_BLOCK_BYTES: Final = 4 << 20
"""Bytes of messages that are decoded at a time, or one larger message. They stay in the processor's
cache while column after column is read."""


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Messages that are decoded at a time. ``first``: the sequence of the first one; ``kind``: the
    type byte of each."""

    first: int
    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    kind: NDArray[np.uint8]

    def relation_oid(self, at: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the OID of the relation that row changes name, at these places in the block."""
        return window(self.buffer, ">u4")[self.starts[at] + 1].astype(np.int64)


def _blocks(chunks: Iterable[MessageChunk]) -> Iterator[_Block]:
    """Divide chunks into blocks. Raises ProtocolViolation if a message is empty."""
    first = 0
    for chunk in chunks:
        if (chunk.ends <= chunk.starts).any():
            raise ProtocolViolation("insufficient data left in message")
        buffer, kinds, begin = np.frombuffer(chunk.buffer, np.uint8), chunk.kinds, 0
        while begin < len(chunk):
            full = np.searchsorted(chunk.ends, chunk.starts[begin] + _BLOCK_BYTES, "right")
            end = max(begin + 1, int(full))
            starts, ends = chunk.starts[begin:end], chunk.ends[begin:end]
            yield _Block(first + begin, buffer, starts, ends, kinds[begin:end])
            begin = end
        first += len(chunk)


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """All row changes of one relation (one version of its definition) in a chunk, in order.

    Shapes are (n,) for n changes, and n rows in ``new`` and ``old``.

    - ``sequence``: position of the message, ascending; ``operation``: ``I``, ``U`` or ``D``.
    - ``new``: the new tuples in the relation's columns. NULL also stands for a missing tuple, as in
      ``D``, and for a value that was not sent. ``unchanged`` marks values that were not sent:
      column name to mask, only for columns that have any.
    - ``old``: the old tuples, NULL where none was sent; None if no change has one.
      ``old_kind``: 0 for none, ``K`` (only the key's columns are valid), ``O`` (all).
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

    @classmethod
    def joined(cls, batches: Sequence[ChangeBatch]) -> ChangeBatch:
        """Return changes with the same definition, one batch after the other."""
        if len(batches) == 1:
            return batches[0]
        old = [batch.old for batch in batches]
        schema = next((rows.schema for rows in old if rows is not None), None)
        names = dict.fromkeys(name for batch in batches for name in batch.unchanged)
        return cls(
            batches[0].relation,
            np.concatenate([batch.sequence for batch in batches]),
            np.concatenate([batch.operation for batch in batches]),
            pa.concat_batches([batch.new for batch in batches]),
            {name: np.concatenate([batch._unchanged(name) for batch in batches]) for name in names},
            None
            if schema is None
            else pa.concat_batches([batch._old_rows(schema) for batch in batches]),
            np.concatenate([batch.old_kind for batch in batches]),
        )

    def _unchanged(self, name: str) -> NDArray[np.bool_]:
        mask = self.unchanged.get(name)
        return np.zeros(len(self), bool) if mask is None else mask

    def _old_rows(self, schema: pa.Schema) -> pa.RecordBatch:
        if self.old is not None:
            return self.old
        nulls = [pa.nulls(len(self), each.type) for each in schema]
        return _rows_of(pa.struct(list(schema)), len(self), nulls)


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """Row changes of one relation that cannot be read, with the error. ``changes`` lacks them."""

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
    - ``unreadable``: the caller must check these; if it follows one of the relations, it must raise
      the error.
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


_BEGIN: Final = ord("B")
_COMMIT: Final = ord("C")
_ORIGIN: Final = ord("O")


# Decode Insert, Update and Delete messages of one relation to a ChangeBatch (proto.c,
# logicalrep_read_tuple). ``ColumnarDecoder`` finds the messages.

INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")

TUPLE_KIND_AT: Final = 5
"""The offset of the tuple's kind, behind the message's type and the relation's OID."""

_NEW: Final = ord("N")
_OLD_KEY: Final = ord("K")
_OLD_ROW: Final = ord("O")

NULL: Final = ord("n")
UNCHANGED: Final = ord("u")
TEXT: Final = ord("t")
BINARY: Final = ord("b")


@dataclass(frozen=True, slots=True, eq=False)
class TupleCells:
    """The cells of tuples, shape (columns, rows) each, before their types are known.

    ``kind``: NULL, UNCHANGED, TEXT or BINARY; NULL also where the message has no such tuple.
    ``counts``: the number of cells of each kind, shape (columns, 256).
    """

    kind: NDArray[np.uint8]
    start: NDArray[np.int32]
    length: NDArray[np.int32]
    counts: NDArray[np.int64]

    @classmethod
    def none(cls, columns: int, rows: int) -> TupleCells:
        """Return tuples without values."""
        counts = np.zeros((columns, 256), np.int64)
        counts[:, NULL] = rows
        return cls(
            np.full((columns, rows), NULL, np.uint8),
            np.empty((columns, rows), np.int32),
            np.empty((columns, rows), np.int32),
            counts,
        )


def change_batch(
    relation: Relation,
    sequence: NDArray[np.int64],
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    find: Readers,
) -> ChangeBatch:
    """Decode messages of this relation. ``starts``, ``ends``: of each message in ``buffer``; all
    have at least ``_MIN_ROW_SIZE`` bytes.

    Raises ProtocolViolation, ValueNotRepresentable.
    """
    count, width = len(starts), len(relation.attributes)
    old_kind = np.zeros(count, np.uint8)
    any_old = bool((buffer[starts + TUPLE_KIND_AT] != _NEW).any())
    old, new = TupleCells.none(width, count if any_old else 0), TupleCells.none(width, count)
    wrong = _walk(
        *(buffer, starts, ends, old_kind),
        *(old.kind, old.start, old.length, old.counts),
        *(new.kind, new.start, new.length, new.counts),
    )
    if wrong >= 0:
        raise _refused(buffer[starts[wrong] : ends[wrong]].tobytes(), width)
    return ChangeBatch(
        relation,
        sequence,
        buffer[starts],
        record_batch(relation, new, count, buffer, find),
        {
            attribute.name: new.kind[column] == UNCHANGED
            for column, attribute in enumerate(relation.attributes)
            if new.counts[column, UNCHANGED]
        },
        record_batch(relation, old, count, buffer, find) if any_old else None,
        old_kind,
    )


_CELLS_TYPE: Final = "uint8[:, ::1], int32[:, ::1], int32[:, ::1], int64[:, ::1]"


@kernel(f"int64({BYTES}, {NUMBERS}, {NUMBERS}, uint8[::1], {_CELLS_TYPE}, {_CELLS_TYPE})")
def _walk(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    old_kind: NDArray[np.uint8],
    old_kinds: NDArray[np.uint8],
    old_start: NDArray[np.int32],
    old_length: NDArray[np.int32],
    old_counts: NDArray[np.int64],
    new_kinds: NDArray[np.uint8],
    new_start: NDArray[np.int32],
    new_length: NDArray[np.int32],
    new_counts: NDArray[np.int64],
) -> int:
    """Find the cells of messages; return the first message that is malformed, -1 if none is."""
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        operation, kind = buffer[at], buffer[at + TUPLE_KIND_AT]
        at += TUPLE_KIND_AT + 1
        if kind != _NEW:
            if operation == INSERT or kind not in (_OLD_KEY, _OLD_ROW):
                return row
            old_kind[row] = kind
            at = _walk_tuple(
                buffer, at, end, row, False, old_kinds, old_start, old_length, old_counts
            )
            if operation == UPDATE:
                if at < 0 or at >= end or buffer[at] != _NEW:
                    return row
                at += 1
        elif operation == DELETE:
            return row
        if operation != DELETE:
            at = _walk_tuple(
                buffer, at, end, row, True, new_kinds, new_start, new_length, new_counts
            )
        if at != end:
            return row
    return -1


@part
def _walk_tuple(
    buffer: NDArray[np.uint8],
    at: int,
    end: int,
    row: int,
    is_new: bool,
    kinds: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    counts: NDArray[np.int64],
) -> int:
    """Find the cells of one tuple; return the position behind it, -1 if it is malformed, as an old
    one is with an unchanged value."""
    if at + 2 > end or uint16_at(buffer, at) != len(kinds):
        return -1
    at += 2
    for column in range(len(kinds)):
        if at >= end:
            return -1
        kind = buffer[at]
        at += 1
        if kind == NULL:
            continue
        if kind in (TEXT, BINARY):
            if at + 4 > end:
                return -1
            size = int32_at(buffer, at)
            at += 4
            if size < 0 or size > end - at:
                return -1
            start[column, row], length[column, row] = at, size
            at += size
        elif kind != UNCHANGED or not is_new:
            return -1
        kinds[column, row] = kind
        counts[column, kind] += 1
        counts[column, NULL] -= 1
    return at


def _refused(message: bytes, columns: int) -> ProtocolViolation:
    """Return the error of a malformed message, by the decoder of single messages."""
    try:
        change = Decoder().decode(message)
    except ProtocolViolation as error:
        return error
    tuples = [getattr(change, name, None) for name in ("old", "new")]
    widths = [len(each) for each in tuples if each is not None]
    received = next((each for each in widths if each != columns), columns)
    if received < columns:
        return ProtocolViolation(
            f"logical replication column {received} not found in tuple: "
            f"only {received} column(s) received"
        )
    return ProtocolViolation(f"tuple of {received} columns for a relation of {columns}")


_ROWS: Final = np.isin(np.arange(256), (INSERT, UPDATE, DELETE))
_CHANGES: Final = np.isin(np.arange(256), (INSERT, UPDATE, DELETE, *b"T"))
_RARE: Final = np.isin(np.arange(256), tuple(b"RYTM"))
_KNOWN: Final = _ROWS | _RARE | np.isin(np.arange(256), (_BEGIN, _COMMIT, _ORIGIN))

_MIN_ROW_SIZE: Final = TUPLE_KIND_AT + 1 + 2


_OF_VALUES: Final = ("22P02", "22P03", "54000")
"""SQLSTATEs of values that their type cannot read: an error only for readers of the table."""


class ColumnarDecoder:
    """The decoder, with its state from chunk to chunk.

    ``find`` returns the reader of a type (``penstock.pgtypes.find``). ``find_key`` does so for
    columns of a replica identity that is not FULL, if they need another reader. ``instead``:
    readers that replace those of some columns' types.

    ``relations``: the relation map, OID to the newest definition (LogicalRepRelMap).
    """

    def __init__(
        self,
        find: FindReader,
        find_key: FindReader | None = None,
        instead: ReadersInstead = lambda relation: {},
    ) -> None:
        self.relations: dict[int, Relation] = {}
        self._find = Readers(find, find_key or find, instead)

    def decode(self, *chunks: MessageChunk) -> DecodedChunk:
        """Decode all messages of chunks; the relation map changes only if all of them succeed.

        Raises ProtocolViolation. A value that its type here cannot hold makes changes of its
        relation ``unreadable``, and no others.
        """
        definitions, blocks = _Definitions(self.relations), list(_blocks(chunks))
        decoded = _joined([self._decode(block, definitions) for block in blocks])
        self.relations = definitions.newest()
        return replace(
            decoded,
            announced=frozenset(oid for _, oid in definitions.announced),
            announced_leaves=tuple(_announced_leaves(definitions.announced, blocks)),
        )

    def _decode(self, block: _Block, definitions: _Definitions) -> DecodedChunk:
        buffer, starts, ends, kind = block.buffer, block.starts, block.ends, block.kind
        if not _KNOWN[kind].all():
            raise unknown_message(int(kind[~_KNOWN[kind]][0]))
        rare = tuple(self._rare(block, definitions))
        begins, origins = np.flatnonzero(kind == _BEGIN), kind == _ORIGIN
        final_lsn, xid = read_begins(buffer, starts[begins], ends[begins])
        if origins.any():
            check_origins(buffer, starts[origins], ends[origins])
        commits = np.flatnonzero(kind == _COMMIT)
        commit_lsn, end_lsn, time = read_commits(buffer, starts[commits], ends[commits])
        changes, unreadable = [], []
        for relation, rows in _runs(block, definitions):
            sequence = block.first + rows
            try:
                changes.append(
                    change_batch(relation, sequence, buffer, starts[rows], ends[rows], self._find)
                )
            except (ValueNotRepresentable, ProtocolViolation) as error:
                if isinstance(error, ProtocolViolation) and error.sqlstate not in _OF_VALUES:
                    raise
                unreadable.append(Unreadable(relation, sequence, error))
        return DecodedChunk(
            tuple(changes),
            tuple(event for event in rare if isinstance(event, TruncateEvent)),
            block.first + commits,
            commit_lsn,
            end_lsn,
            time,
            tuple(unreadable),
            tuple(event for event in rare if not isinstance(event, TruncateEvent)),
            block.first + begins,
            final_lsn,
            xid,
        )

    def _rare(
        self, block: _Block, definitions: _Definitions
    ) -> Iterator[TruncateEvent | tuple[int, LogicalMessage]]:
        """Read the rare messages one by one.

        Learns relations, yields truncates and logical messages, checks the rest.
        """
        decoder = Decoder()
        for at in np.flatnonzero(_RARE[block.kind]).tolist():
            index = block.first + at
            message = decoder.decode(block.buffer[block.starts[at] : block.ends[at]].tobytes())
            if isinstance(message, RelationMessage):
                definitions.learn(index, message.relation)
            elif isinstance(message, LogicalMessage):
                yield index, message
            elif isinstance(message, Truncate):
                relations = tuple(definitions.require(oid)[-1][1] for oid in message.relation_oids)
                yield TruncateEvent(
                    index,
                    message.relation_oids,
                    message.cascade,
                    message.restart_identity,
                    relations,
                )


def _joined(chunks: Sequence[DecodedChunk]) -> DecodedChunk:
    """Join what was decoded block by block."""
    runs: dict[int, list[ChangeBatch]] = {}
    for change in itertools.chain.from_iterable(chunk.changes for chunk in chunks):
        runs.setdefault(id(change.relation), []).append(change)
    changes = map(ChangeBatch.joined, runs.values())

    def column(of: Callable[[DecodedChunk], NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *map(of, chunks)])

    return DecodedChunk(
        tuple(sorted(changes, key=lambda change: int(change.sequence[0]))),
        tuple(itertools.chain.from_iterable(chunk.truncates for chunk in chunks)),
        column(lambda chunk: chunk.commit_sequence),
        column(lambda chunk: chunk.commit_lsn),
        column(lambda chunk: chunk.end_lsn),
        column(lambda chunk: chunk.commit_time),
        tuple(itertools.chain.from_iterable(chunk.unreadable for chunk in chunks)),
        tuple(itertools.chain.from_iterable(chunk.messages for chunk in chunks)),
        column(lambda chunk: chunk.begin_sequence),
        column(lambda chunk: chunk.final_lsn),
        column(lambda chunk: chunk.xid),
    )


def _announced_leaves(
    announced: Sequence[tuple[int, int]], blocks: Sequence[_Block]
) -> Iterator[tuple[int, int, int]]:
    """Yield sequence, OID of the root and OID of the partition for each announced partition.

    A server announces a relation right before its change, and a partition right after the root
    under which its changes are published. TRUNCATE of several tables announces all of them.
    """
    if len(announced) < 2:
        return
    firsts = [block.first for block in blocks]
    changes = np.concatenate([b.first + np.flatnonzero(_CHANGES[b.kind]) for b in blocks])
    for (before, root), (index, leaf) in itertools.pairwise(announced):
        place = int(np.searchsorted(changes, index))
        if root == leaf or place != np.searchsorted(changes, before):
            continue
        if place < len(changes):
            block = blocks[bisect_right(firsts, changes[place]) - 1]
            at = int(changes[place]) - block.first
            if not _ROWS[block.kind[at]] or block.relation_oid(at) == leaf:
                continue
        yield index, root, leaf


class _Definitions:
    """Versions of relations, each with the number of its message; -1: from an earlier chunk."""

    def __init__(self, known: dict[int, Relation]) -> None:
        self._of = {oid: [(-1, relation)] for oid, relation in known.items()}
        self.announced: list[tuple[int, int]] = []

    def learn(self, index: int, relation: Relation) -> None:
        """Learn a Relation message. The server repeats them; a repeated one changes nothing."""
        self.announced.append((index, relation.oid))
        versions = self._of.setdefault(relation.oid, [])
        if not versions or versions[-1][1] != relation:
            versions.append((index, relation))

    def require(self, oid: int) -> list[tuple[int, Relation]]:
        """Return the relation's versions so far, the oldest first. Raises ProtocolViolation."""
        if oid not in self._of:
            raise _unknown_relation(oid)
        return self._of[oid]

    def newest(self) -> dict[int, Relation]:
        return {oid: versions[-1][1] for oid, versions in self._of.items()}


def _runs(block: _Block, definitions: _Definitions) -> Iterator[tuple[Relation, NDArray[np.int64]]]:
    """Yield the places of row messages in a block by relation and version of its definition."""
    rows = np.flatnonzero(_ROWS[block.kind])
    if (block.ends[rows] - block.starts[rows] < _MIN_ROW_SIZE).any():
        raise ProtocolViolation("insufficient data left in message")
    for oid, mine in _groups(block.relation_oid(rows), rows):
        versions = definitions.require(oid)
        since = [index - block.first for index, _ in versions]
        if mine[0] < since[0]:
            raise _unknown_relation(oid)
        bounds = [*np.searchsorted(mine, since), len(mine)]
        for (_, relation), begin, end in zip(versions, bounds, bounds[1:], strict=False):
            if end > begin:
                yield relation, mine[begin:end]


def _groups(
    oids: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the rows of each OID, in order."""
    if not len(oids):
        return
    if (oids == oids[0]).all():
        yield int(oids[0]), rows
        return
    order = np.argsort(oids, kind="stable")
    bounds = np.flatnonzero(np.diff(oids[order])) + 1
    for mine in np.split(order, bounds):
        yield int(oids[mine[0]]), rows[mine]


def _unknown_relation(oid: int) -> ProtocolViolation:
    return ProtocolViolation(
        f"no relation map entry for remote relation ID {oid}", sqlstate="XX000"
    )


# Turn cells of a relation's tuples into one Arrow record batch.
#
# Cells of one column may be text in one row and binary in the next. A ``ColumnReader``
# (``penstock.pgtypes``) reads a type's bytes, since rooms of one floor do not import one another.
# Table and column are added to its errors here.


class ColumnReader(Protocol):
    """The part of a type family that decoding needs (``penstock.pgtypes.Family``)."""

    def arrow(self, typmod: int) -> pa.DataType:
        """Return the Arrow type of a column."""

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in text format."""

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        """Read cells in binary format."""


FindReader = Callable[[int], ColumnReader]
"""Type OID to its reader."""
ReadersInstead = Callable[[Relation], Mapping[str, ColumnReader]]
"""Readers of some of a relation's columns by name; their types do not matter."""


@dataclass(frozen=True)
class Readers:
    """Readers of columns that identify rows (``key``), and of all ``others``.

    With REPLICA IDENTITY FULL all columns count as others: the values that were read identify a
    row.
    """

    others: FindReader
    key: FindReader
    instead: ReadersInstead = lambda relation: {}

    def of(self, relation: Relation) -> Sequence[ColumnReader]:
        """Return the reader of each column."""
        instead = self.instead(relation)
        return [instead.get(a.name) or self._usual(relation, a) for a in relation.attributes]

    def _usual(self, relation: Relation, attribute: Attribute) -> ColumnReader:
        full = relation.replica_identity is ReplicaIdentity.FULL
        identifies = attribute.name in relation.key and not full
        return (self.key if identifies else self.others)(attribute.type_oid)


def record_batch(
    relation: Relation,
    cells: TupleCells,
    rows: int,
    buffer: NDArray[np.uint8],
    find: Readers,
) -> pa.RecordBatch:
    """Return a batch with one column per attribute, in the relation's order and names.

    Raises ValueNotRepresentable and ProtocolViolation with table and column as detail.
    """
    if not relation.attributes:
        return _rows_of(pa.struct([]), rows, [])
    arrays = []
    readers = find.of(relation)
    for column, (attribute, reader) in enumerate(zip(relation.attributes, readers, strict=True)):
        try:
            arrays.append(_array(reader, attribute.typmod, cells, column, buffer))
        except (ValueNotRepresentable, ProtocolViolation) as error:
            raise _located(error, relation, attribute) from error
    return pa.RecordBatch.from_arrays(arrays, [a.name for a in relation.attributes])


def _rows_of(columns: pa.StructType, rows: int, arrays: Sequence[pa.Array]) -> pa.RecordBatch:
    """Return a batch, which without columns has rows, too."""
    whole = pa.Array.from_buffers(columns, rows, [None], children=list(arrays))
    return pa.RecordBatch.from_struct_array(whole)


def _array(
    reader: ColumnReader, typmod: int, cells: TupleCells, column: int, buffer: NDArray[np.uint8]
) -> pa.Array:
    kind, start, length = cells.kind[column], cells.start[column], cells.length[column]
    text, binary = (int(cells.counts[column, each]) for each in (TEXT, BINARY))
    if not text and not binary:
        return pa.nulls(len(kind), reader.arrow(typmod))
    if not binary:
        null = None if text == len(kind) else kind != TEXT
        return reader.text_column(Cells(buffer, start, length, null), typmod)
    if not text:
        null = None if binary == len(kind) else kind != BINARY
        return reader.binary_column(Cells(buffer, start, length, null), typmod)
    return _mixed(reader, typmod, Cells(buffer, start, length), kind)


def _mixed(reader: ColumnReader, typmod: int, cells: Cells, kind: NDArray[np.uint8]) -> pa.Array:
    """Read a column that has both formats: each format on its own, then put the rows in order."""
    text, binary = kind == TEXT, kind == BINARY
    buffer, start, length = cells.buffer, cells.start, cells.length
    parts = [
        reader.text_column(Cells(buffer, start[text], length[text]), typmod),
        reader.binary_column(Cells(buffer, start[binary], length[binary]), typmod),
    ]
    order = np.zeros(len(text), np.int64)
    order[text] = np.arange(len(parts[0]))
    order[binary] = len(parts[0]) + np.arange(len(parts[1]))
    return pa.concat_arrays(parts).take(pa.array(order, mask=~(text | binary)))


def _located(
    error: ValueNotRepresentable | ProtocolViolation, relation: Relation, attribute: Attribute
) -> ValueNotRepresentable | ProtocolViolation:
    where = f'Table "{relation.qualified_name}", column "{attribute.name}".'
    detail = f"{where} {error.detail}" if error.detail else where
    return error.changed(detail=detail, column=attribute.name)


# Many messages without rows at once: Begin, Commit, Origin. Commits are returned as columns. All
# messages that ``decoder`` would refuse raise the same errors.

_BEGIN_SIZE: Final = 1 + 8 + 8 + 4
_COMMIT_SIZE: Final = 1 + 1 + 8 + 8 + 8


def read_begins(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return final_lsn and xid of each Begin. Raises ProtocolViolation."""
    _sized(starts, ends, _BEGIN_SIZE)
    final_lsn = window(buffer, ">i8")[starts + 1].astype(np.int64, copy=False)
    if (final_lsn == 0).any():
        raise ProtocolViolation("final_lsn not set in begin message")
    return final_lsn, window(buffer, ">u4")[starts + 17].astype(np.int64)


def check_commits(chunk: DecodedChunk) -> None:
    """Check that each Commit has the LSN of its Begin. A Begin of an earlier chunk is unknown here.

    Raises ProtocolViolation (apply_handle_commit).
    """
    before = np.searchsorted(chunk.begin_sequence, chunk.commit_sequence) - 1
    known = before >= 0
    expected, found = chunk.final_lsn[before[known]], chunk.commit_lsn[known]
    wrong = np.flatnonzero(expected != found)
    if len(wrong):
        raise ProtocolViolation(
            f"incorrect commit LSN {Lsn(int(found[wrong[0]]))} in commit message "
            f"(expected {Lsn(int(expected[wrong[0]]))})"
        )


def read_commits(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return commit_lsn, end_lsn and time (microseconds since the Unix epoch) of each Commit."""
    _sized(starts, ends, _COMMIT_SIZE)
    flags = buffer[starts + 1]
    if flags.any():
        raise ProtocolViolation(f"unrecognized flags {flags.max()} in commit message")
    fields = window(buffer, ">i8")
    commit_lsn, end_lsn, time = (
        fields[starts + at].astype(np.int64, copy=False) for at in (2, 10, 18)
    )
    return commit_lsn, end_lsn, time + EPOCH_MICROSECONDS


def check_origins(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> None:
    """Check that Origin messages are well formed; behind a cascade there is one per transaction.

    Nearly all name the same origin, so those that equal the first one need not be read.
    """
    name_at = 1 + 8
    size = int(ends[0] - starts[0])
    alike = ends - starts == max(size, name_at + 1)
    alike[0] = False
    if alike.any():
        names = window(buffer, f"V{max(size - name_at, 1)}")
        alike[alike] = names[starts[alike] + name_at] == names[starts[:1] + name_at]
    for index in np.flatnonzero(~alike):
        reader = Reader(buffer[starts[index] + 1 : ends[index]].tobytes())
        read_origin(reader)
        reader.finish()


def _sized(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> None:
    if (ends - starts < size).any():
        raise ProtocolViolation("insufficient data left in message")
    if (ends - starts > size).any():
        raise ProtocolViolation("invalid message format")
