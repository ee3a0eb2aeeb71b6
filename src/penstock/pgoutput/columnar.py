"""Runs of messages straight to Arrow columns, without Python per row: the fast decoder.

In: a ``MessageChunk`` of protocol version 1. Out: a ``DecodedChunk``: row changes per relation,
truncates and commits. The relation map is kept from chunk to chunk. Whether transactions are
complete and commits fit their Begin (``framing.check_commits``) is left to the apply worker; single
messages in readable form are in ``decoder``, which a property test keeps equal to this (law 7).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import window
from penstock.errors import ProtocolViolation, ValueNotRepresentable
from penstock.pgoutput.change_batch import DELETE, INSERT, TUPLE_KIND_AT, UPDATE, change_batch
from penstock.pgoutput.chunk import (
    PADDING,
    ChangeBatch,
    DecodedChunk,
    MessageChunk,
    TruncateEvent,
    Unreadable,
)
from penstock.pgoutput.columns import FindReader, Readers, ReadersInstead
from penstock.pgoutput.decoder import Decoder, unknown_message
from penstock.pgoutput.framing import check_origins, read_begins, read_commits
from penstock.pgoutput.messages import LogicalMessage, RelationMessage, Truncate
from penstock.relation import Relation

__all__ = [
    "ChangeBatch",
    "ColumnarDecoder",
    "DecodedChunk",
    "MessageChunk",
    "TruncateEvent",
    "Unreadable",
]

_BEGIN: Final = ord("B")
_COMMIT: Final = ord("C")
_ORIGIN: Final = ord("O")
_ROWS: Final = np.isin(np.arange(256), (INSERT, UPDATE, DELETE))
_CHANGES: Final = np.isin(np.arange(256), (INSERT, UPDATE, DELETE, *b"T"))
_RARE: Final = np.isin(np.arange(256), tuple(b"RYTM"))
_KNOWN: Final = _ROWS | _RARE | np.isin(np.arange(256), (_BEGIN, _COMMIT, _ORIGIN))

_MIN_ROW_SIZE: Final = TUPLE_KIND_AT + 1 + 2


_OF_VALUES: Final = ("22P02", "22P03")
"""A value that its type cannot read concerns nobody who does not follow the table."""


class ColumnarDecoder:
    """``find``: the reader of a type (``penstock.pgtypes.find``); ``find_key``: in columns of a
    replica identity that is not FULL, where it is another; ``instead``: of columns that are read in
    another way than their types are.

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

    def decode(self, chunk: MessageChunk) -> DecodedChunk:
        """Decode all messages of a chunk; the relation map moves on only when all of them succeed.

        Raises ProtocolViolation. A value that its type here cannot hold makes its relation's
        changes ``unreadable``, and no others'.
        """
        buffer, starts, ends = _padded(chunk), chunk.starts, chunk.ends
        if (ends <= starts).any():
            raise ProtocolViolation("insufficient data left in message")
        kind = buffer[starts]
        if not _KNOWN[kind].all():
            raise unknown_message(int(kind[~_KNOWN[kind]][0]))
        definitions = _Definitions(self.relations)
        rare = tuple(self._rare(chunk, np.flatnonzero(_RARE[kind]), definitions))
        begins, origins = kind == _BEGIN, kind == _ORIGIN
        final_lsn, xid = read_begins(buffer, starts[begins], ends[begins])
        if origins.any():
            check_origins(buffer, starts[origins], ends[origins])
        commits = np.flatnonzero(kind == _COMMIT)
        commit_lsn, end_lsn, time = read_commits(buffer, starts[commits], ends[commits])
        changes, unreadable = [], []
        for relation, rows in _runs(buffer, starts, ends, np.flatnonzero(_ROWS[kind]), definitions):
            try:
                changes.append(
                    change_batch(relation, rows, buffer, starts[rows], ends[rows], self._find)
                )
            except (ValueNotRepresentable, ProtocolViolation) as error:
                if isinstance(error, ProtocolViolation) and error.sqlstate not in _OF_VALUES:
                    raise
                unreadable.append(Unreadable(relation, rows, error))
        changes.sort(key=lambda change: int(change.sequence[0]))
        self.relations = definitions.newest()
        return DecodedChunk(
            tuple(changes),
            tuple(event for event in rare if isinstance(event, TruncateEvent)),
            commits,
            commit_lsn,
            end_lsn,
            time,
            tuple(unreadable),
            tuple(event for event in rare if not isinstance(event, TruncateEvent)),
            np.flatnonzero(begins),
            final_lsn,
            xid,
            frozenset(oid for _, oid in definitions.announced),
            tuple(_announced_leaves(definitions.announced, kind, buffer, starts)),
        )

    def _rare(
        self, chunk: MessageChunk, indexes: NDArray[np.int64], definitions: _Definitions
    ) -> Iterator[TruncateEvent | tuple[int, LogicalMessage]]:
        """Read what comes seldom one by one: learn relations, yield truncates and messages, check
        the rest."""
        decoder = Decoder()
        for index in map(int, indexes):
            message = decoder.decode(chunk.buffer[chunk.starts[index] : chunk.ends[index]])
            if isinstance(message, RelationMessage):
                definitions.learn(index, message.relation)
            elif isinstance(message, LogicalMessage):
                yield int(index), message
            elif isinstance(message, Truncate):
                relations = tuple(definitions.require(oid)[-1][1] for oid in message.relation_oids)
                yield TruncateEvent(
                    index,
                    message.relation_oids,
                    message.cascade,
                    message.restart_identity,
                    relations,
                )


