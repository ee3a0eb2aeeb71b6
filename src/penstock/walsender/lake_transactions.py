"""The lake as a source of logical decoding: commits as transactions of a reorder buffer.

``LakeTransactions`` lets ``decoding`` decode transactions of the node's log to rows, and turns
these into items for ``penstock.decoding``. Changes are read when the plugin needs them. All changes
of a transaction have the LSN of its begin, since a commit has no order among its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow as pa

from penstock.catalog import LakeTransaction, TwoPhaseKind
from penstock.decoding import (
    Action,
    MessageChange,
    RelationData,
    RowBatch,
    Transaction,
    TruncateChange,
    TupleColumns,
)
from penstock.decoding.reorder_buffer import Catalogs, Item, Prepared, TransactionKind
from penstock.lsn import INVALID, Lsn
from penstock.pipeline.change_columns import read_row_stream
from penstock.protocol.answers import Notice
from penstock.publication.members import Operation
from penstock.relation import Relation
from penstock.walsender.decoding_options import prepare_is_sent, was_prepared
from penstock.walsender.feed import (
    ChangeSource,
    FeedChange,
    Portion,
    TransactionBegin,
    TransactionEnd,
)

_ACTIONS: Final = {
    Operation.INSERT: Action.INSERT,
    Operation.UPDATE: Action.UPDATE,
    Operation.DELETE: Action.DELETE,
}
_KINDS: Final = {
    TwoPhaseKind.PREPARE: TransactionKind.PREPARE,
    TwoPhaseKind.COMMIT_PREPARED: TransactionKind.COMMIT_PREPARED,
    TwoPhaseKind.ROLLBACK_PREPARED: TransactionKind.ROLLBACK_PREPARED,
}

Decoded = RowBatch | TruncateChange | MessageChange


class LakeTransactions:
    """A converter of transactions into items, for one call of a slot function or one stream."""

    def __init__(
        self,
        source: ChangeSource,
        two_phase_at: Lsn | None = None,
        catalogs: Callable[[LakeTransaction], Catalogs] | None = None,
        warn: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        """Take a source of rows with descriptions of their tables, or of pgoutput messages.
        ``two_phase_at`` is the source's option. ``catalogs`` returns the catalogs as they were at a
        transaction; it is cheap, since catalogs are read only when a plugin asks. ``warn`` takes
        the source's warnings."""
        self.source: Final = source
        self._catalogs = catalogs
        self._two_phase_at = two_phase_at
        self._warn = warn
        self._bare: dict[Relation, RelationData] = {}

    def items(
        self, transactions: Sequence[LakeTransaction]
    ) -> Generator[tuple[Iterable[Item], Lsn], None, None]:
        """Yield the items of each transaction, and its end. Raises the source's errors while the
        items are drawn."""
        with closing(self.source.changes(transactions)) as found:
            for change in found:
                if isinstance(change, TransactionBegin):
                    rest = self.changes(change.transaction, found)
                    yield self.items_of(change, rest), change.transaction.end
                    for _ in rest:  # a filter may have skipped the transaction
                        pass

    def changes(
        self, transaction: LakeTransaction, found: Iterator[FeedChange]
    ) -> Iterator[Decoded]:
        """Yield the changes up to the transaction's end."""
        for change in found:
            if isinstance(change, TransactionEnd):
                return
            if isinstance(change, Portion):
                yield self.portion(change, transaction)

    def portion(self, portion: Portion, transaction: LakeTransaction) -> Decoded:
        """Decode a portion. Its changes have the LSN of the transaction's begin, messages the LSN
        at the end of their records."""
        if portion.message is not None:
            return portion.message
        lsn = transaction.begin
        relations = tuple(self._relation(portion, relation) for relation in portion.relations)
        if portion.operation is Operation.TRUNCATE:
            return TruncateChange(relations, lsn)
        (relation,) = relations
        action = _ACTIONS[portion.operation]
        if not portion.as_rows:
            rows, data = portion.changes, portion.data
            return RowBatch(relation, action, None, None, lsn, rows=rows, messages=data)
        columns = read_row_stream(portion.data, portion.changes)
        new, old = (_tuples(relation, side, columns.count) for side in (columns.new, columns.old))
        return RowBatch(relation, action, new, old, lsn, rows=columns.count)

    def _relation(self, portion: Portion, relation: Relation) -> RelationData:
        """Return a table as the plugin sees it; pgoutput needs only the relation."""
        described = portion.described.get(relation.oid)
        if described is not None:
            return described
        if relation not in self._bare:
            self._bare[relation] = RelationData.of(relation)
        return self._bare[relation]

    def items_of(self, begun: TransactionBegin, changes: Iterator[Decoded]) -> Iterable[Item]:
        """Return an entry of the log as items: a transaction, or a message outside of one."""
        transaction, record = begun.transaction, begun.transaction.two_phase
        if not transaction.is_transaction:
            return (change for change in changes if isinstance(change, MessageChange))
        whole = Transaction(
            transaction.xid,
            transaction.begin,
            transaction.commit,
            transaction.end,
            transaction.commit_time,
            self._warned(begun, changes),
            transaction.origin,
            transaction.origin_lsn or INVALID,
            streamed=begun.streamed,
            catalogs=None if self._catalogs is None else self._catalogs(transaction),
        )
        if record is None:
            return (whole,)
        at = record.prepare
        sent = was_prepared(record, self._two_phase_at)
        prepared = None if at is None else Prepared(at.lsn, at.end, at.time, sent)
        kind = _KINDS[record.kind]
        if kind is TransactionKind.PREPARE and not prepare_is_sent(
            transaction.commit, self._two_phase_at
        ):
            return ()
        return (replace(whole, gid=record.gid, kind=kind, prepared=prepared),)

    def _warned(self, begun: TransactionBegin, changes: Iterator[Decoded]) -> Iterator[Decoded]:
        for warning in begun.warnings:
            self._warn(warning)
        yield from changes


def _tuples(
    relation: RelationData, columns: Mapping[int, pa.Array] | None, count: int
) -> TupleColumns | None:
    if columns is None:
        return None
    places = range(len(relation.attributes))
    return TupleColumns.typed(relation, [columns.get(place) for place in places], count)
