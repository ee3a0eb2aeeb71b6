"""A subscription's target tables: the Delta table for each published relation (relation.c).

Tables are opened from rows of pg_subscription_rel, each with its own LSN. They get the columns that
the publisher has added. A row is bound to a relation of the publisher and to a Delta table. It is
an error if another relation or Delta table takes its place, or if a table cannot follow a change.
``relation_map`` shares out the changes among the targets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from penstock.catalog import LakeTable
from penstock.catalog.pg_subscription import (
    FOLLOWING,
    STOP,
    DroppedSubscription,
    Subscription,
    is_app_id,
)
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import alter
from penstock.enum_type import EnumType
from penstock.errors import (
    ApplierReplaced,
    CommitConflict,
    PenstockError,
    RelationChanged,
    SchemaChanged,
)
from penstock.lakehouse.conversion import kept_as_text
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.log import common_point, log_folder
from penstock.lakehouse.metadata_columns import add_metadata_columns
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.schema_changes import columns_to_add
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes import find
from penstock.pgtypes.out_of_range import CLAMP
from penstock.pgtypes.text_output import AsText, may_not_fit
from penstock.relation import Relation, ReplicaIdentity, TableName
from penstock.subscription.consistency_rules import (
    PublisherState,
    check_known_start,
    check_timeline,
)
from penstock.subscription.copy_target import new_columns_of
from penstock.subscription.definition_watch import DefinitionWatch, Difference, FillKind, keep_hint
from penstock.subscription.in_doubt_commits import InDoubtCommits
from penstock.subscription.in_place import (
    add_filled,
    can_rename_labels,
    constant_of,
    rename_labels,
)
from penstock.subscription.origin import TableProgress
from penstock.subscription.partitions import Partitions, open_partitions
from penstock.subscription.replica_identity import follow_identity, living
from penstock.subscription.target import Target
from penstock.subscription.target_columns import (
    EarlierRows,
    another_delta_table,
    check_dropped,
    check_gone,
    check_types,
    exchange_error,
    is_alone,
    label_error,
    missing_error,
    order_before,
    unfilled_error,
    widened_notice,
    with_types,
)

log = logging.getLogger(__name__)


class Targets:
    """The open tables of one subscription, by name and by the publisher's OID."""

    def __init__(
        self,
        warehouse: Warehouse,
        subscription: Subscription,
        bindings: Bindings,
        definitions: DefinitionWatch,
        last_cut: Lsn | None = None,
        in_doubt: InDoubtCommits | None = None,
        *,
        predecessors: Predecessors | None = None,
    ) -> None:
        """``definitions``: watches definitions that Relation messages lack. ``last_cut``: kept up
        to date by the applier. ``in_doubt``: None if there is only one session."""
        self.subscription: Final = subscription
        self.in_doubt: Final = in_doubt or InDoubtCommits()
        self.definitions: Final = definitions
        self._new: Final = new_columns_of(subscription)
        self._predecessors = predecessors
        self._warehouse = warehouse
        self._app_id = subscription.app_id
        self.last_cut = last_cut
        self._bindings = bindings
        self._by_name: dict[TableName, Target] = {}
        self._by_relid: dict[int, Target] = {}
        self._ignored: set[int] = set()
        self._looked_at: int | None = None
        self._changed: dict[TableName, Target] = {}

    def __iter__(self) -> Iterator[Target]:
        return iter(self._by_name.values())

    def changed(self, targets: Iterable[Target]) -> None:
        """Note that batches were committed to targets."""
        self._changed.update((target.rel.table_name, target) for target in targets)

    def take_changed(self) -> Collection[Target]:
        """Return the open targets that were opened or changed since the last call."""
        found, self._changed = self._changed, {}
        return [target for name, target in found.items() if self._by_name.get(name) is target]

    def progress(self) -> list[TableProgress]:
        """Return the progress of all targets."""
        return [self.progress_of(target) for target in self]

    def progress_of(self, target: Target) -> TableProgress:
        """Return a target's progress, for ``origin``."""
        return target.progress(self._app_id)

    def in_last_cut(self, target: Target) -> bool:
        """Return whether all changes of a table are in the last cut, so that none may be reverted;
        before the first cut, whether all its partitions have the same batches."""
        if self.last_cut is None:
            return target.half_applied is None
        return self.progress_of(target).within(self.last_cut)

    def open(self, rel: SubscriptionRel) -> Target | None:
        """Open the table of a row in state f, s or r; return None if it was never created.

        Raises SchemaChanged if the row's relation may not be the copied one, or has two targets;
        StateMismatch if the row is bound to another Delta table.
        """
        if rel.conflict is not None:
            raise SchemaChanged(
                f'table "{rel.qualified_name}" must be copied again',
                detail=rel.conflict,
            )
        table = self._open_bound(rel)
        if table is None:
            return None
        # A node that was killed may have written a Delta log entry without syncing its folder. The
        # entry is read here and acknowledged later, so it must be durable (law 1).
        self._warehouse.storage.sync_folder(log_folder(table.uri))
        if self._predecessors is not None:
            self._predecessors.take_over(rel, table)
        return self.add(rel, table)

    def _open_bound(self, rel: SubscriptionRel) -> DeltaTable | None:
        """Open the Delta table to which a row is bound; None if there is none. Raises StateMismatch
        for another one, whatever else is wrong with that."""
        uri = self._warehouse.table_uri(rel.schema, rel.table)
        try:
            table = self._warehouse.open(rel.schema, rel.table)
            there = None if table is None else table.id
        except PenstockError:
            there = None
            with suppress(PenstockError):
                there = newest_table_id(self._warehouse.storage, uri)
            if there is None or rel.table_id in (None, there):
                raise
            table = None
        if rel.table_id not in (None, there):
            raise another_delta_table(rel, uri, there)
        return table

    @property
    def earlier(self) -> frozenset[str]:
        """App ids of dropped subscriptions of the same publisher."""
        return frozenset() if self._predecessors is None else self._predecessors.same_publisher

    def add(self, rel: SubscriptionRel, table: DeltaTable) -> Target:
        """Add an open table, and bind the row to it."""
        if rel.table_id is None:
            self._bindings.bind(rel, None, table.id)
            rel = replace(rel, table_id=table.id)
        marker = table.transaction_version(self._app_id)
        target = Target(
            rel=rel,
            table=table,
            ready=rel.state is SubscriptionRelState.READY,
            marker=None if marker is None else Lsn(marker),
            draw=partial(self._bindings.next_values, rel.table_name),
            restart=partial(self._bindings.restart_sequences, rel.table_name),
            enum_types=self._bindings.enum_types,
        )
        self._open_partitions(target)
        if rel.relid is not None:
            self._bind(target, rel.relid)
        self._by_name[rel.table_name] = target
        self.changed([target])
        return target

    def _bind(self, target: Target, relid: int) -> None:
        """Bind a target. Raises SchemaChanged if the relation already has another target: only
        REFRESH finds which target is correct."""
        other = self._by_relid.setdefault(relid, target)
        if other is not target:
            raise SchemaChanged(
                f'tables "{other.rel.qualified_name}" and "{target.rel.qualified_name}" are copies '
                "of one relation",
                detail=f"Tables were renamed at the publisher (OID {relid}).",
            )

    def of(self, relid: int) -> Target | None:
        """Return the target that is bound to a relation of the publisher."""
        return self._by_relid.get(relid)

    def named(self, name: TableName) -> Target | None:
        """Return the target of that name."""
        return self._by_name.get(name)

    def text_readers(self, relation: Relation) -> Mapping[str, AsText]:
        """Return readers for those columns of a relation that the target has, or would get, as
        text.

        These columns may have values that their types here cannot hold.
        """
        target = self.of(relation.oid) or self.named(relation.table_name)
        if target is None:
            return {}
        have, made = target.table.schema.by_source, self._new.as_text
        return {
            a.name: AsText(find(a.type_oid))
            for a in relation.attributes
            if may_not_fit(a.type_oid, a.typmod)
            and (kept_as_text(have[a.name], a) if a.name in have else made)
        }

    def name_of(self, table: str) -> TableName | None:
        """Return the name of the open Delta table with that qualified name."""
        tables = ((name, each) for target in self for name, each in target.tables.items())
        return next((name for name, each in tables if each.name == table), None)

    def bind(self, target: Target, relid: int) -> None:
        """Bind a target to a relation that an older state store did not record."""
        self._bind(target, relid)
        self._bindings.bind(target.rel, relid, None)
        target.rel = replace(target.rel, relid=relid)

    def record_conflict(self, target: Target, error: PenstockError) -> None:
        """Record an error after which nothing is applied to the table until REFRESH has copied it
        again."""
        self._bindings.record_conflict(target.rel, f"{error.message}. {error.detail}")

    def ignore(self, relation: Relation) -> None:
        """Log once that a relation is not in the subscription and its changes are ignored."""
        if relation.oid not in self._ignored:
            self._ignored.add(relation.oid)
            log.info(
                'changes of relation "%s" are ignored: it is not in subscription "%s" (yet); '
                "%s REFRESH PUBLICATION takes in what is published",
                relation.qualified_name,
                self.subscription.name,
                alter(self.subscription.name),
            )

    def close(self, target: Target) -> None:
        """Remove a table: its changes are ignored from now on, and cuts omit it."""
        del self._by_name[target.rel.table_name]

    def load_again(self, target: Target, end_lsn: Lsn | None = None) -> None:
        """Load a table again after a race was lost. ``end_lsn``: the end of the batch that some of
        its partitions may have.

        Raises the errors of ``DeltaTable.reload``; ApplierReplaced if the race was lost to another
        applier of our own subscription."""
        target.table.reload()
        if target.history is not None:
            target.history.reload()
        marker = target.table.transaction_version(self._app_id)
        if marker is not None and (target.marker is None or marker > target.marker):
            if not self.in_doubt.has(target.table, marker):
                raise self._replaced(target, Lsn(marker))
            target.marker = Lsn(marker)
        self._open_partitions(target)
        if target.half_applied not in (None, end_lsn):
            raise self._replaced(target, target.half_applied)

    def _replaced(self, target: Target, marker: Lsn | None) -> ApplierReplaced:
        return ApplierReplaced(
            f'another applier of subscription "{self.subscription.name}" has committed '
            f'table "{target.table.name}" at {marker}',
            hint="Run each subscription on one node only.",
        )

    def _open_partitions(self, target: Target) -> None:
        """Open a target's present partitions. Raises the errors of ``open_partitions``."""
        tree = self._tree(target)
        target.partitions = None
        if tree:
            common = common_point(target.marker, self.last_cut if target.ready else None)
            target.partitions = self._shut(tree, target.table.schema, common)

    def _shut(self, tree: tuple[LakeTable, ...], root: TableSchema, common: Lsn) -> Partitions:
        """Open partitions so that no commit in doubt can arrive at them any more."""
        while True:
            opened = open_partitions(
                self._warehouse, tree, root, self._app_id, common, self.earlier
            )
            try:
                for leaf in opened.leaves:
                    marker = leaf.newest.transaction_version(self._app_id)
                    self.in_doubt.shut_out(leaf.newest, marker)
            except CommitConflict:
                continue  # a late commit has arrived, or others have committed: open them again
            return opened

    def with_other_partitions(self) -> list[Target]:
        """Return the targets whose partitions have changed since they were opened.

        A target is left out while some of its partitions have a batch that others lack: the batch
        must end with the partitions with which it began.
        """
        now = self._bindings.generation()
        if now == self._looked_at:
            return []
        partitioned = [(t, t.partitions.tree) for t in self if t.partitions is not None]
        found = [t for t, tree in partitioned if t.half_applied is None and self._tree(t) != tree]
        if not found and all(t.half_applied is None for t, _ in partitioned):
            self._looked_at = now
        return found

    def open_partitions_again(self, target: Target) -> None:
        """Route rows by the present partitions. Raises the errors of ``open_partitions`` and
        ``DeltaTable.reload``."""
        log.info('the partitions of table "%s" have changed', target.rel.qualified_name)
        target.table.reload()
        self._open_partitions(target)

    def _tree(self, target: Target) -> tuple[LakeTable, ...]:
        return self._bindings.partition_tree(target.rel.table_name)

    @property
    def half_applied(self) -> Lsn | None:
        """The LSN at which the next batch must end because some partitions have it; or None."""
        return min((t.half_applied for t in self if t.half_applied is not None), default=None)

    def nothing_upto(self, end_lsn: Lsn) -> None:
        """Count a batch as applied although only some partitions have it: the publications have
        changed, and the batch's other changes are no longer sent."""
        for target in self:
            if target.half_applied == end_lsn:
                target.committed(end_lsn)

    def settle(self, target: Target, difference: Difference) -> PenstockError | None:
        """Settle a difference of definitions; return an error if the table cannot go on.

        Renamed labels are renamed in the table's rows if possible. This commits to the table, loads
        it again, and forgets staged changes. Raises CommitConflict, StorageError.
        """
        error, labels = self.definitions.error(target, difference), difference.labels
        in_place = self.subscription.schema_change != STOP and can_rename_labels(target, labels)
        in_place = in_place and self._is_alone(target)
        if error is None and labels and not in_place:
            error = label_error(target.rel, labels).changed(hint=keep_hint(self.subscription.name))
            if self.definitions.keeps_rows:
                log.warning("%s; rows from before stay as they are", error.report())
                error = None
        if error is not None:
            if difference.renamed:
                self.record_conflict(target, error)
            return error
        if labels and in_place:
            target.discard()
            half_applied = target.half_applied
            rename_labels(target, labels)
            self.load_again(target, half_applied)
        self.definitions.accept(target, difference)
        return None

    def follow(self, target: Target, relation: Relation, *, earlier: bool = False) -> None:
        """Make the table fit ``relation``: stage added columns, wider types, another key; refuse
        other changes. ``earlier``: the batch has changes of the table under an earlier definition.

        Raises RelationChanged, which names table, column and both types; EarlierRows; and
        CommitConflict if the table does not fit and a newer version exists, which is loaded then.
        """
        self._check_order(target, relation)
        wanted = TableSchema.of_relation(relation)
        schema = self._with_types(target, wanted)
        try:
            check_dropped(target.table, relation)
            added = columns_to_add(
                schema,
                wanted,
                table=target.table.name,
                whole_rows=relation.replica_identity is ReplicaIdentity.FULL,
                new=self._new,
            )
            check_gone(target.table, relation, added, self._app_id)
            if added and self.subscription.schema_change == STOP:
                raise missing_error(relation, [column.source for column in added])
            if self.subscription.schema_change in FOLLOWING:
                check_types(schema, wanted, relation)
        except RelationChanged:
            self.check_newest(target)
            raise
        if schema != target.table.schema:
            self.check_newest(target)
            self._tell_of_wider(target, schema)
            target.table.mark(schema)
        if added:
            self.check_newest(target)
            names = [column.name for column in added]
            log.info('added columns to table "%s": %s', target.table.name, ", ".join(names))
            unfilled = self._fill(target, relation, added, earlier=earlier)
            target.table.add_columns(added, unfilled)
            for leaf in () if target.leaves is None else target.leaves.tables:
                leaf.add_columns(leaf.schema.lacking(added))
        follow_identity(
            target,
            relation,
            self._app_id,
            self.subscription.out_of_range,
            self._bindings.subscription_name,
            self.check_newest,
        )
        self.add_metadata_columns(target)
        target.table.mark(target.table.schema.with_published(wanted.by_source))
        target.followed = relation

    def add_metadata_columns(self, target: Target) -> None:
        """Stage the metadata columns that the subscription wants. Raises FeatureNotSupported."""
        add_metadata_columns(
            target.table,
            () if target.leaves is None else target.leaves.tables,
            metadata_columns=self.subscription.metadata_columns,
            soft_delete=self.subscription.soft_delete,
        )

    def _with_types(self, target: Target, wanted: TableSchema) -> TableSchema:
        # The Delta log has the values of partition columns as text of the old type.
        laid_out = bool(target.table.layout.partition_by)
        lone = target.partitions is None and target.history is None and not laid_out
        return with_types(
            target.table,
            wanted,
            self.subscription.schema_change,
            widen=lone and self._is_alone(target),
            clamped=self.subscription.out_of_range == CLAMP,
        )

    def _fills_alone(self, target: Target) -> bool:
        return not living(target.table, self._app_id, self._bindings.subscription_name)

    def _is_alone(self, target: Target) -> bool:
        """Return whether this publisher's definitions hold for all rows, and no generated column
        here is computed from them."""
        return is_alone(target.table, self._app_id, self._bindings.subscription_name)

    def _tell_of_wider(self, target: Target, schema: TableSchema) -> None:
        pairs = zip(target.table.schema.columns, schema.columns, strict=True)
        names = [column.name for before, column in pairs if before.type != column.type]
        if names and target.rows:
            log.info("%s", widened_notice(self.subscription.name, target.rel, names))

    def check_newest(self, target: Target) -> None:
        """Load a newer version of the table if there is one, and raise CommitConflict: ALTER TABLE
        on the node may have made the table fit."""
        if target.table.is_behind():
            self.load_again(target)
            raise CommitConflict(f'table "{target.table.name}" has another version by now')

    def _fill(
        self, target: Target, relation: Relation, added: Sequence[Column], *, earlier: bool
    ) -> list[str]:
        """Fill added columns of older rows with their values at the publisher. Return the names of
        the columns that stay unfilled.

        Raises SchemaChanged if the values are not known (a volatile default, an identity, a column
        that is published only now, a rewrite). Raises CommitConflict after the columns were added
        with a constant, which is a commit of its own.
        """
        if not target.rows and not earlier:
            return []
        fills = {c.name: self.definitions.fill(target, c.source) for c in added}
        values = {
            c.name: constant_of(c, fill.value or "")
            for c in added
            if (fill := fills[c.name]).kind is FillKind.CONSTANT
        }
        made = {name: value for name, value in values.items() if value is not None}
        unknown = [
            c
            for c in added
            if fills[c.name].kind is FillKind.UNKNOWN or (c.name in values and c.name not in made)
        ]
        if made and not self._fills_alone(target):
            unknown += [c for c in added if c.name in made]
            made = {}
        if unknown and not self.definitions.keeps_rows:
            error = unfilled_error(relation, [column.source for column in unknown])
            raise error.changed(hint=keep_hint(self.subscription.name))
        if made and earlier:
            raise EarlierRows(relation, list(made))
        unfilled = [column.name for column in unknown]
        if made:
            target.discard()
            half_applied = target.half_applied
            add_filled(target, added, made, unfilled)
            self.load_again(target, half_applied)
            raise CommitConflict(f'table "{target.table.name}" has another version by now')
        return unfilled

    def _check_order(self, target: Target, relation: Relation) -> None:
        if relation == target.followed:
            return
        old = order_before(target.followed, target.table.schema, self.subscription.schema_change)
        if error := exchange_error(target.rel, old, relation):
            self.record_conflict(target, error)
            raise error


