"""Initial table synchronization: all tables of a round at one consistent point (tablesync.c).

In: rows of pg_subscription_rel in state i or d. Out: copied tables in state f, each with the
consistent point as its own LSN; the apply worker brings them to r. A temporary replication slot
gives the point and an exported snapshot; its session stays idle and holds the snapshot while Spark
copies, and another one holds locks on the tables (``walreceiver.table_locks``). A table that cannot
be copied is told of and left to the next round; when that comes is decided in ``copies``.

States: i -> d before the copy of a table, d -> f in the catalog with its one Delta commit, while
nobody can end the table's membership. A crash leaves i, or d. A table in d whose Delta log holds
this round's own marker was committed and becomes f; any other is copied again, alone, since nothing
of a copy is visible before its commit. Tables that are in f already keep their older point; the
stream starts at the oldest (``origin.start_lsn``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from penstock.catalog import LakeTable
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.errors import (
    ConnectionFailure,
    NotInPrerequisiteState,
    PenstockError,
)
from penstock.failpoint import AFTER_COPY_COMMIT, BETWEEN_COMMITS, failpoint
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.foreign import COPY
from penstock.lakehouse.metadata_columns import add_metadata_columns
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.snapshot import CopyOptions, CopyProgress, CopySource, run_copy
from penstock.relation import TableName
from penstock.subscription.copy_target import (
    copy_leaves,
    copy_marker,
    copy_target,
    layouts_of,
    new_columns_of,
)
from penstock.subscription.definitions import (
    HeldColumns,
    Known,
    compare,
    first_known,
    questions,
)
from penstock.subscription.held_snapshot import Held, HeldSnapshot
from penstock.subscription.parking import is_own
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import sync_slot_prefix
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.table_definition import Definitions, read_definitions
from penstock.walreceiver.table_info import RemoteTable
from penstock.walreceiver.table_locks import TableLocks

log = logging.getLogger(__name__)

_LOCK_PATIENCE: Final = "1s"
"""How long questions about a table wait for a lock; the other tables of the round wait too."""

_LOCK_NOT_AVAILABLE: Final = "55P03"


class RelStates(Protocol):
    """The part of the catalog that a copy reads and writes."""

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> object:
        """Record a transition."""

    @property
    def rels(self) -> Callable[[], Sequence[SubscriptionRel]]:
        """The subscription's tables now; none when it is gone."""

    def member(
        self, rel: SubscriptionRel, subscription: Subscription
    ) -> AbstractContextManager[Callable[[SubscriptionRelState, Lsn | None], object]]:
        """Keep a table in the subscription until the block is left; yields ``set_state``.
        Raises UndefinedObject when it is gone, or the subscription is being dropped, or is
        another one than the given one by now."""

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> object:
        """Record the publisher's relation and the Delta table that a row stands for."""

    def record_definition(self, rel: SubscriptionRel, definition: str) -> object:
        """Record what a table's rows depend on at the publisher."""

    def copy_again(self, rel: SubscriptionRel, relid: int | None) -> object:
        """A new membership, which begins with a copy."""

    @property
    def partition_tree(self) -> Callable[[TableName], tuple[LakeTable, ...]]:
        """A partitioned table of the node with all its partitions, root first; () for others."""

    @property
    def next_values(self) -> Callable[[TableName, str, int], Sequence[int]]:
        """So many next values of the sequence of a table's column."""

    @property
    def subscription_name(self) -> Callable[[str], str | None]:
        """The name of the node's subscription that has an app id."""


@dataclass(frozen=True, slots=True)
class CopyRound:
    """Everything one round of copies needs."""

    spark: Spark
    warehouse: Warehouse
    states: RelStates
    subscription: Subscription
    options: CopyOptions
    progress: Callable[[CopyProgress], None]
    held: Callable[[Held | None], None]
    """Told what the round's snapshot holds back at the publisher; None: nothing any more."""
    snapshot_timeout: Callable[[], float]
    """Seconds now, 0 for none (``held_snapshot``)."""
    cancelled: Callable[[], bool]
    """True when the worker stops: the copy is given up, and made again at the next start."""
    check_connection: Callable[[Connection], None]
    """Raises StateMismatch where a connection has led to another server than is followed."""
    failed: Callable[[SubscriptionRel, PenstockError], None]
    """A table is not copied in this round, and why; the others go on."""

    def check(self) -> None:
        """Raises when the worker stops."""
        if self.cancelled():
            raise CopyCancelled("canceling the copy because the worker stops")


class CopyCancelled(Exception):
    """The worker stops. Nothing is wrong, so no table gets it as its error."""


def finished_point(table: DeltaTable | None, rel: SubscriptionRel, app_id: str) -> Lsn | None:
    """The consistent point of a copy that was committed before its state was recorded."""
    if table is None:
        return None
    point = table.transaction_version(copy_marker(rel, app_id))
    return None if point is None else Lsn(point)