def _announced_leaves(
    announced: Sequence[tuple[int, int]],
    kind: NDArray[np.uint8],
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
) -> Iterator[tuple[int, int, int]]:
    """A server announces a relation right before its change, and a partition right after the root
    that its changes are published as. TRUNCATE of several tables announces all of them."""
    changes = np.flatnonzero(_CHANGES[kind])
    for (before, root), (index, leaf) in itertools.pairwise(announced):
        place = int(np.searchsorted(changes, index))
        if root == leaf or place != np.searchsorted(changes, before):
            continue
        if place < len(changes):
            at = changes[place]
            if not _ROWS[kind[at]] or window(buffer, ">u4")[starts[at] + 1] == leaf:
                continue
        yield index, root, leaf


class _Definitions:
    """Relations with the message from which on they hold; -1 for those of earlier chunks."""

    def __init__(self, known: dict[int, Relation]) -> None:
        self._of = {oid: [(-1, relation)] for oid, relation in known.items()}
        self.announced: list[tuple[int, int]] = []

    def learn(self, index: int, relation: Relation) -> None:
        """A Relation message; the server repeats them, which changes nothing."""
        self.announced.append((index, relation.oid))
        versions = self._of.setdefault(relation.oid, [])
        if not versions or versions[-1][1] != relation:
            versions.append((index, relation))

    def require(self, oid: int) -> list[tuple[int, Relation]]:
        """Versions so far, the oldest first."""
        if oid not in self._of:
            raise _unknown_relation(oid)
        return self._of[oid]

    def newest(self) -> dict[int, Relation]:
        return {oid: versions[-1][1] for oid, versions in self._of.items()}


def _runs(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    definitions: _Definitions,
) -> Iterator[tuple[Relation, NDArray[np.int64]]]:
    """Row messages by relation and version of its definition, each in order."""
    if (ends[rows] - starts[rows] < _MIN_ROW_SIZE).any():
        raise ProtocolViolation("insufficient data left in message")
    oids = window(buffer, ">u4")[starts[rows] + 1].astype(np.int64)
    for oid, mine in _groups(oids, rows):
        versions = definitions.require(oid)
        since = [index for index, _ in versions]
        if mine[0] < since[0]:
            raise _unknown_relation(oid)
        bounds = [*np.searchsorted(mine, since), len(mine)]
        for (_, relation), begin, end in zip(versions, bounds, bounds[1:], strict=False):
            if end > begin:
                yield relation, mine[begin:end]


def _groups(
    oids: NDArray[np.int64], rows: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Rows of each OID, in order."""
    if not len(oids):
        return
    if (oids == oids[0]).all():
        yield int(oids[0]), rows
        return
    order = np.argsort(oids, kind="stable")
    bounds = np.flatnonzero(np.diff(oids[order])) + 1
    for part in np.split(order, bounds):
        yield int(oids[part[0]]), rows[part]


def _padded(chunk: MessageChunk) -> NDArray[np.uint8]:
    buffer = np.frombuffer(chunk.buffer, np.uint8)
    if len(chunk) and int(chunk.ends.max()) + PADDING > len(buffer):
        return np.concatenate((buffer, np.zeros(PADDING, np.uint8)))
    return buffer


def _unknown_relation(oid: int) -> ProtocolViolation:
    return ProtocolViolation(
        f"no relation map entry for remote relation ID {oid}", sqlstate="XX000"
    )