# The part of the catalog that targets read and write. ``worker.CatalogAccess`` implements this
# protocol.


class Bindings(Protocol):
    """The part of the catalog that targets read and write."""

    @property
    def partition_tree(self) -> Callable[[TableName], tuple[LakeTable, ...]]:
        """Return a partitioned table of the node with all its partitions, root first; () if it has
        none."""

    @property
    def enum_types(self) -> Callable[[], tuple[EnumType, ...]]:
        """Return the enum types made on the node."""

    @property
    def next_values(self) -> Callable[[TableName, str, int], Sequence[int]]:
        """Draw the given number of values from the sequence of a table's column."""

    @property
    def restart_sequences(self) -> Callable[[TableName], object]:
        """Restart the sequences of a table's columns."""

    @property
    def generation(self) -> Callable[[], int]:
        """Return a number that grows with every change of the catalog. Cheap."""

    @property
    def subscription_name(self) -> Callable[[str], str | None]:
        """Return the name of the node's subscription with the given app id."""

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> object:
        """Record the relation and the Delta table that a row stands for; None changes nothing."""

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> object:
        """Record that the relation may not be the copied one."""


# Take-over: a subscription goes on with tables that a dropped subscription has left.
#
# The subscription sets its own marker in the table's Delta log, at the LSN up to which the dropped
# subscription had filled the table, so that nothing is applied twice. An LSN that means nothing at
# this publisher is an error. ``consistency_rules`` finds a slot that is beyond the LSN.
#
# The commit of the marker also ends the dropped subscription's writes to this table. If its worker
# still runs, it loses the race for the next version, finds that its subscription is gone, and
# commits no more.