def run_round(work: CopyRound, rels: Sequence[SubscriptionRel]) -> None:
    """Copy tables side by side. Raises what ends the round for all of its tables."""
    subscription = work.subscription
    conninfo = ConnInfo.parse(subscription.conninfo)
    slot = f"{sync_slot_prefix(subscription.app_id)}{uuid.uuid4().hex[:12]}"
    with (
        Publisher.connect(conninfo, slot, lock_timeout=_LOCK_PATIENCE) as publisher,
        TableLocks(conninfo, slot, work.check) as locks,
        SnapshotHolder(conninfo, slot, check_server=work.check_connection) as holder,
    ):
        # The locks' session, and those that copy, take the holder's snapshot: there is no other.
        work.check_connection(publisher.connection)
        publisher.connection.interrupt = work.check
        sources = _prepare(work, _lockable(work, locks, rels), publisher)
        if not sources:
            return
        snapshot_name, point = holder.open(work.check)
        held = HeldSnapshot(
            publisher,
            slot,
            holder.backend_pid,
            subscription=subscription.name,
            timeout=work.snapshot_timeout,
            tell=work.held,
        )
        definitions = _Definitions(work, publisher, [source.info for _, source in sources])
        running = _Running(work, publisher, locks, holder, held, point, definitions, _members(work))
        with held:
            running.begin(snapshot_name, sources)
            run_copy(
                work.spark,
                [replace(s, point=point) for _, s in sources if s.table.uri in running.tables],
                conninfo=conninfo,
                snapshot_name=snapshot_name,
                options=work.options,
                progress=running.progress,
                finished=running.finished,
                failed=running.failed,
                wanted=running.wanted,
                check=running.check,
            )


@dataclass(frozen=True, slots=True)
class _Running:
    """A round that has its snapshot. ``members``: sync ids of those that are still wanted;
    ``tables``: by the URI of their targets; ``done``: sync ids of those that are copied."""

    work: CopyRound
    publisher: Publisher
    locks: TableLocks
    holder: SnapshotHolder
    held: HeldSnapshot
    point: Lsn
    definitions: _Definitions
    members: set[str]
    tables: dict[str, SubscriptionRel] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)

    def begin(
        self, snapshot_name: str, sources: Sequence[tuple[SubscriptionRel, CopySource]]
    ) -> None:
        """Lock the tables; those that can be copied are in state d from now on."""
        work = self.work
        names = [(rel.schema, rel.table) for rel, _ in sources]
        refused = self.locks.hold(snapshot_name, names, self.publisher.connection)
        self.members.intersection_update(_members(work))
        for rel, source in sources:
            error = refused.get((rel.schema, rel.table)) or self.definitions.changed(rel, source)
            if error is not None:
                work.failed(rel, error)
            elif rel.sync_id in self.members:
                work.states.bind(rel, source.info.relation.oid, source.table.id)
                work.states.set_state(rel, SubscriptionRelState.DATASYNC, None)
                self.tables[source.table.uri] = rel

    def check(self) -> None:
        self.work.check()
        self.holder.check()
        self.locks.check()
        self.held.look()
        self.members.intersection_update(_members(self.work))
        for name, error in self.locks.let_pass(self.publisher.connection).items():
            for rel in self.tables.values():
                waits = rel.sync_id in self.members - self.done
                waits = waits and self.held.waits_for(rel.qualified_name)
                if (rel.schema, rel.table) == name and waits:
                    self.members.discard(rel.sync_id)
                    self.work.failed(rel, error)

    def progress(self, copy: CopyProgress) -> None:
        self.held.progress(copy)
        self.work.progress(copy)

    def wanted(self, source: CopySource) -> bool:
        member = self.tables[source.table.uri].sync_id in self.members
        return member and self.held.waits_for(source.table.name)

    def finished(self, source: CopySource) -> None:
        rel = self.tables[source.table.uri]
        self.locks.confirm()
        if (error := self.definitions.changed(rel, source)) is not None:
            self.work.failed(rel, error)
            return
        self.definitions.record(rel, source)
        _finish(self.work, rel, source, self.point)
        self.done.add(rel.sync_id)

    def failed(self, source: CopySource, error: PenstockError) -> None:
        self.work.failed(self.tables[source.table.uri], error)


class _Definitions:
    """What the rows of a round's tables depend on, from before its snapshot to the end of a copy.
    What has changed meanwhile is in a part of the rows, or in none: such a copy is made again.
    """

    def __init__(
        self, work: CopyRound, publisher: Publisher, tables: Sequence[RemoteTable]
    ) -> None:
        self._work, self._publisher = work, publisher
        self._tables = {info.relation.oid: info for info in tables}
        self._known: dict[int, Known] = {}
        found = self._read(list(self._tables))
        for oid, info in self._tables.items():
            if found is not None and oid in found.tables:
                self._known[oid] = first_known(found, oid, _held(info).names)

    def _read(self, oids: Sequence[int]) -> Definitions | None:
        return read_definitions(
            self._publisher.connection, self._work.subscription.publications, oids
        )

    def changed(self, rel: SubscriptionRel, source: CopySource) -> PenstockError | None:
        """Why the copy cannot be what the publisher has."""
        oid = source.info.relation.oid
        known = self._known.get(oid)
        if known is None:
            return None  # a node, or a table that was dropped: told otherwise
        connection, found = self._publisher.connection, self._read([oid])
        if found is None or oid not in found.tables:
            return None
        publications = self._work.subscription.publications
        ask = questions(connection)
        difference = compare(known, found, oid, _held(source.info), publications, ask)
        if not (difference.reasons or difference.labels or difference.notices):
            return None
        return NotInPrerequisiteState(
            f'table "{rel.qualified_name}" was changed at the publisher while it was copied',
            hint="The copy is made again.",
        )

    def record(self, rel: SubscriptionRel, source: CopySource) -> None:
        """Before the copy counts."""
        known = self._known.get(source.info.relation.oid)
        if known is not None:
            self._work.states.record_definition(rel, known.text())


