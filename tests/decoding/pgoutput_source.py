"""A source for plugins: what a server's pgoutput slot gave, as transactions.

In: rows of pg_logical_slot_peek_binary_changes (LSN, xid, message). Out: ``Item``s. pgoutput tells
less than a plugin in the server knows: nothing of generated columns, of UPDATE and DELETE in tables
without replica identity, and, from version 15 on, of transactions without changes and of where a
transaction began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.cells import Cells
from penstock.civil import EPOCH_MICROSECONDS
from penstock.decoding import (
    Action,
    MessageChange,
    Prepared,
    RelationData,
    RowBatch,
    StreamAbort,
    StreamBlock,
    Transaction,
    TransactionKind,
    TruncateChange,
    TupleColumn,
    TupleColumns,
)
from penstock.decoding.reorder_buffer import Item
from penstock.errors import ValueNotRepresentable
from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import NULL, UNCHANGED, Text, TupleData
from penstock.pgtypes import find

Rows = Sequence[tuple[Lsn, int, bytes]]
Changes = list[RowBatch | TruncateChange | MessageChange]
_ROWS = (m.Insert, m.Update, m.Delete)


@dataclass
class _Run:
    """Row messages of one relation and kind."""

    relation: RelationData
    action: Action
    kind: m.OldTuple | None
    xid: int | None
    lsns: list[int] = field(default_factory=list)
    new: list[TupleData] = field(default_factory=list)
    old: list[TupleData] = field(default_factory=list)


class PgoutputSource:
    """``typed``: columns are Arrow arrays of the lake's types, where those hold all values."""

    def __init__(
        self, decoder: Decoder, type_names: Mapping[int, str], *, typed: bool = False
    ) -> None:
        self._decoder = decoder
        self._type_names = type_names
        self._typed = typed
        self._relations: dict[int, RelationData] = {}
        self._prepared: dict[str, tuple[Transaction, Changes]] = {}
        self._changes: Changes = []
        self._run: _Run | None = None

    def items(self, rows: Rows) -> Iterator[Item]:
        begun: tuple[Lsn, m.Begin | m.BeginPrepare | m.StreamStart] | None = None
        origin: m.Origin | None = None
        for lsn, xid, payload in rows:
            message = self._decoder.decode(payload)
            match message:
                case m.Begin() | m.BeginPrepare() | m.StreamStart():
                    begun, origin = (lsn, message), None
                case m.Origin():
                    origin = message
                case m.StreamStop() if begun is not None:
                    assert isinstance(begun[1], m.StreamStart)
                    at = (begun[1].xid, begun[0])
                    yield StreamBlock(*at, self._taken(), _name(origin), last_lsn=lsn)
                    begun = None
                case m.Commit() if begun is not None:
                    assert isinstance(begun[1], m.Begin)
                    yield self._committed(begun[1].xid, begun[0], message, origin)
                    begun = None
                case m.StreamCommit():
                    yield self._committed(message.xid, lsn, message, origin, streamed=True)
                case m.Prepare():
                    assert begun is not None
                    yield self._prepare(message, begun[0])
                    begun = None
                case m.StreamPrepare():
                    yield self._prepare(message, lsn, streamed=True)
                case m.CommitPrepared() | m.RollbackPrepared():
                    yield self._verdict(message)
                case m.StreamAbort():
                    time = (message.abort_time or 0) + EPOCH_MICROSECONDS
                    yield StreamAbort(message.xid, message.subxid, lsn, time)
                case m.LogicalMessage() if begun is None:
                    yield _message(message, lsn, xid)
                case _:
                    self._change(lsn, message)

    def _change(self, lsn: Lsn, message: m.Message) -> None:
        if isinstance(message, _ROWS):
            self._row(lsn, message)
            return
        self._end_run()
        if isinstance(message, m.RelationMessage):
            relation = RelationData.of(message.relation, type_names=self._type_names)
            self._relations[message.relation.oid] = relation
        elif isinstance(message, m.Truncate):
            relations = tuple(self._relations[oid] for oid in message.relation_oids)
            flags = (message.cascade, message.restart_identity)
            self._changes.append(TruncateChange(relations, lsn, *flags, message.xid))
        elif isinstance(message, m.LogicalMessage):
            self._changes.append(_message(message, lsn, message.xid))

    def _row(self, lsn: Lsn, message: m.Insert | m.Update | m.Delete) -> None:
        relation = self._relations[message.relation_oid]
        kind = None if isinstance(message, m.Insert) else message.old_kind
        action = Action(type(message).__name__.upper())
        run = self._run
        if run is None or (run.relation, run.action, run.kind, run.xid) != (
            *(relation, action, kind),
            message.xid,
        ):
            self._end_run()
            run = self._run = _Run(relation, action, kind, message.xid)
        run.lsns.append(lsn)
        if not isinstance(message, m.Delete):
            run.new.append(message.new)
        if not isinstance(message, m.Insert) and message.old is not None:
            run.old.append(message.old)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        key = run.kind is m.OldTuple.KEY
        new = self._columns(run.relation, run.new) if run.new else None
        old = self._columns(run.relation, run.old, key_only=key) if run.old else None
        lsns = np.array(run.lsns, np.uint64)
        self._changes.append(RowBatch(run.relation, run.action, new, old, lsns, run.xid))

    def _columns(
        self, relation: RelationData, tuples: list[TupleData], *, key_only: bool = False
    ) -> TupleColumns:
        columns: list[TupleColumn | None] = []
        for number, attribute in enumerate(relation.attributes):
            if key_only and not attribute.key:
                columns.append(None)
                continue
            cells = [cells[number] for cells in tuples]
            unchanged = np.array([cell is UNCHANGED for cell in cells])
            raw = [cell.raw if isinstance(cell, Text) else None for cell in cells]
            assert all(isinstance(c, Text) or c in (NULL, UNCHANGED) for c in cells)
            values = _typed(attribute.type_oid, attribute.typmod, raw) if self._typed else None
            text = None if values is not None else pa.array(raw, pa.binary()).cast(pa.string())
            columns.append(
                TupleColumn(values, text=text, type_oid=attribute.type_oid, unchanged=unchanged)
            )
        return TupleColumns(relation, columns, len(tuples))

    def _taken(self) -> Changes:
        self._end_run()
        taken, self._changes = self._changes, []
        return taken

    def _committed(
        self,
        xid: int,
        first: Lsn,
        message: m.Commit | m.StreamCommit,
        origin: m.Origin | None,
        *,
        streamed: bool = False,
    ) -> Transaction:
        return Transaction(
            xid,
            first,
            message.commit_lsn,
            message.end_lsn,
            message.commit_time + EPOCH_MICROSECONDS,
            self._taken(),
            _name(origin),
            streamed=streamed,
        )

    def _prepare(
        self, message: m.Prepare | m.StreamPrepare, first: Lsn, *, streamed: bool = False
    ) -> Transaction:
        changes = self._taken()
        found = Transaction(
            message.xid,
            first,
            message.prepare_lsn,
            message.end_lsn,
            message.prepare_time + EPOCH_MICROSECONDS,
            changes,
            gid=message.gid,
            kind=TransactionKind.PREPARE,
            streamed=streamed,
        )
        self._prepared[message.gid] = (found, changes)
        return found

    def _verdict(self, message: m.CommitPrepared | m.RollbackPrepared) -> Transaction:
        prepare, changes = self._prepared.pop(message.gid)
        was = Prepared(prepare.final_lsn, prepare.end_lsn, prepare.commit_time)
        if isinstance(message, m.CommitPrepared):
            lsn, end, time = message.commit_lsn, message.end_lsn, message.commit_time
            kind = TransactionKind.COMMIT_PREPARED
        else:
            lsn = end = message.rollback_end_lsn
            time, kind = message.rollback_time, TransactionKind.ROLLBACK_PREPARED
        return Transaction(
            message.xid,
            prepare.first_lsn,
            lsn,
            end,
            time + EPOCH_MICROSECONDS,
            changes,
            gid=message.gid,
            kind=kind,
            prepared=was,
        )


def _name(origin: m.Origin | None) -> str | None:
    return None if origin is None else origin.name


def _message(message: m.LogicalMessage, lsn: Lsn, xid: int | None) -> MessageChange:
    return MessageChange(message.transactional, message.prefix, message.content, lsn, xid or None)


def _typed(type_oid: int, typmod: int, raw: list[bytes | None]) -> pa.Array | None:
    sizes = np.array([len(cell or b"") for cell in raw], np.int32)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int32)
    buffer = np.frombuffer(b"".join(cell or b"" for cell in raw) + bytes(8), np.uint8)
    null = np.array([cell is None for cell in raw])
    try:
        return find(type_oid).text_column(Cells(buffer, starts, sizes, null), typmod)
    except ValueNotRepresentable:
        return None
