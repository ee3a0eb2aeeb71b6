"""Initial table synchronization: all tables of a round at one consistent point (tablesync.c).

In: rows of pg_subscription_rel in state i or d. Out: copied tables in state f, each with the
consistent point as its own LSN; the apply worker brings them to r. A temporary replication slot
gives the point and an exported snapshot; its session stays idle and holds the snapshot while Spark
copies.

States: i -> d before the copy of a table, d -> f in the catalog after its one Delta commit. A crash
leaves i, or d. A table in d whose Delta log holds this round's own marker was committed and becomes
f; any other is copied again, alone, since nothing of a copy is visible before its commit. Tables
that are in f already keep their older point; the stream starts at the oldest
(``origin.start_lsn``).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.failpoint import AFTER_COPY_COMMIT, failpoint
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.snapshot import CopyOptions, CopySource, run_copy
from penstock.relation import ReplicaIdentity
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.snapshot_holder import SnapshotHolder
from penstock.walreceiver.table_info import PublishedTable

log = logging.getLogger(__name__)

_OPERATION: Final = "COPY"


class RelStates(Protocol):
    """The part of the catalog that a copy writes."""

    def set_state(
        self, rel: SubscriptionRel, state: SubscriptionRelState, lsn: Lsn | None
    ) -> object:
        """Record a transition."""

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> object:
        """Record the publisher's relation and the Delta table that a row stands for."""


@dataclass(frozen=True, slots=True)
class CopyRound:
    """Everything one round of copies needs."""

    spark: Any
    warehouse: Warehouse
    states: RelStates
    subscription: Subscription
    options: CopyOptions
    progress: Callable[[str, int, int, int, int], None]
    cancelled: Callable[[], bool]
    """Whether the worker stops: the copy is given up, and made again at the next start."""


def copy_marker(rel: SubscriptionRel, app_id: str) -> str:
    """The transaction marker's name that tells a copy of this membership from an older one's."""
    return f"{app_id}/copy/{rel.sync_id}"


def finished_point(table: DeltaTable | None, rel: SubscriptionRel, app_id: str) -> Lsn | None:
    """The consistent point of a copy that was committed before its state was recorded."""
    if table is None:
        return None
    point = table.transaction_version(copy_marker(rel, app_id))
    return None if point is None else Lsn(point)


def run_round(work: CopyRound, rels: Sequence[SubscriptionRel]) -> None:
    """Copy tables side by side. Raises what the publisher, Spark or the warehouse raise."""
    subscription = work.subscription
    conninfo = ConnInfo.parse(subscription.conninfo)
    slot = f"penstock_{subscription.oid}_sync_{uuid.uuid4().hex[:12]}"
    with Publisher.connect(conninfo, slot) as publisher, SnapshotHolder(conninfo, slot) as holder:
        snapshot_name, point = holder.open()
        sources: list[CopySource] = []
        by_name = {}

        def check() -> None:
            if work.cancelled():
                raise PenstockError("canceling the copy because the worker stops", sqlstate="57014")
            holder.check()

        for rel in rels:
            info = publisher.table_info(subscription.publications, rel.schema, rel.table)
            table = copy_target(work.warehouse, info, rel, subscription.app_id)
            work.states.bind(rel, info.relation.oid, table.id)
            work.states.set_state(rel, SubscriptionRelState.DATASYNC, None)
            by_name[rel.qualified_name] = rel
            sources.append(CopySource(info, table))
        run_copy(
            work.spark,
            sources,
            conninfo=conninfo,
            snapshot_name=snapshot_name,
            options=work.options,
            progress=work.progress,
            finished=lambda source: _finish(work, by_name[source.table.name], source.table, point),
            check=check,
        )


def _finish(work: CopyRound, rel: SubscriptionRel, table: DeltaTable, point: Lsn) -> None:
    """One Delta commit holds the copy, the table's LSN and the proof of this copy."""
    app_id = work.subscription.app_id
    table.commit(
        app_id=app_id,
        version_marker=point,
        operation=_OPERATION,
        extra_markers={copy_marker(rel, app_id): point},
    )
    failpoint(AFTER_COPY_COMMIT)
    work.states.set_state(rel, SubscriptionRelState.FINISHEDCOPY, point)
    log.info(
        'table synchronization for subscription "%s", table "%s" has finished',
        work.subscription.name,
        rel.qualified_name,
    )


def target_key(info: PublishedTable) -> tuple[str, ...]:
    """Columns that identify a row: the replica identity, and the primary key where that is FULL."""
    match info.relation.replica_identity:
        case ReplicaIdentity.FULL:
            return info.primary_key
        case ReplicaIdentity.NOTHING:
            return ()
        case _:
            return info.relation.key


def copy_target(
    warehouse: Warehouse, info: PublishedTable, rel: SubscriptionRel, app_id: str
) -> DeltaTable:
    """The table that a copy goes to. The Delta table of this row's earlier copy is replaced by it,
    in the copy's one commit; its older versions stay. Raises what ``ensure_table`` raises."""
    relation = info.relation
    table = warehouse.open(relation.schema, relation.name)
    ours = table is not None and table.transaction_version(app_id) is not None
    if table is None or not ours or table.id != rel.table_id:
        return ensure_table(warehouse, info, must_be_empty=True)
    log.info(
        'table "%s" is copied again: %d rows of version %d at %s are replaced',
        table.name,
        table.rows,
        table.version,
        table.uri,
    )
    table.replace(TableSchema.of_relation(relation, target_key(info)))
    return table


def ensure_table(warehouse: Warehouse, info: PublishedTable, *, must_be_empty: bool) -> DeltaTable:
    """Open the target of a published table, or create it.

    Raises NotInPrerequisiteState when rows would be copied into a table that has some,
    RelationChanged when its columns do not fit.
    """
    relation = info.relation
    wanted = TableSchema.of_relation(relation, target_key(info))
    table = warehouse.open(relation.schema, relation.name)
    if table is None:
        for source, name in wanted.renamed:
            log.warning(
                'column "%s" of table "%s" is stored as "%s"', source, relation.qualified_name, name
            )
        return warehouse.create(relation.schema, relation.name, wanted)
    if must_be_empty and table.rows:
        raise NotInPrerequisiteState(
            f'target table "{relation.qualified_name}" is not empty',
            detail=f"It holds {table.rows} rows at {table.uri}.",
            hint="Remove or rename it, or subscribe WITH (copy_data = false).",
        )
    added = table.schema.columns_added(wanted, table=table.name)
    if added:
        table.add_columns(added)
    return table


def recover(
    rels: Sequence[SubscriptionRel], warehouse: Warehouse, states: RelStates, app_id: str
) -> None:
    """Record copies that were committed before a crash, but not yet as state f."""
    for rel in rels:
        if rel.state is not SubscriptionRelState.DATASYNC:
            continue
        point = finished_point(warehouse.open(rel.schema, rel.table), rel, app_id)
        if point is not None:
            states.set_state(rel, SubscriptionRelState.FINISHEDCOPY, point)
