"""pgoutput: the messages of logical replication (pgoutput.c), for any source.

The plugin writes transactions as binary messages of the protocol, by publication rules that the
node supplies. Rows of a source are filtered and encoded here one by one. The lake filters and
encodes rows where it reads its files, and gives whole messages (``RowBatch.messages``). All else is
the same for both. The options are proto_version, publication_names, binary, streaming, two_phase,
messages and origin.

    callback                      messages
    begin                         (up to version 14: Begin, Origin)
    change, truncate, message     Begin, Origin if there was none yet; Type, Relation if the client
                                  does not know the relation; the change
    commit                        Commit, if there was a Begin
    begin_prepare ... prepare     Begin Prepare, Origin ... Prepare, even if nothing is in between
    commit_prepared               Commit Prepared; rollback_prepared: Rollback Prepared
    stream_start ... stream_stop  Stream Start, Origin in the first block ... Stream Stop; Type and
                                  Relation count for this transaction until it commits
    stream_commit                 Stream Commit; likewise stream_prepare, stream_abort
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS
from penstock.decoding.logical import LogicalDecodingContext as Context
from penstock.decoding.output_plugin import OutputPlugin, OutputPluginOptions, OutputType
from penstock.decoding.publication_rules import PublicationRules, PublishedRelation
from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import (
    Action,
    Change,
    ReorderBufferTXN,
    RowBatch,
    TruncateChange,
)
from penstock.decoding.tuple_columns import Detoasted, Tuple, Unsent
from penstock.errors import FeatureNotSupported, InvalidParameterValue, NotInPrerequisiteState
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import (
    NULL,
    TRANSFORMATIONS,
    UNCHANGED,
    Binary,
    Cell,
    Delete,
    Insert,
    OldTuple,
    RowMessage,
    Text,
    TupleData,
    Update,
)
from penstock.pgoutput.options import PgoutputOptions, parse_parameters
from penstock.protocol.copy_both import insert_int32
from penstock.relation import Relation

_EMPTY_NOT_SENT_SINCE: Final = 15
_FIRST_GENBKI_OBJECT_ID: Final = 10_000
_XID_AT: Final = 1
"""The offset of the xid in messages within a block."""
_MESSAGES: Final = {Action.INSERT: Insert, Action.UPDATE: Update, Action.DELETE: Delete}


@dataclass(slots=True)
class _TxnData:
    """PGOutputTxnData; ``schemas``: relations announced in the transaction's blocks, by oid."""

    sent_begin: bool = False
    streamed: bool = False
    schemas: dict[int, Relation] = field(default_factory=dict)


