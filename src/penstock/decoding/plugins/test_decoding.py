"""test_decoding: changes as text that people read (contrib/test_decoding).

The plugin writes one text for each callback, equal to the server's. The options are the server's:
include-xids, include-timestamp, force-binary, skip-empty-xacts, only-local, include-rewrites and
stream-changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import print_timestamp
from penstock.decoding.logical import LogicalDecodingContext as Context
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions, OutputType
from penstock.decoding.plugins.options import boolean, unknown
from penstock.decoding.relation_data import AttributeData, RelationData
from penstock.decoding.reorder_buffer import (
    Action,
    Change,
    ReorderBufferTXN,
    RowBatch,
    TruncateChange,
)
from penstock.decoding.tuple_columns import Tuple, TupleColumn, TupleColumns, Unsent
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgtypes.pg_type import BIT, BOOL, FLOATS, INTEGERS, NUMERIC, OID, VARBIT

_NODECODE: Final = "_nodecode"
_NO_TUPLE: Final = " (no-tuple-data)"
_MESSAGES_COUNT_SINCE: Final = 17


@dataclass(slots=True)
class _TxnData:
    """TestDecodingTxnData: the state of one transaction."""

    xact_wrote_changes: bool = False
    stream_wrote_changes: bool = False


class TestDecoding(OutputPlugin):
    """The plugin test_decoding."""

    __test__ = False  # by its name pytest would take it for a test

    def __init__(self) -> None:
        self._include_xids = True
        self._include_timestamp = False
        self._skip_empty_xacts = False
        self._only_local = False

    def startup(self, ctx: Context, options: OutputPluginOptions, is_init: bool) -> None:
        streaming = False
        for name, value in ctx.options:
            match name:
                case "include-xids":
                    self._include_xids = boolean(name, value)
                case "include-timestamp":
                    self._include_timestamp = boolean(name, value)
                case "skip-empty-xacts":
                    self._skip_empty_xacts = boolean(name, value)
                case "only-local":
                    self._only_local = boolean(name, value)
                case "force-binary" | "include-rewrites" | "stream-changes" if value is None:
                    continue
                case "force-binary":
                    if boolean(name, value):
                        options.output_type = OutputType.BINARY
                case "include-rewrites":
                    options.receive_rewrites = boolean(name, value)
                case "stream-changes":
                    streaming = boolean(name, value)
                case _:
                    raise unknown(name, value)
        ctx.streaming = ctx.streaming and streaming

    def shutdown(self, ctx: Context) -> None:
        """Do nothing, since the plugin has no state."""

    def begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        txn.output_plugin_private = _TxnData()
        if not self._skip_empty_xacts:
            self._begin(ctx, txn)

    def begin_prepare(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        self.begin(ctx, txn)

    def commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        wrote, txn.output_plugin_private = _data(txn).xact_wrote_changes, None
        if wrote or not self._skip_empty_xacts:
            self._write(ctx, f"COMMIT{self._xid(txn)}{self._at(txn.commit_time)}")

    def prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        if _data(txn).xact_wrote_changes or not self._skip_empty_xacts:
            self._write(ctx, self._of_gid("PREPARE TRANSACTION", txn))

    def commit_prepared(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        self._write(ctx, self._of_gid("COMMIT PREPARED", txn))

    def rollback_prepared(
        self, ctx: Context, txn: ReorderBufferTXN, prepare_end_lsn: Lsn, prepare_time: int
    ) -> None:
        self._write(ctx, self._of_gid("ROLLBACK PREPARED", txn))

    def filter_prepare(self, ctx: Context, xid: int, gid: str) -> bool:
        return _NODECODE in gid

    def filter_by_origin(self, ctx: Context, origin: str | None) -> bool:
        return self._only_local and origin is not None

    def change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        self._wrote(ctx, txn)
        text = f"table {relation.quoted_name}: {change.action}:"
        shown, hidden = (change.new, change.old)
        if change.action is Action.DELETE:
            shown, hidden = (change.old, None)
        if hidden is not None and change.action is Action.UPDATE:
            text += f" old-key:{tuple_text(relation, hidden, skip_nulls=True)} new-tuple:"
        skip = change.action is Action.DELETE
        text += _NO_TUPLE if shown is None else tuple_text(relation, shown, skip_nulls=skip)
        self._write(ctx, text)

    def change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        self._wrote(ctx, txn)
        pieces: Pieces = [f"table {batch.relation.quoted_name}: {batch.action}:"]
        delete = batch.action is Action.DELETE
        if batch.action is Action.UPDATE and batch.old is not None:
            pieces += [" old-key:", *tuple_pieces(batch.old, skip_nulls=True), " new-tuple:"]
        shown = batch.old if delete else batch.new
        pieces += [_NO_TUPLE] if shown is None else tuple_pieces(shown, skip_nulls=delete)
        ctx.write_batch(joined(pieces, len(batch)))

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        self._wrote(ctx, txn)
        names = ", ".join(relation.quoted_name for relation in relations)
        flags = " restart_seqs" if change.restart_identity else ""
        flags += " cascade" if change.cascade else ""
        self._write(ctx, f"table {names}: TRUNCATE:{flags or ' (no-flags)'}")

    def message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        if transactional and txn is not None and ctx.major_version >= _MESSAGES_COUNT_SINCE:
            self._wrote(ctx, txn)
        self._write(ctx, _message("message", transactional, prefix, content), content)

    def stream_start(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        if txn.output_plugin_private is None:
            txn.output_plugin_private = _TxnData()
        _data(txn).stream_wrote_changes = False
        if not self._skip_empty_xacts:
            self._stream_start(ctx, txn)

    def stream_stop(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        if _data(txn).stream_wrote_changes or not self._skip_empty_xacts:
            self._write(ctx, f"closing a streamed block for transaction{self._of_txn(txn)}")

    def stream_abort(self, ctx: Context, txn: ReorderBufferTXN, abort_lsn: Lsn) -> None:
        top = txn.toptxn or txn
        wrote = _data(top).xact_wrote_changes
        if txn.toptxn is None:
            txn.output_plugin_private = None
        if wrote or not self._skip_empty_xacts:
            self._write(ctx, f"aborting streamed (sub)transaction{self._of_txn(txn)}")

    def stream_prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        if not _data(txn).xact_wrote_changes and self._skip_empty_xacts:
            return
        what = "preparing streamed transaction"
        self._write(ctx, self._of_gid(f"{what} TXN" if self._include_xids else what, txn))

    def stream_commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        wrote, txn.output_plugin_private = _data(txn).xact_wrote_changes, None
        if wrote or not self._skip_empty_xacts:
            at = self._at(txn.commit_time)
            self._write(ctx, f"committing streamed transaction{self._of_txn(txn)}{at}")

    def stream_change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        self._stream_wrote(ctx, txn)
        self._write(ctx, self._streaming("change", txn))

    def stream_change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        self._stream_wrote(ctx, txn)
        ctx.write_batch(joined([self._streaming("change", txn)], len(batch)))

    def stream_truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        self._stream_wrote(ctx, txn)
        self._write(ctx, self._streaming("truncate", txn))

    def stream_message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        if transactional and txn is not None and ctx.major_version >= _MESSAGES_COUNT_SINCE:
            self._stream_wrote(ctx, txn)
        text = _message("streaming message", transactional, prefix, content)
        if transactional:
            self._write(ctx, text.removesuffix(" content:"))
        else:
            self._write(ctx, text, content)

    def _wrote(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        data = _data(txn)
        if self._skip_empty_xacts and not data.xact_wrote_changes:
            self._begin(ctx, txn)
        data.xact_wrote_changes = True

    def _stream_wrote(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        data = _data(txn)
        if self._skip_empty_xacts and not data.stream_wrote_changes:
            self._stream_start(ctx, txn)
        data.xact_wrote_changes = data.stream_wrote_changes = True

    def _begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        self._write(ctx, f"BEGIN{self._xid(txn)}")

    def _stream_start(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        self._write(ctx, f"opening a streamed block for transaction{self._of_txn(txn)}")

    def _xid(self, txn: ReorderBufferTXN) -> str:
        return f" {txn.xid}" if self._include_xids else ""

    def _of_txn(self, txn: ReorderBufferTXN) -> str:
        return f" TXN {txn.xid}" if self._include_xids else ""

    def _streaming(self, what: str, txn: ReorderBufferTXN) -> str:
        return f"streaming {what} for{self._of_txn(txn) or ' transaction'}"

    def _of_gid(self, what: str, txn: ReorderBufferTXN) -> str:
        xid = f", txid {txn.xid}" if self._include_xids else ""
        return f"{what} {quote_literal(txn.gid or '')}{xid}{self._at(txn.commit_time)}"

    def _at(self, time: int) -> str:
        return f" (at {print_timestamp(time, zone=True)})" if self._include_timestamp else ""

    def _write(self, ctx: Context, *pieces: str | bytes) -> None:
        ctx.prepare_write()
        ctx.out += pieces
        ctx.write()


def _data(txn: ReorderBufferTXN) -> _TxnData:
    data = txn.output_plugin_private
    if not isinstance(data, _TxnData):
        raise TypeError("a change outside of begin and commit")
    return data


def _message(what: str, transactional: bool, prefix: str, content: bytes) -> str:
    head = f"{what}: transactional: {int(transactional)} prefix: {prefix}"
    return f"{head}, sz: {len(content)} content:"


# Tuples as test_decoding prints them (test_decoding.c, tuple_to_stringinfo, print_literal).
#
# The text after ``INSERT:`` is made for one row, or for the columns of many rows at once. A
# property test compares both.

_BARE: Final = INTEGERS | FLOATS | {NUMERIC, OID}
_BITS: Final = frozenset({BIT, VARBIT})
_UNCHANGED: Final = "unchanged-toast-datum"
_NULL: Final = "null"

Pieces = list[pa.Array | str]
"""Parts of the rows' texts: a string that all rows share, or an array with one for each row."""