def _held(info: RemoteTable) -> HeldColumns:
    return HeldColumns(frozenset(attribute.name for attribute in info.relation.attributes))


def _members(work: CopyRound) -> set[str]:
    return {rel.sync_id for rel in work.states.rels()}


def _lockable(
    work: CopyRound, locks: TableLocks, rels: Sequence[SubscriptionRel]
) -> list[SubscriptionRel]:
    """Those that are likely to be locked soon."""
    refused = locks.look([(rel.schema, rel.table) for rel in rels])
    for rel in rels:
        if (error := refused.get((rel.schema, rel.table))) is not None:
            work.failed(rel, error)
    return [rel for rel in rels if (rel.schema, rel.table) not in refused]


def _prepare(
    work: CopyRound, rels: Sequence[SubscriptionRel], publisher: Publisher
) -> list[tuple[SubscriptionRel, CopySource]]:
    """Tables with targets that take their rows."""
    sources: list[tuple[SubscriptionRel, CopySource]] = []
    locked: PenstockError | None = None
    for rel in rels:
        try:
            if locked is not None:  # whatever is asked next would wait as long again
                raise locked
            info = publisher.table_info(work.subscription.publications, rel.schema, rel.table)
            app_id, name_of = work.subscription.app_id, work.states.subscription_name
            tree = work.states.partition_tree(rel.table_name)
            layouts = layouts_of(work.subscription)
            new = new_columns_of(work.subscription)
            table = copy_target(*(work.warehouse, info, rel, app_id, name_of, layouts), new=new)
            add_metadata_columns(
                table,
                metadata_columns=work.subscription.metadata_columns,
                soft_delete=work.subscription.soft_delete,
            )
            leaves = copy_leaves(work.warehouse, tree, table, rel, app_id, name_of)
            for each in (table, *(() if leaves is None else leaves.tables)):
                generated_columns(each.schema, each.name)  # what is wrong there is its own error
        except ConnectionFailure:
            raise
        except PenstockError as error:
            locked = error if error.sqlstate == _LOCK_NOT_AVAILABLE else None
            work.failed(rel, error)
        else:
            way = work.subscription.out_of_range
            draw = partial(work.states.next_values, rel.table_name)
            source = CopySource(info, table, leaves, tree, out_of_range=way, draw=draw)
            sources.append((rel, source))
    return sources


def _finish(work: CopyRound, rel: SubscriptionRel, source: CopySource, point: Lsn) -> None:
    """One Delta commit holds the copy, the table's LSN and the proof of this copy. A partitioned
    table's is its own, after those of the partitions, which alone have rows."""
    app_id = work.subscription.app_id
    with work.states.member(rel, work.subscription) as record:
        if work.states.partition_tree(rel.table_name) != source.tree:
            raise NotInPrerequisiteState(
                f'partitions of table "{source.table.name}" were attached or detached while it was '
                "copied"
            )
        for table in source.tables:
            table.commit(
                app_id=app_id,
                version_marker=point,
                operation=COPY,
                extra_markers={copy_marker(rel, app_id): point},
            )
            if table is not source.table:
                failpoint(BETWEEN_COMMITS)
        failpoint(AFTER_COPY_COMMIT)
        record(SubscriptionRelState.FINISHEDCOPY, point)
    log.info(
        'table synchronization for subscription "%s", table "%s" has finished',
        work.subscription.name,
        rel.qualified_name,
    )


def recover(
    rels: Sequence[SubscriptionRel], warehouse: Warehouse, states: RelStates, app_id: str
) -> None:
    """Record copies that were committed before a crash, but not yet as state f.

    Where the table cannot be read, nobody knows; it is copied again, as a new membership: the
    others need not wait, and what is acknowledged meanwhile cannot be after a point of its own.
    """
    for rel in rels:
        if rel.state is not SubscriptionRelState.DATASYNC:
            continue
        try:
            point = finished_point(warehouse.open(rel.schema, rel.table), rel, app_id)
        except PenstockError as error:
            if not is_own(error):
                raise
            log.warning("%s", error.report())
            states.copy_again(rel, rel.relid)
            continue
        if point is not None:
            states.set_state(rel, SubscriptionRelState.FINISHEDCOPY, point)