class Pgoutput(OutputPlugin):
    """The plugin pgoutput."""

    def __init__(self) -> None:
        self._given: PgoutputOptions | None = None
        self._rules: PublicationRules | None = None
        self._in_streaming = False
        self._schemas: dict[int, Relation] = {}

    def startup(self, ctx: Context, options: OutputPluginOptions, is_init: bool) -> None:
        options.output_type = OutputType.BINARY
        if is_init:
            ctx.streaming = ctx.twophase = False
            return
        given = self._given = parse_parameters(ctx.options, ctx.major_version)
        if given.streaming is not None and not ctx.streaming:
            raise NotInPrerequisiteState("streaming requested, but not supported by output plugin")
        if given.two_phase and not ctx.twophase:
            raise NotInPrerequisiteState(
                "two-phase commit requested, but not supported by output plugin"
            )
        ctx.streaming = ctx.streaming and given.streaming is not None
        ctx.two_phase_given = given.two_phase
        if ctx.publications is None:
            raise FeatureNotSupported("pgoutput is not available: there are no publications here")
        self._rules = ctx.publications(given.publication_names)

    def filter_by_origin(self, ctx: Context, origin: str | None) -> bool:
        return self.options.filters_origin(origin)

    def begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        txn.output_plugin_private = _TxnData()
        if ctx.major_version < _EMPTY_NOT_SENT_SINCE:
            self._begin(ctx, txn)

    def commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        sent, txn.output_plugin_private = _data(txn).sent_begin, None
        ctx.update_progress(not sent)
        if sent:
            _write(ctx, m.Commit(commit_lsn, txn.end_lsn, _time(txn.commit_time)))

    def begin_prepare(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        txn.output_plugin_private = _TxnData(sent_begin=True)
        _write(ctx, m.BeginPrepare(*self._of_prepare(txn)))
        _origin(ctx, txn, txn.origin_lsn)

    def prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        ctx.update_progress(False)
        _write(ctx, m.Prepare(*self._of_prepare(txn)))

    def commit_prepared(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        ctx.update_progress(False)
        time = _time(txn.commit_time)
        _write(ctx, m.CommitPrepared(commit_lsn, txn.end_lsn, time, txn.xid, txn.gid or ""))

    def rollback_prepared(
        self, ctx: Context, txn: ReorderBufferTXN, prepare_end_lsn: Lsn, prepare_time: int
    ) -> None:
        ctx.update_progress(False)
        times = (_time(prepare_time), _time(txn.commit_time))
        gid = txn.gid or ""
        _write(ctx, m.RollbackPrepared(prepare_end_lsn, txn.end_lsn, *times, txn.xid, gid))

    def change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        self.change_batch(ctx, txn, change.batch)

    def change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        published = self._published(batch.relation)
        if published is None or batch.action not in published.actions:
            return
        if batch.messages is not None:
            self._begun(ctx, txn)
            xid, messages = self._xid(txn, batch.xid), batch.messages
            self._schema(ctx, txn, published.relation, xid)
            if xid is not None:
                messages = insert_int32(messages, len(batch), _XID_AT, xid)
            ctx.write_messages(messages)
            return
        for change in batch.changes():
            xid = self._xid(txn, change.xid)
            message = self._row_message(published, batch.relation, change, xid)
            if message is not None:
                ctx.move_to(change.lsn)
                self._begun(ctx, txn)
                self._schema(ctx, txn, published.relation, xid)
                _write(ctx, message)

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        xid = self._xid(txn, change.xid)
        oids = []
        for relation in relations:
            published = self._published(relation)
            if published is None or not published.truncate:
                continue
            if published.relation.oid != relation.oid:
                continue  # a partition published as its ancestor, which also has other rows
            oids.append(relation.oid)
            self._begun(ctx, txn)
            self._schema(ctx, txn, published.relation, xid)
        if oids:
            _write(ctx, m.Truncate(tuple(oids), change.cascade, change.restart_identity, xid))

    def message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        if not self.options.messages:
            return
        if transactional and txn is not None:
            self._begun(ctx, txn)
        xid = None if txn is None else self._xid(txn, None)
        _write(ctx, m.LogicalMessage(transactional, lsn, prefix, content, xid))

    def stream_start(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        if txn.output_plugin_private is None:
            txn.output_plugin_private = _TxnData(sent_begin=True)
        data = _data(txn)
        _write(ctx, m.StreamStart(txn.xid, not data.streamed))
        if not data.streamed:  # its LSN at the origin is known only at its end
            _origin(ctx, txn, INVALID)
        data.streamed = self._in_streaming = True

    def stream_stop(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        _write(ctx, m.StreamStop())
        self._in_streaming = False

    def stream_abort(self, ctx: Context, txn: ReorderBufferTXN, abort_lsn: Lsn) -> None:
        top = txn.toptxn or txn
        if self.options.streaming == "parallel":
            time = _time(txn.commit_time)
            _write(ctx, m.StreamAbort(top.xid, txn.xid, abort_lsn, time))
        else:
            _write(ctx, m.StreamAbort(top.xid, txn.xid))

    def stream_prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        ctx.update_progress(False)
        _write(ctx, m.StreamPrepare(*self._of_prepare(txn)))

    def stream_commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        ctx.update_progress(False)
        time = _time(txn.commit_time)
        _write(ctx, m.StreamCommit(txn.xid, commit_lsn, txn.end_lsn, time))
        self._schemas |= _data(txn).schemas

    stream_change = change
    stream_change_batch = change_batch
    stream_message = message
    stream_truncate = truncate

    @property
    def options(self) -> PgoutputOptions:
        """The client's options."""
        if self._given is None:
            raise InvalidParameterValue('option "proto_version" missing')
        return self._given

    @property
    def _publications(self) -> PublicationRules:
        if self._rules is None:
            raise FeatureNotSupported("pgoutput is not available: there are no publications here")
        return self._rules

    def _published(self, relation: RelationData) -> PublishedRelation | None:
        return self._publications.published(relation)

    def _row_message(
        self, published: PublishedRelation, relation: RelationData, change: Change, xid: int | None
    ) -> RowMessage | None:
        """Return the message of a row, None if it is not sent: neither its old nor its new tuple
        matches the row filters, or it is a DELETE without an old tuple (pgoutput_row_filter)."""
        matches = partial(self._publications.matches, relation, change.action)
        sent: type[RowMessage] | None = _MESSAGES[change.action]
        old, new = change.old, change.new
        if old is not None and new is not None:
            whole = Detoasted(new, old)
            sent = TRANSFORMATIONS[matches(old), matches(whole)]
            new = whole if sent is Insert else new
        elif not any(matches(row) for row in (old, new) if row is not None):
            sent = None
        return _row_message(published, sent, old, new, xid, binary=self.options.binary)

    def _xid(self, txn: ReorderBufferTXN, of_change: int | None) -> int | None:
        """Return the xid at the begin of messages within a block, None outside of blocks."""
        return (of_change or txn.xid) if self._in_streaming else None

    def _begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        _data(txn).sent_begin = True
        _write(ctx, m.Begin(txn.final_lsn, _time(txn.commit_time), txn.xid))
        _origin(ctx, txn, txn.origin_lsn)

    def _begun(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        if not _data(txn).sent_begin:
            self._begin(ctx, txn)

    def _schema(
        self, ctx: Context, txn: ReorderBufferTXN, relation: Relation, xid: int | None
    ) -> None:
        """maybe_send_schema: announce a relation once. An announcement in a block counts only for
        its transaction, until the transaction commits."""
        told = _data(txn).schemas if self._in_streaming else self._schemas
        if told.get(relation.oid) == relation:
            return
        told[relation.oid] = relation
        for attribute in relation.attributes:
            if attribute.type_oid >= _FIRST_GENBKI_OBJECT_ID:
                name = self._publications.type_name(attribute.type_oid)
                if name is not None:
                    _write(ctx, m.TypeMessage(attribute.type_oid, *name, xid))
        _write(ctx, m.RelationMessage(relation, xid))

    def _of_prepare(self, txn: ReorderBufferTXN) -> tuple[Lsn, Lsn, int, int, str]:
        time = _time(txn.commit_time)
        return (txn.final_lsn, txn.end_lsn, time, txn.xid, txn.gid or "")


def _data(txn: ReorderBufferTXN) -> _TxnData:
    data = txn.output_plugin_private
    if not isinstance(data, _TxnData):
        raise TypeError("a change outside of begin and commit")
    return data


def _origin(ctx: Context, txn: ReorderBufferTXN, origin_lsn: Lsn) -> None:
    """send_repl_origin."""
    if txn.origin is not None:
        _write(ctx, m.Origin(origin_lsn, txn.origin))


def _write(ctx: Context, message: m.Message) -> None:
    ctx.prepare_write()
    ctx.out.append(encode(message))
    ctx.write()


def _time(microseconds: int) -> int:
    """Return microseconds since 2000 for microseconds since 1970."""
    return microseconds - EPOCH_MICROSECONDS


# Row messages of pgoutput (proto.c, logicalrep_write_tuple).
#
# The message is made of a row's old and new tuples, for the columns that its table publishes.
# Values are in binary if the client wants it and the type has a binary form here, else in text.


def _row_message(
    published: PublishedRelation,
    sent: type[RowMessage] | None,
    old: Tuple | None,
    new: Tuple | None,
    xid: int | None,
    *,
    binary: bool,
) -> RowMessage | None:
    """Return a row's message of the kind ``sent``; ``xid`` is set in a block."""
    oid, kind = published.relation.oid, OldTuple.of(published.relation.replica_identity)
    if sent is Delete:
        return None if old is None else Delete(oid, _cells(published, old, binary), kind, xid)
    if sent is None or new is None:
        return None
    cells = _cells(published, new, binary)
    if sent is Insert:
        return Insert(oid, cells, xid)
    if old is None:
        return Update(oid, cells, xid=xid)
    return Update(oid, cells, _cells(published, old, binary), kind, xid)


def _cells(published: PublishedRelation, row: Tuple, binary: bool) -> TupleData:
    return tuple(_cell(row, index, binary) for index in published.columns)


def _cell(row: Tuple, index: int, binary: bool) -> Cell:
    text = row.text(index)
    if text is Unsent.UNCHANGED_TOAST:
        return UNCHANGED
    if text is None or text is Unsent.NOT_SENT:
        return NULL
    raw = row.binary(index) if binary else None
    return Text(str(text).encode()) if raw is None else Binary(raw)