def tuple_text(relation: RelationData, row: Tuple, *, skip_nulls: bool) -> str:
    """Return the text of one row."""
    parts = []
    for index, attribute in enumerate(relation.attributes):
        value = row.text(index)
        if value is Unsent.NOT_SENT or (value is None and skip_nulls):
            continue
        if value is Unsent.UNCHANGED_TOAST:
            shown = _UNCHANGED
        else:
            shown = _NULL if value is None else _literal(attribute.type_oid, str(value))
        parts.append(_head(attribute) + shown)
    return "".join(parts)


def tuple_pieces(columns: TupleColumns, *, skip_nulls: bool) -> Pieces:
    """Return the pieces of the texts of all rows, which ``joined`` puts together."""
    pieces: Pieces = []
    for attribute, column in zip(columns.relation.attributes, columns.columns, strict=True):
        if column is not None:
            pieces += _column(attribute, column, skip_nulls)
    return pieces


def joined(pieces: Pieces, rows: int) -> pa.Array:
    """Join the pieces of each row."""
    merged: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, str) for piece in merged):
        return pa.repeat(pa.scalar("".join(map(str, merged))), rows)
    arguments = [pa.scalar(p) if isinstance(p, str) else p for p in merged]
    return pc.binary_join_element_wise(*arguments, pa.scalar(""))


