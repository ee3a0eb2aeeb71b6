"""The order of callbacks for transactions (reorderbuffer.c, ReorderBufferProcessTXN; decode.c).

``Replay`` turns the items of a source into calls of the plugin, which the context makes. Every
generator here yields after calls, so their writes can be handed on before the next call.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.decoding.output_plugin import registered
from penstock.decoding.reorder_buffer import (
    CHANGE_BYTES,
    Changes,
    Item,
    MessageChange,
    ReorderBufferTXN,
    RowBatch,
    StreamAbort,
    StreamBlock,
    Transaction,
    TransactionKind,
    TruncateChange,
)
from penstock.errors import PenstockError
from penstock.lsn import INVALID, Lsn
from penstock.protocol.copy_both import cut_xlog_data

if TYPE_CHECKING:
    from penstock.decoding.logical import LogicalDecodingContext as Context

_AT_PREPARE: Final = "logical replication at prepare time"
_STREAMING: Final = "logical streaming"
_STREAMING_PREPARED: Final = "logical streaming at prepare time"
_PIECE_ROWS: Final = 65_536
_PIECE_BYTES: Final = 16 << 20
"""The most bytes that a plugin gets at once; a batch also has at most ``_PIECE_ROWS`` rows."""
_CELL_BYTES: Final = 48
"""The bytes that a plugin may write beside a value: the column's name, its type and marks."""
_FEW_ROWS: Final = 8
"""Batches of fewer rows are faster to send row by row."""