_OPERATION: Final = "TAKE OVER"


@dataclass(frozen=True, slots=True)
class Predecessors:
    """The dropped subscriptions that a session knows.

    ``dropped``: all dropped subscriptions of the node. ``name_of``: returns the name of an existing
    subscription by its app id. ``last_cut`` and ``origin_lsn``: the last cut of this subscription,
    and the LSN to which its replication origin was advanced.
    """

    subscription: str
    app_id: str
    dropped: Collection[DroppedSubscription]
    name_of: Callable[[str], str | None]
    server: PublisherState
    last_cut: Lsn | None
    origin_lsn: Lsn

    @property
    def same_publisher(self) -> frozenset[str]:
        """App ids of the dropped subscriptions whose LSNs are this publisher's."""
        return frozenset(one.app_id for one in of_publisher(self.dropped, self.server))

    def take_over(self, rel: SubscriptionRel, table: DeltaTable) -> None:
        """For a table that was not copied, set the marker to the LSN up to which it is filled.

        Call it before the table is followed. Raises StateMismatch if the publisher lacks changes
        that the table has, or if the node no longer knows who has filled the table.
        """
        joins = rel.state is SubscriptionRelState.READY and rel.lsn is None
        while joins and table.transaction_version(self.app_id) is None:
            position = self._position(table)
            if position is None or position <= (self.last_cut or INVALID):
                return
            try:
                table.commit(app_id=self.app_id, version_marker=position, operation=_OPERATION)
            except CommitConflict:
                table.reload()
            else:
                told = (self.subscription, table.name, position)
                log.info('subscription "%s" goes on with table "%s" at %s', *told)

    def _position(self, table: DeltaTable) -> Lsn | None:
        found: Lsn | None = None
        for one in of_publisher(self.dropped, self.server):
            position = one.position(table.id, table.transaction_version(one.app_id))
            if position is None:
                continue
            owner = f'table "{table.name}"'
            check_timeline(self.subscription, one.publisher, self.server, position, owner)
            found = max(found or INVALID, position)
        if self.last_cut is None and self.origin_lsn == INVALID:
            known = {one.app_id for one in self.dropped}
            markers = (
                table.transaction_version(other) or 0
                for other in table.app_ids - known
                if is_app_id(other) and self.name_of(other) is None
            )
            marker = Lsn(max(markers, default=INVALID))
            if marker > (found or INVALID):
                check_known_start(self.subscription, table.name, marker, self.server)
        return found


def of_publisher(
    dropped: Iterable[DroppedSubscription], server: PublisherState
) -> list[DroppedSubscription]:
    """Return the dropped subscriptions that followed this cluster and database."""
    return [
        one
        for one in dropped
        if one.publisher is not None
        and one.publisher.system_id == server.identity.system_id
        and one.publisher.database_oid == server.identity.database_oid
    ]
