"""The tables and rows of a transaction that one stream gets (get_rel_sync_entry of pgoutput.c).

``Decoding`` turns transactions of the log into ``feed.Portion`` values, in order, for the published
tables and in the form that the stream wants. Executors make the portions' messages
(``pipeline.publish_changes``), and ``decoding.plugins.pgoutput`` puts Begin, Relation and Commit
around them. Publications and tables are those at the transaction's position in the log.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    HistoricPublications,
    LakeTable,
    LakeTransaction,
    Member,
    Publication,
    PublicationHistory,
    TwoPhaseKind,
)
from penstock.decoding import MessageChange, RelationData
from penstock.errors import (
    FeatureNotSupported,
    NotInPrerequisiteState,
    PenstockError,
    RequiredChangesRemoved,
    StorageError,
    UndefinedObject,
    VersionGone,
)
from penstock.lakehouse.change import StagedChange, changes_in
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.identity import EntryMark, entry_mark
from penstock.lakehouse.state import TableState
from penstock.lakehouse.table_changes import (
    FilePart,
    TableChanges,
    staged_changes,
    table_changes,
)
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.change_item import ChangeItem, PublishedTable
from penstock.pipeline.publish_changes import EncodedChanges, publish_changes
from penstock.pipeline.scan import ScanFile
from penstock.pipeline.tasks import Failed
from penstock.protocol.answers import Notice
from penstock.protocol.copy_both import xlog_data_head
from penstock.publication.members import Members, Operation
from penstock.publication.relation_sync import relation_sync_entry
from penstock.relation import Relation
from penstock.walsender.decoding_options import Context, DecodingOptions, Published, PublishedAt
from penstock.walsender.every_table import relation_data
from penstock.walsender.feed import Changes, Portion, TransactionBegin, TransactionEnd
from penstock.walsender.lake_columns import (
    LakeColumn,
    as_then,
    columns_at,
    published_table,
    table_column,
)
from penstock.walsender.lost_changes import lost, removed

_PAIRED: Final = 4
"""Arrow data of old and new rows that a task keeps in DuckDB, in multiples of decoding's memory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Known:
    """A table at a version, and the mark of that version's entry in its Delta log."""

    state: TableState
    mark: EntryMark | None


@dataclass(frozen=True)
class _Work:
    """A published table of a transaction; ``seen`` and ``columns`` are as they were then."""

    seen: LakeTable
    columns: tuple[LakeColumn, ...]
    table: PublishedTable
    changes: TableChanges
    uri: str
    removed: tuple[FilePart, ...]
    truncated: bool


@dataclass(frozen=True)
class _Plan:
    """The plan to send one transaction. ``relations`` and ``leaves`` have an item for each work;
    ``leaves`` are oids of the tables that have the rows. ``messages`` tells whether messages of
    sessions are sent. ``described`` is by oid, for output plugins. ``streams`` tells whether it is
    sent in blocks if it is large. ``warnings`` are those of publications."""

    transaction: LakeTransaction
    streams: bool
    warnings: tuple[Notice, ...]
    emptied: Portion | None
    relations: Mapping[int, Relation]
    leaves: Mapping[int, int]
    items: Sequence[ChangeItem]
    messages: bool
    described: Mapping[int, RelationData]


class _Encoded:
    """The encoded changes of several transactions. ``first``: those that are next, None at the
    end."""

    def __init__(self, changes: Iterator[EncodedChanges | Failed]) -> None:
        self._rest = changes
        self.next()

    def next(self) -> None:
        """Go on to the next changes."""
        self.first = next(self._rest, None)