class Replay:
    """The caller of items' callbacks, which remembers the transactions that are streamed."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._streamed: dict[int, ReorderBufferTXN] = {}
        self.blocks = 0
        """The number of blocks of streamed transactions that have begun (streamCount)."""

    def item(self, item: Item) -> Iterator[None]:
        """Call all callbacks of one item."""
        match item:
            case Transaction():
                self._ctx.catalogs = item.catalogs  # SetupHistoricSnapshot
                try:
                    yield from self._transaction(item)
                finally:
                    self._ctx.catalogs = None
            case MessageChange():
                self._message_of_none(item)
                yield
            case StreamBlock():
                yield from self._stream_block(item)
            case StreamAbort():
                self._stream_abort(item)
                yield

    def _transaction(self, item: Transaction) -> Iterator[None]:
        if self._filtered(item.origin):
            self._streamed.pop(item.xid, None)
            return
        prepared = item.kind is not TransactionKind.COMMIT and self._at_prepare(item)
        txn = self._ended(item)
        match item.kind:
            case TransactionKind.PREPARE if prepared:
                yield from self._whole(item, txn, prepared=True)
            case TransactionKind.COMMIT_PREPARED if prepared:
                if item.prepared is not None and not item.prepared.sent:
                    yield from self._whole(item, _as_prepared(item, txn), prepared=True)
                self._end("commit_prepared", txn, txn.final_lsn)
                yield
            case TransactionKind.ROLLBACK_PREPARED if prepared:
                if item.prepared is None:
                    raise PenstockError("a rollback of a prepared transaction without its PREPARE")
                self._end("rollback_prepared", txn, item.prepared.end_lsn, item.prepared.time)
                yield
            case TransactionKind.ROLLBACK_PREPARED:
                self._stream_abort(StreamAbort(item.xid, item.xid, txn.final_lsn, txn.commit_time))
                yield
            case TransactionKind.COMMIT | TransactionKind.COMMIT_PREPARED:
                yield from self._whole(item, txn, prepared=False)

    def _whole(self, item: Transaction, txn: ReorderBufferTXN, *, prepared: bool) -> Iterator[None]:
        """Send a transaction's changes with their begin and end (ReorderBufferReplay)."""
        stats, before = self._ctx.stats, self._streamed.pop(item.xid, None) is not None
        stats.total_txns += not before
        streamed = before
        if self._ctx.streaming and (item.streamed or before):
            streamed = (yield from self._blocks(txn, item.changes)) or before
        if streamed:
            stats.stream_txns += not before
            end = "stream_prepare" if prepared else "stream_commit"
            name = self._ctx.require(
                [end], _STREAMING_PREPARED if prepared else _STREAMING, txn.final_lsn
            )
            self._ctx.call(
                name, txn, txn.final_lsn, at=txn.end_lsn, xid=txn.xid, report=txn.final_lsn
            )
            yield
            return
        begin = "begin_prepare" if prepared else "begin"
        if prepared:
            self._ctx.require([begin], _AT_PREPARE, txn.first_lsn)
        self._ctx.call(begin, txn, at=txn.first_lsn, xid=txn.xid)
        yield
        for change in item.changes:
            yield from self._change(txn, change, stream="")
        if prepared:
            self._end("prepare", txn, txn.final_lsn)
        else:
            self._ctx.call(
                "commit", txn, txn.final_lsn, at=txn.end_lsn, xid=txn.xid, report=txn.final_lsn
            )
        yield

    def _end(self, callback: str, txn: ReorderBufferTXN, *arguments: object) -> None:
        """Call a callback of the two-phase group, which the plugin must have."""
        self._ctx.require([callback], _AT_PREPARE, txn.final_lsn)
        self._ctx.call(callback, txn, *arguments, at=txn.end_lsn, xid=txn.xid, report=txn.final_lsn)

    def _blocks(self, txn: ReorderBufferTXN, changes: Changes) -> Generator[None, None, bool]:
        """Send changes of a streamed transaction in blocks of about ``work_mem`` bytes. Tell if
        there were any."""
        before, sent, last = self.blocks, 0, INVALID
        for change in changes:
            for part in _parts(change, self._ctx.work_mem):
                if sent == 0:
                    self._stream_edge("stream_start", txn, _first_lsn(part))
                yield from self._change(txn, part, stream="stream_")
                sent += _memory(part)
                last = _last_lsn(part)
                if sent >= self._ctx.work_mem:
                    self._stream_edge("stream_stop", txn, last)
                    sent = 0
        if sent:
            self._stream_edge("stream_stop", txn, last)
        yield
        return self.blocks > before

    def _stream_edge(self, callback: str, txn: ReorderBufferTXN, lsn: Lsn) -> None:
        self.blocks += callback == "stream_start"
        self._ctx.stats.stream_count += callback == "stream_start"
        self._ctx.require([callback], _STREAMING, lsn)
        self._ctx.call(callback, txn, at=lsn, xid=txn.xid)

    def _stream_block(self, item: StreamBlock) -> Iterator[None]:
        if not self._ctx.streaming:
            raise PenstockError(f"a block of transaction {item.xid}, which is not streamed")
        if self._filtered(item.origin):
            return
        if item.xid not in self._streamed:
            self._ctx.stats.total_txns += 1
            self._ctx.stats.stream_txns += 1
        txn = self._streamed.setdefault(item.xid, ReorderBufferTXN(item.xid, item.first_lsn))
        txn.origin, txn.origin_lsn = item.origin, item.origin_lsn
        last = item.first_lsn
        self._stream_edge("stream_start", txn, item.first_lsn)
        for change in item.changes:
            yield from self._change(txn, change, stream="stream_")
            last = _last_lsn(change)
        self._stream_edge("stream_stop", txn, item.last_lsn or last)
        yield

    def _stream_abort(self, item: StreamAbort) -> None:
        top = self._streamed.get(item.xid)
        if top is None:
            return
        txn = top
        if item.subxid == item.xid:
            del self._streamed[item.xid]
        else:
            txn = ReorderBufferTXN(item.subxid, top.first_lsn, toptxn=top)
        txn.final_lsn, txn.commit_time = item.abort_lsn, item.time
        self._ctx.require(["stream_abort"], _STREAMING, item.abort_lsn)
        self._ctx.call("stream_abort", txn, item.abort_lsn, at=item.abort_lsn, xid=txn.xid)

    def _change(
        self, txn: ReorderBufferTXN, change: RowBatch | TruncateChange | MessageChange, stream: str
    ) -> Iterator[None]:
        """Send a change; ``stream`` is the prefix of the callbacks' names, empty outside of
        blocks."""
        ctx = self._ctx
        ctx.stats.total_bytes += _memory(change)
        ctx.stats.stream_bytes += _memory(change) if stream else 0
        match change:
            case RowBatch() if change.relation.rewrite_of and not ctx.output.receive_rewrites:
                pass
            case RowBatch():
                yield from self._rows(txn, change, stream)
            case TruncateChange() if registered(ctx.plugin, f"{stream}truncate"):
                arguments = (txn, change.relations, change)
                ctx.call(f"{stream}truncate", *arguments, at=change.lsn, xid=txn.xid)
            case MessageChange(transactional=False):
                self._message_of_none(change)
            case MessageChange():
                self._message(f"{stream}message", txn, change)
        yield

    def _rows(self, txn: ReorderBufferTXN, batch: RowBatch, stream: str) -> Iterator[None]:
        ctx = self._ctx
        names = [f"{stream}change_batch", f"{stream}change"]
        if len(batch) < _FEW_ROWS and batch.messages is None:
            names.reverse()
        name = ctx.require(names, _STREAMING, batch.first_lsn) if len(batch) else ""
        for part in _pieces(batch):
            if name.endswith("_batch"):
                ctx.call(name, txn, part, at=part.lsn, xid=txn.xid)
                ctx.update_progress()
                yield
                continue
            for change in part.changes():
                ctx.call(name, txn, part.relation, change, at=change.lsn, xid=txn.xid)
                ctx.update_progress()
                yield

    def _message_of_none(self, item: MessageChange) -> None:
        if self._filtered(item.origin):
            return
        txn = ReorderBufferTXN(item.xid, item.lsn) if item.xid else None
        self._message("message", txn, item)

    def _message(self, callback: str, txn: ReorderBufferTXN | None, message: MessageChange) -> None:
        if not registered(self._ctx.plugin, callback):
            return
        arguments = (txn, message.lsn, message.transactional, message.prefix, message.content)
        xid = 0 if txn is None else txn.xid
        self._ctx.call(callback, *arguments, at=message.lsn, xid=xid)

    def _filtered(self, origin: str | None) -> bool:
        """FilterByOrigin: tell whether the plugin leaves out changes of an origin."""
        if not registered(self._ctx.plugin, "filter_by_origin"):
            return False
        return bool(self._ctx.call("filter_by_origin", origin, writes=False))

    def _at_prepare(self, item: Transaction) -> bool:
        """Tell whether a prepared transaction is sent at its PREPARE (not FilterPrepare)."""
        if not self._ctx.twophase:
            return False
        if not registered(self._ctx.plugin, "filter_prepare"):
            return True
        return not self._ctx.call("filter_prepare", item.xid, item.gid or "", writes=False)

    def _ended(self, item: Transaction) -> ReorderBufferTXN:
        txn = self._streamed.get(item.xid) or ReorderBufferTXN(item.xid, item.first_lsn)
        txn.final_lsn, txn.end_lsn, txn.commit_time = item.final_lsn, item.end_lsn, item.commit_time
        txn.origin, txn.origin_lsn = item.origin, item.origin_lsn
        txn.gid, txn.prepared = item.gid, item.prepared
        return txn