def _head(attribute: AttributeData) -> str:
    return f" {attribute.quoted_name}[{attribute.type_name}]:"


def _literal(type_oid: int, text: str) -> str:
    if type_oid in _BARE:
        return text
    if type_oid in _BITS:
        return f"B'{text}'"
    if type_oid == BOOL:
        return "true" if text == "t" else "false"
    return "'" + text.replace("'", "''") + "'"


def _column(attribute: AttributeData, column: TupleColumn, skip_nulls: bool) -> Pieces:
    head = _head(attribute)
    if column.unchanged is None and column.text.null_count == len(column.text):
        return [] if skip_nulls else [head + _NULL]
    pieces = [head, *_literals(attribute.type_oid, column.text)]
    if column.text.null_count == 0:
        return pieces
    text = joined(pieces, len(column.text))  # null where one of its pieces is null
    text = pc.fill_null(text, "" if skip_nulls else head + _NULL)
    if column.unchanged is not None:
        text = pc.if_else(pa.array(column.unchanged), head + _UNCHANGED, text)
    return [text]


def _literals(type_oid: int, text: pa.Array) -> Pieces:
    if type_oid in _BARE:
        return [text]
    if type_oid in _BITS:
        return ["B'", text, "'"]
    if type_oid == BOOL:
        return [pc.if_else(pc.equal(text, "t"), "true", "false")]
    if pc.any(pc.match_substring(text, "'")).as_py():
        text = pc.replace_substring(text, "'", "''")
    return ["'", text, "'"]
