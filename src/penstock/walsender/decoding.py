"""One stream's view of transactions: what of them its publications publish (pgoutput.c).

In: transactions of the log, the options of the stream. Out: pieces of encoded changes. Publications
are looked up when a transaction is sent, tables by their newest columns at the transaction.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from penstock.catalog import Catalog, LakeTransaction, Member
from penstock.errors import (
    PenstockError,
    RequiredChangesRemoved,
    VersionGone,
)
from penstock.lakehouse.state import TableState
from penstock.lakehouse.table_changes import FilePart, TableChanges, table_changes
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse
from penstock.pgoutput.columnar_encoder import XLogDataHeader
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Truncate
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.change_item import ChangeItem, Operation, PublishedTable
from penstock.pipeline.publish_changes import publish_changes
from penstock.pipeline.tasks import Failed
from penstock.protocol.copy_both import xlog_data
from penstock.publication.members import Action
from penstock.relation import Relation
from penstock.walsender.feed import Begun, Changes, Ended, Piece
from penstock.walsender.lake_columns import filter_column
from penstock.walsender.published import Publishing
from penstock.walsender.published_table import columns_at, published_table, scan_file

_PAIRED: Final = 4
"""Times the memory for decoding: old and new rows that one task keeps in DuckDB, as Arrow data."""
_ORIGIN_NONE: Final = "none"


@dataclass(frozen=True)
class _Work:
    """A table of a transaction that is published."""

    table: PublishedTable
    changes: TableChanges
    uri: str
    removed: tuple[FilePart, ...]
    truncated: bool


@dataclass(frozen=True)
class _Plan:
    """How one transaction is sent. ``relations``: by number of the work."""

    transaction: LakeTransaction
    xid: int | None
    emptied: Piece | None
    relations: Mapping[int, Relation]
    items: Sequence[ChangeItem]


class Decoding:
    """``feed.ChangeSource`` for one stream."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: Warehouse,
        catalog: Catalog,
        options: PgoutputOptions,
        version: int,
        work_mem: int,
    ) -> None:
        """``version``: major, of PostgreSQL. ``work_mem``: bytes of WAL from which on a
        transaction is streamed, where the subscriber asked for it; the tasks' memory follows it.
        """
        self._work_mem = work_mem
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._options = options
        self._states: dict[str, TableState] = {}  # as the last transaction left them
        self._publishing = Publishing(catalog, options.publication_names, version)

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        """Raises PenstockError: a publication is missing, a table has no identity, a version is
        gone."""
        plans, error = self._plans(transactions)
        items = [item for plan in plans for item in plan.items]
        staging = f"{self._warehouse.uri}/{OWN_FOLDER}/staging"
        portions = publish_changes(
            self._spark,
            self._warehouse.storage,
            items,
            staging=staging,
            share_bytes=_PAIRED * self._work_mem,
        )
        waiting = next(portions, None)
        try:
            for plan in plans:
                yield Begun(plan.transaction, plan.xid is not None)
                if plan.emptied is not None:
                    yield plan.emptied
                while waiting is not None and waiting.work in plan.relations:
                    if isinstance(waiting, Failed):
                        raise _translated(waiting.error)
                    relation = plan.relations[waiting.work]
                    yield Piece((relation,), waiting.data, waiting.changes)
                    waiting = next(portions, None)
                yield Ended(plan.transaction)
            if waiting is not None:
                raise PenstockError(f"changes of table {waiting.work} belong to no transaction")
        finally:
            portions.close()
        if error is not None:
            raise error

    def _plans(
        self, transactions: Sequence[LakeTransaction]
    ) -> tuple[list[_Plan], PenstockError | None]:
        """What to do for each, up to the first that cannot be sent."""
        plans: list[_Plan] = []
        numbers = itertools.count()
        for transaction in transactions:
            try:
                plans.append(self._plan(transaction, numbers))
            except PenstockError as error:
                if not plans:
                    raise
                return plans, error
        return plans, None

    def _plan(self, transaction: LakeTransaction, numbers: Iterator[int]) -> _Plan:
        works = []
        if transaction.origin is None or self._options.origin != _ORIGIN_NONE:
            members = sorted(transaction.members, key=lambda m: m.relation)
            works = [work for member in members if (work := self._work(member)) is not None]
        xid = transaction.xid if works and self._streams(transaction) else None
        sent_at = time.time_ns() // 1000
        header = XLogDataHeader(transaction.begin, sent_at)
        numbered = {next(numbers): work for work in works}
        return _Plan(
            transaction,
            xid,
            _truncates([work.table.relation for work in works if work.truncated], header, xid),
            {number: work.table.relation for number, work in numbered.items()},
            [
                item
                for number, work in numbered.items()
                for item in self._items(number, work, header, xid)
            ],
        )

    def _streams(self, transaction: LakeTransaction) -> bool:
        """Whether it is sent in blocks, as the subscriber wants large ones."""
        size = transaction.commit - transaction.begin
        return self._options.streaming is not None and size > self._work_mem

    def _work(self, member: Member) -> _Work | None:
        with self._catalog.read() as t:
            table = t.tables.find_oid(member.relation)
        if table is None or not self._publishing.publishes(table):
            return None  # what is not published may be of any kind, and gone
        try:
            changes = table_changes(
                self._warehouse.storage,
                member.uri,
                member.from_version,
                member.to_version,
                self._states.get(member.uri),
            )
        except VersionGone as error:
            raise _removed(error) from error
        self._states[member.uri] = changes.after
        if not changes.removed and not changes.added and not changes.truncated:
            return None
        columns = columns_at(table, changes.after)
        published = self._publishing.of(table, tuple(map(filter_column, columns)))
        if published is None:
            return None
        found = published_table(table, published, columns)
        removed, truncated = changes.removed, changes.truncated
        if truncated and (
            Action.TRUNCATE not in published.rule.actions or published.target.oid != table.oid
        ):
            truncated = False
            if Action.TRUNCATE in published.rule.actions:
                # Other partitions of the target keep their rows: those of this one are deleted.
                found = replace(found, published=found.published | {Operation.DELETE})
                removed += changes.emptied
        return _Work(found, changes, member.uri, removed, truncated)

    def _items(
        self, number: int, work: _Work, header: XLogDataHeader, xid: int | None
    ) -> Iterator[ChangeItem]:
        changes = work.changes
        removed = tuple(map(scan_file, work.removed))
        added = tuple(map(scan_file, changes.added))
        item = ChangeItem(
            number, work.table, work.uri, removed, added, header, self._options.binary, xid
        )
        if removed:
            yield item
        else:
            yield from (replace(item, added=(file,)) for file in added)


def _truncates(
    relations: Sequence[Relation], header: XLogDataHeader, xid: int | None
) -> Piece | None:
    if not relations:
        return None
    message = Truncate(tuple(relation.oid for relation in relations), xid=xid)
    data = xlog_data(header.lsn, header.send_time, encode(message))
    return Piece(tuple(relations), data, len(relations))


def _translated(error: PenstockError) -> PenstockError:
    return _removed(error) if isinstance(error, VersionGone) else error


def _removed(error: VersionGone) -> RequiredChangesRemoved:
    return RequiredChangesRemoved(
        "can no longer get changes from this replication slot",
        detail=f"{error.message}: log retention or VACUUM has removed it.",
        hint="Drop the slot and the subscription and subscribe anew: the table is copied again. "
        "Keep logs and files longer by delta.logRetentionDuration and "
        "delta.deletedFileRetentionDuration.",
    )