def _as_prepared(item: Transaction, txn: ReorderBufferTXN) -> ReorderBufferTXN:
    """Return the transaction as it was at its PREPARE."""
    was = item.prepared
    if was is None:
        return txn
    return ReorderBufferTXN(
        item.xid,
        item.first_lsn,
        was.lsn,
        was.end_lsn,
        was.time,
        item.origin,
        item.origin_lsn,
        item.gid,
        was,
    )


def _pieces(batch: RowBatch) -> Iterator[RowBatch]:
    """Yield parts of a batch, each small enough for a plugin to get at once. The source has already
    divided encoded messages."""
    if batch.messages is not None:
        yield batch
        return
    sides = [len(side.columns) for side in (batch.new, batch.old) if side is not None]
    nbytes = batch.nbytes + _CELL_BYTES * sum(sides) * len(batch)
    size = max(1, min(_PIECE_ROWS, _PIECE_BYTES * len(batch) // max(nbytes, 1)))
    yield from _runs(batch, size)


def _runs(batch: RowBatch, size: int) -> Iterator[RowBatch]:
    count = len(batch)
    if count <= size:
        if count:
            yield batch
        return
    for offset in range(0, count, size):
        yield batch.slice(offset, min(size, count - offset))


def _parts(
    change: RowBatch | TruncateChange | MessageChange, work_mem: int
) -> Iterator[RowBatch | TruncateChange | MessageChange]:
    """Yield parts of a change, each as large as a block at most; a row may be larger."""
    if not isinstance(change, RowBatch):
        yield change
    elif change.messages is not None:
        for rows, messages in cut_xlog_data(change.messages, work_mem, CHANGE_BYTES):
            yield replace(change, rows=rows, messages=messages)
    else:
        mean = max(1, change.memory // max(1, len(change)))
        yield from _runs(change, -(-work_mem // mean))


def _memory(change: RowBatch | TruncateChange | MessageChange) -> int:
    if isinstance(change, RowBatch):
        return change.memory
    return CHANGE_BYTES + (len(change.content) if isinstance(change, MessageChange) else 0)


def _first_lsn(change: RowBatch | TruncateChange | MessageChange) -> Lsn:
    return change.first_lsn if isinstance(change, RowBatch) else change.lsn


def _last_lsn(change: RowBatch | TruncateChange | MessageChange) -> Lsn:
    return change.lsn_at(len(change) - 1) if isinstance(change, RowBatch) else change.lsn