class Decoding:
    """``feed.ChangeSource`` for one stream."""

    def __init__(
        self,
        spark: Spark,
        warehouse: Warehouse,
        catalog: Catalog,
        published: PublishedAt,
        options: DecodingOptions,
        work_mem: Callable[[], int],
        context: Context = lambda callback, lsn: "",
    ) -> None:
        """Take the node's parts and the stream's options. ``work_mem`` returns the bytes of decoded
        changes above which a transaction is streamed, if the stream allows it; it also bounds the
        memory of tasks. ``context`` returns the CONTEXT of pgoutput's errors and warnings: as on a
        server, they come from its change callback."""
        self._work_mem = work_mem
        self._spark = spark
        self._warehouse = warehouse
        self._catalog = catalog
        self._options = options
        self._states: dict[int, _Known] = {}  # by relation, as the last transaction left them
        self._left_out: set[int] = set()
        self._published = published
        self._context = context

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        """Yield the changes of transactions, as ``feed.ChangeSource`` does. Raises PenstockError if
        a publication is missing, a table has no identity, or a version is gone."""
        plans, error = self._plans(transactions)
        items = [item for plan in plans for item in plan.items]
        portions = publish_changes(
            self._spark,
            self._warehouse.storage,
            items,
            staging=self._warehouse.staging,
            share_bytes=_PAIRED * self._work_mem(),
        )
        encoded = _Encoded(portions)
        try:
            for plan in plans:
                changes = self._portions(plan, encoded)
                held, streamed = self._hold(changes) if plan.streams else ([], False)
                yield TransactionBegin(plan.transaction, streamed, plan.warnings)
                yield from held
                yield from changes
                yield TransactionEnd(plan.transaction)
            if encoded.first is not None:
                raise PenstockError(
                    f"changes of table {encoded.first.work} belong to no transaction"
                )
        finally:
            portions.close()
        if error is not None:
            raise error

    def _hold(self, changes: Iterator[Portion]) -> tuple[list[Portion], bool]:
        """Return the first changes of a transaction, and whether they are too large to wait for
        the others: it is sent in blocks (ReorderBufferCheckMemoryLimit)."""
        held, size, most = [], 0, self._work_mem()
        for portion in changes:
            held.append(portion)
            size += portion.memory
            if size > most:
                return held, True
        return held, False

    def _portions(self, plan: _Plan, encoded: _Encoded) -> Iterator[Portion]:
        """Yield a transaction's changes in the order of sending."""
        if plan.emptied is not None:
            yield plan.emptied
        messages = self._messages(plan)
        while (found := encoded.first) is not None and found.work in plan.relations:
            if isinstance(found, Failed):
                raise self._of_change(self._translated(found.error), plan.transaction)
            while messages and messages[0][0] < plan.leaves[found.work]:
                yield messages.popleft()[1]
            yield Portion(
                (plan.relations[found.work],),
                found.data,
                found.changes,
                found.operation,
                as_rows=self._options.as_rows,
                described=plan.described,
            )
            encoded.next()
        for _, message in messages:
            yield message

    def _plans(
        self, transactions: Sequence[LakeTransaction]
    ) -> tuple[list[_Plan], PenstockError | None]:
        """Return a plan for each transaction up to the first that cannot be sent, and its error."""
        plans: list[_Plan] = []
        numbers = itertools.count()
        for transaction in transactions:
            try:
                plans.append(self._plan(transaction, numbers))
            except PenstockError as error:
                told = self._of_change(error, transaction)
                if not plans:
                    raise told from None
                return plans, told
        return plans, None

    def _of_change(self, error: PenstockError, transaction: LakeTransaction) -> PenstockError:
        """Return an error with the context of pgoutput's callback, unless the lake is at fault."""
        if self._options.as_rows or isinstance(error, StorageError | RequiredChangesRemoved):
            return error
        return error.changed(context=self._context("change", transaction.begin))

    def _plan(self, transaction: LakeTransaction, numbers: Iterator[int]) -> _Plan:
        works = []
        local = not self._options.filters_origin(transaction.origin)
        sent = self._options.sends_changes(transaction)
        if local and sent:
            staged = self._staged(transaction)
            members = sorted(transaction.members, key=lambda m: m.relation)
            published = self._published.at(transaction.place)
            found = (self._work(m, staged.get(m.relation), published) for m in members)
            works = self._by_rows([work for work in found if work is not None], published)
        told = transaction.message is not None or (sent and bool(transaction.messages))
        messages = local and told and self._options.messages
        header = xlog_data_head(transaction.begin, time.time_ns() // 1000)
        numbered = {next(numbers): work for work in works}
        described = self._described(works)
        emptied = [work.table.relation for work in works if work.truncated]
        return _Plan(
            transaction,
            self._streams(transaction),
            self._warnings(transaction),
            _truncate(emptied, described),
            {number: work.table.relation for number, work in numbered.items()},
            {number: work.seen.oid for number, work in numbered.items()},
            [
                item
                for number, work in numbered.items()
                for item in self._items(number, work, header)
            ],
            messages,
            described,
        )

    def _staged(self, transaction: LakeTransaction) -> Mapping[int, StagedChange]:
        """Return the changes of a PREPARE by relation; no version of a table has them yet."""
        record = transaction.two_phase
        if record is None or record.kind is not TwoPhaseKind.PREPARE:
            return {}
        with self._catalog.read() as t:
            content = t.transactions.content(transaction)
        return {change.relation: change for change in changes_in(content)}

    def _described(self, works: Sequence[_Work]) -> Mapping[int, RelationData]:
        if not works or not self._options.as_rows:
            return {}
        with self._catalog.read() as t:
            types = {type_.oid: (type_.schema, type_.name) for type_ in t.types.all()}
        return {
            work.table.relation.oid: relation_data(
                work.table.relation, work.seen, work.columns, types
            )
            for work in works
        }

    def _messages(self, plan: _Plan) -> deque[tuple[int, Portion]]:
        if not plan.messages:
            return deque()
        found = session_messages(self._catalog, plan.transaction)
        return deque((after, Portion((), b"", 1, message=message)) for after, message in found)

    def _warnings(self, transaction: LakeTransaction) -> tuple[Notice, ...]:
        context = self._context("change", transaction.begin)
        found = tuple(replace(w, context=context) for w in self._published.warnings())
        for warning in found:
            log.warning("%s", warning.report())
        return found

    def _streams(self, transaction: LakeTransaction) -> bool:
        """Tell whether a transaction is sent in blocks if it is large: the stream allows it."""
        # A prepared transaction is always sent whole, so only one place sends its messages.
        told = self._options.two_phase_at is not None and transaction.two_phase is not None
        return self._options.streaming and not told and transaction.is_transaction

    def _work(
        self, member: Member, staged: StagedChange | None, published: Published
    ) -> _Work | None:
        with self._catalog.read() as t:
            found = t.tables.find_oid(member.relation)
        table = None if found is None else found.at(member.to_version)
        wanted = table is not None and published.publishes(table)
        if member.lost_to is not None and (wanted or published.has(member.lost_to)):
            raise lost(member, plugin=self._options.as_rows)
        if found is None or not wanted or member.lost_to is not None:
            return None  # a table that is not published may be of any kind, or gone
        changes = self._changes(member, staged)
        table = as_then(found, member.to_version, changes.after)
        moved = bool(changes.removed or changes.added or changes.truncated)
        columns = self._columns(table, changes, moved, published)
        if columns is None or not moved:
            return None
        goes = published.of(table, columns, rewrites=bool(changes.removed))
        if goes is None:
            return None
        if changes.updates_only and Operation.UPDATE not in goes.published:
            return None  # without a key, its updates would look like deletes and inserts
        # A partition may be published under an ancestor's name, under which other partitions keep
        # their rows. So its TRUNCATE is sent only if the ancestor was emptied with it.
        emptied = {table.oid, *changes.emptied_with}
        truncated = (
            changes.truncated
            and Operation.TRUNCATE in goes.published
            and goes.relation.oid in emptied
        )
        return _Work(table, columns, goes, changes, member.uri, changes.removed, truncated)

    def _by_rows(self, works: Sequence[_Work], published: Published) -> list[_Work]:
        """Return the works, with deletes in place of a TRUNCATE that is published under an
        ancestor's name and has not emptied every partition in this transaction: it has stopped
        between two of them, or commits of others came between."""
        emptied: dict[int, list[_Work]] = defaultdict(list)
        for work in works:
            if work.truncated and work.table.relation.oid != work.seen.oid:
                emptied[work.table.relation.oid].append(work)
        if not emptied:
            return list(works)
        partial: set[int] = set()
        with self._catalog.read() as t:
            for ancestor, mine in emptied.items():
                others = frozenset[int]().union(*(work.changes.emptied_with for work in mine))
                for oid in others - {work.seen.oid for work in mine}:
                    leaf = t.tables.find_oid(oid)
                    if leaf is not None and leaf.uri is not None:
                        above = {table.oid for table in _with_ancestors(t, leaf)}
                        partial |= {ancestor} & above
        found: list[_Work | None] = [
            self._with_deletes(work, published) if work.table.relation.oid in partial else work
            for work in works
        ]
        return [work for work in found if work is not None]

    def _with_deletes(self, work: _Work, published: Published) -> _Work | None:
        """Return a work that deletes the rows which TRUNCATE has removed, None if there is nothing
        to send."""
        if not work.truncated:
            return work
        before, after = work.changes.before, work.changes.after
        storage = self._warehouse.storage
        try:
            changes = table_changes(
                storage, work.uri, before.version, after.version, before, by_rows=True
            )
        except VersionGone as error:
            raise self._translated(error) from error
        goes = published.of(work.seen, work.columns, rewrites=bool(changes.removed))
        if goes is None:
            return None
        return replace(work, table=goes, changes=changes, removed=changes.removed, truncated=False)

    def _changes(self, member: Member, staged: StagedChange | None) -> TableChanges:
        """Return a table's changes. Raises RequiredChangesRemoved, StorageError."""
        known = self._states.get(member.relation)
        mark = entry_mark(member.uri, member.to_version)
        try:
            if staged is not None:
                storage = self._warehouse.storage
                return self._of_the_table(
                    member, staged_changes(storage, staged, member.to_version)
                )
            changes = self._changes_from(member, None if known is None else known.state)
            if known is not None and known.mark != entry_mark(member.uri, known.state.version):
                # Another table may have replaced this one; then the known state does not count.
                changes = self._changes_from(member, None)
        except VersionGone as error:
            raise self._translated(error) from error
        self._of_the_table(member, changes)
        self._states[member.relation] = _Known(changes.after, mark)
        return changes

    def _of_the_table(self, member: Member, changes: TableChanges) -> TableChanges:
        """Return ``changes``. Raises RequiredChangesRemoved if another table is in its place."""
        if member.table_id not in (None, changes.after.metadata.get("id")):
            raise lost(member, plugin=self._options.as_rows)
        return changes

    def _translated(self, error: PenstockError) -> PenstockError:
        if isinstance(error, VersionGone):
            return removed(error, plugin=self._options.as_rows)
        return error

    def _changes_from(self, member: Member, known: TableState | None) -> TableChanges:
        return table_changes(
            self._warehouse.storage, member.uri, member.from_version, member.to_version, known
        )

    def _columns(
        self, table: LakeTable, changes: TableChanges, moved: bool, published: Published
    ) -> tuple[LakeColumn, ...] | None:
        """Return a table's columns, None if the table is left out. A table that cannot be published
        is left out if no publication names it and it could not be published before either. A table
        that can no longer be published stops the stream, even if no row has changed (``moved``),
        since its later changes would be left out. A named table stops the stream once rows
        change."""
        try:
            return columns_at(table, changes.after)
        except NotInPrerequisiteState:
            if moved:
                raise
            return None
        except FeatureNotSupported as error:
            named = published.names(table)
            if named and not moved:
                return None
            if named or _publishable(table, changes.before):
                raise
            if table.oid not in self._left_out:
                self._left_out.add(table.oid)
                log.warning("%s: %s It is left out.", error.message, error.detail)
            return None

    def _items(self, number: int, work: _Work, header: bytes) -> Iterator[ChangeItem]:
        changes = work.changes
        removed = tuple(map(ScanFile.of_part, work.removed))
        added = tuple(map(ScanFile.of_part, changes.added))
        item = ChangeItem(
            number,
            work.table,
            work.uri,
            removed,
            added,
            header,
            self._options.binary,
            as_rows=self._options.as_rows,
        )
        if removed and added:
            item = replace(item, pairs=changes.pairs)
        if removed:
            yield item
        else:
            yield from (replace(item, added=(file,)) for file in added)


def _truncate(
    relations: Sequence[Relation], described: Mapping[int, RelationData]
) -> Portion | None:
    if not relations:
        return None
    by_oid = {relation.oid: relation for relation in relations}  # several leaves have one root
    return Portion(
        tuple(by_oid.values()), b"", len(by_oid), Operation.TRUNCATE, described=described
    )


def _publishable(table: LakeTable, state: TableState) -> bool:
    """Tell whether a version of a table exists and can be published."""
    if not state.metadata:
        return False
    try:
        columns_at(table, state)
    except FeatureNotSupported:
        return False
    except NotInPrerequisiteState:
        return True
    return True


# The messages of sessions in a stream (pgoutput.c, pgoutput_message).
#
# Each message of a log entry comes with the oid of the table whose rows it follows. Messages are in
# the order of these oids.


def session_messages(
    catalog: Catalog, transaction: LakeTransaction
) -> list[tuple[int, MessageChange]]:
    """Return a log entry's messages, independent of publications. Each has the LSN at the end of
    its own record."""
    one, xid = transaction.message, transaction.xid
    with catalog.read() as t:
        if one is not None:
            content, at = t.transactions.content(transaction), transaction.message_end
            told = xid if one.transactional else None
            return [(0, MessageChange(one.transactional, one.prefix, content, at, told))]
        contents = t.transactions.contents(transaction)
    parts = zip(transaction.messages, transaction.message_ends, contents, strict=True)
    return [
        (head.after, MessageChange(True, head.prefix, content, at, xid))
        for head, at, content in parts
    ]


# The publications of one stream (pgoutput.c, RelationSyncCache).
#
# ``RelationSyncCache`` returns how a table is published at a position of the log, by the rule of
# ``publication``, for the publications that the subscriber named. The results are frozen values
# that are sent to executors. They are kept for each span of the log in which no publication has
# changed, and looked up again when the catalogs have changed. ``Decoding`` finds the changes.

_WARNS_SINCE: Final = 18


class RelationSyncCache:
    """The publications of one stream; ``version`` is the major version that the node reports."""

    def __init__(self, catalog: Catalog, names: Sequence[str], version: int) -> None:
        self._warned: dict[tuple[int, str], Notice] = {}
        self._told = 0
        self._catalog = catalog
        self._names = names
        self._version = version
        self._generation = -1
        self._history = PublicationHistory(())
        self._epochs: dict[int, _Epoch] = {}

    def at(self, place: Lsn) -> Published:
        """Return what the publications publish at a ``LakeTransaction.place``."""
        generation = self._catalog.generation()
        if generation != self._generation:
            with self._catalog.read() as t:
                self._generation, self._history = t.generation(), t.publications.history()
            self._epochs.clear()
        epoch = self._history.epoch(place)
        if epoch not in self._epochs:
            then = self._history.at(place)
            newest = self._history.newest
            now = None
            if then != newest:
                now = _Epoch(self._catalog, newest, self._names, lambda name: None)
            self._epochs[epoch] = _Epoch(
                self._catalog, then, self._names, lambda name: self._missing(epoch, name), now
            )
        return self._epochs[epoch]

    def warnings(self) -> Sequence[Notice]:
        """Return warnings of missing publications, each once while publications stay as they
        are."""
        found = [*self._warned.values()][self._told :]
        self._told += len(found)
        return found

    def _missing(self, epoch: int, name: str) -> None:
        """Note a missing publication (LoadPublications). Raises UndefinedObject up to version
        17."""
        if self._version < _WARNS_SINCE:
            raise UndefinedObject(f'publication "{name}" does not exist')
        self._warned[epoch, name] = Notice(
            "WARNING",
            f'skipped loading publication "{name}"',
            "The publication does not exist at this point in the WAL.",
            "Create the publication if it does not exist.",
            NotInPrerequisiteState.default_sqlstate,
        )


class _Epoch:
    """``Published`` for a span of the log in which no publication changes. ``missing`` is called
    for publications that do not exist. ``now`` has the present publications, if they differ."""

    def __init__(
        self,
        catalog: Catalog,
        then: HistoricPublications,
        names: Sequence[str],
        missing: Callable[[str], None],
        now: _Epoch | None = None,
    ) -> None:
        self._catalog = catalog
        self._then = then
        self._names = names
        self._missing = missing
        self._now = now
        self._found: list[Publication] | None = None
        self._held: dict[LakeTable, bool] = {}
        self._known: dict[tuple[LakeTable, tuple[LakeColumn, ...]], PublishedTable | None] = {}

    def publishes(self, table: LakeTable) -> bool:
        """Tell whether a publication has the table; cheap, since the table is not read.

        Raises UndefinedObject as ``of`` does.
        """
        if table not in self._held:
            members = self._members(table)
            self._held[table] = any(members.contains(p, table) for p in members.publications)
        return self._held[table]

    def names(self, table: LakeTable) -> bool:
        """Tell whether a publication names the table or an ancestor of it. A publication of all
        tables or of a schema does not name its tables."""
        members = self._members(table)
        return any(members.by_name(p, table) for p in members.publications)

    def has(self, publications: Sequence[int]) -> bool:
        """Tell whether one of these oids is among the stream's publications."""
        return any(publication.oid in publications for publication in self._publications())

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool
    ) -> PublishedTable | None:
        """Return how a table is published, None if it is not. ``columns`` are all of the table.

        A commit by a writer other than a session may rewrite rows although the publications of its
        place do not allow updates or deletes. Then the present publications are used, if they allow
        both: the error asked users to change a filter or column list. Raises UndefinedObject if a
        publication is missing (up to version 17), FeatureNotSupported if publications contradict
        one another.
        """
        key = table, columns
        if key not in self._known:
            self._known[key] = self._look_up(table, columns)
        found = self._known[key]
        if rewrites and found is not None and found.refused and self._now is not None:
            now = self._now.of(table, columns, rewrites=False)
            if now is not None and not now.refused:
                return now
        return found

    def _look_up(self, table: LakeTable, columns: tuple[LakeColumn, ...]) -> PublishedTable | None:
        entry = relation_sync_entry(self._members(table), table, tuple(map(table_column, columns)))
        return None if entry is None else published_table(table, columns, entry)

    def _members(self, table: LakeTable) -> Members:
        publications = self._publications()
        with self._catalog.read() as t:
            tables = _with_ancestors(t, table)
        return Members(publications, self._then.relations, self._then.namespaces, tables)

    def _publications(self) -> list[Publication]:
        if self._found is not None:
            return self._found
        by_name = {publication.name: publication for publication in self._then.publications}
        for name in self._names:
            if name not in by_name:
                self._missing(name)
        self._found = [by_name[name] for name in self._names if name in by_name]
        return self._found


def _with_ancestors(t: CatalogTransaction, table: LakeTable) -> list[LakeTable]:
    """Return the table and its ancestors, up to the root."""
    found = [table]
    while found[-1].parent is not None:
        parent = t.tables.find_oid(found[-1].parent)
        if parent is None:
            break
        found.append(parent)
    return found
