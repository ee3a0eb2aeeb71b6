"""Targets of copies: new or empty Delta tables, or tables with an earlier copy.

This module reads the publisher's definition of a table and its row of pg_subscription_rel. It opens
or creates the Delta table, and its partitions if it is partitioned on the node, so that one commit
of each replaces an earlier copy. Rows of other origin are never replaced, unless the subscription's
option copy_target says so. ``tablesync`` decides when a copy is made and what is committed with it.

Several subscriptions may fill one table, as its shards. Each applies its own changes, but a copy
replaces all rows. Another publisher's rows would be lost, because nobody sends them again. So a
copy replaces a table only if no other existing subscription has committed to it since this
subscription's last copy. This check costs nothing if only one subscription has markers; otherwise
it reads the Delta log since the last copy. A dropped subscription does not count: the present
subscriber takes over its rows. A warehouse belongs to one node, so an app id that none of the
node's subscriptions has belongs to a dropped subscription.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.catalog import LakeTable
from penstock.catalog.pg_subscription import (
    APPEND,
    DEFAULTS,
    EMPTY,
    REPLACE,
    LakeOptions,
    is_app_id,
)
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.errors import (
    CommitConflict,
    NotInPrerequisiteState,
    PenstockError,
    RelationChanged,
)
from penstock.lakehouse.foreign import ADDING_COPY
from penstock.lakehouse.schema import ROW, TableSchema
from penstock.lakehouse.schema_changes import (
    JSONB_AS_VARIANT,
    NewColumns,
    check_no_variant,
    check_same_key,
    columns_to_add,
    schema_of_copy,
)
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_layout import NewTableLayouts
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgtypes.out_of_range import TEXT
from penstock.pipeline.partition_tree import routing_of
from penstock.pipeline.parts import Leaves
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.parking import is_own
from penstock.subscription.partitions import check_columns, check_key, open_leaf
from penstock.subscription.replica_identity import living
from penstock.subscription.target_columns import keeps_primary_key
from penstock.walreceiver.table_info import RemoteTable

_WAYS_ON: Final = (
    "Move the table at {uri} away: the copy makes a new one, with rows of this subscription alone. "
    "Or keep all rows as they are: take the table out of the publication, and into it again, each "
    "time with the statement that follows."
)
_KEEP_ROWS: Final = "REFRESH PUBLICATION WITH (copy_data = false)"


def check_alone(table: DeltaTable, app_id: str, name_of: Callable[[str], str | None]) -> None:
    """Raise NotInPrerequisiteState if a copy for ``app_id`` could remove another subscription's
    rows from the table. ``name_of``: returns a subscription's name by its app id."""
    others = living(table, app_id, name_of)
    if not others or not table.rows:
        return
    found = sorted(f'subscription "{name_of(each)}"' for each in table.filled_by(app_id, others))
    if found:
        raise NotInPrerequisiteState(
            f'target table "{table.name}" is filled by another subscription too',
            detail=f"It holds changes of {', '.join(found)}. The copy would take the place of all "
            "rows, and nobody sends the others again.",
            hint=_WAYS_ON.format(uri=table.uri),
            alter=_KEEP_ROWS,
        )


log = logging.getLogger(__name__)

_MOVE_AWAY: Final = "Move the table at {uri} away: the copy makes a new one."


def copy_marker(rel: SubscriptionRel, app_id: str) -> str:
    """Return the name of the transaction marker of this membership's copies, which copies of
    earlier memberships lack."""
    return f"{_copies_of(app_id)}{rel.sync_id}"


def _copies_of(app_id: str) -> str:
    return f"{app_id}/copy/"


def _layouts(options: LakeOptions) -> NewTableLayouts:
    """Return the layouts of the tables that a subscription creates."""
    return NewTableLayouts.of(options.partition_by, options.cluster_by)


def new_columns_of(options: LakeOptions) -> NewColumns:
    """Return how a subscription creates columns."""
    return NewColumns(
        as_text=options.out_of_range == TEXT,
        variants=options.jsonb_as == JSONB_AS_VARIANT,
    )


def target_key(info: RemoteTable) -> tuple[str, ...]:
    """Return the columns that identify a row: those of the replica identity, or of the primary key
    if the replica identity is FULL."""
    match info.relation.replica_identity:
        case ReplicaIdentity.FULL:
            return info.primary_key
        case ReplicaIdentity.NOTHING:
            return ()
        case _:
            return info.relation.key


def _key_for(info: RemoteTable, table: DeltaTable | None) -> tuple[str, ...]:
    """Return the key of the target's rows. A primary key that CREATE TABLE has made on the node
    stays, as on a server, if the publisher has no key or a key that includes its columns."""
    key = target_key(info)
    if table is not None and keeps_primary_key(table.schema, info.relation):
        return table.schema.source_key
    if key or table is None or not table.schema.has_own_key:
        return key
    own = table.schema.source_key
    published = {attribute.name for attribute in info.relation.attributes}
    return own if published.issuperset(own) else ()


def copy_target(
    warehouse: Warehouse,
    info: RemoteTable,
    rel: SubscriptionRel,
    app_id: str,
    name_of: Callable[[str], str | None],
    *,
    options: LakeOptions = DEFAULTS,
    mode: str = EMPTY,
) -> DeltaTable:
    """Return the table that a copy goes to. ``options``: how tables and columns are created.
    ``mode``: one of COPY_TARGETS. If the table has the earlier copy of ``rel``, its rows are
    replaced in the copy's one commit; older versions stay.

    Raises the errors of ``ensure_table`` and ``check_alone``, and the errors of an existing table
    that cannot be read or written."""
    relation = info.relation
    table = _replaceable(warehouse, relation, rel, app_id, name_of, mode)
    if table is None:
        there = warehouse.open(relation.schema, relation.name) if mode == REPLACE else None
        if there is not None:
            check_alone(there, app_id, name_of)
        return ensure_table(warehouse, info, must_be_empty=True, options=options, mode=mode)
    if table.app_ids:
        log.info(
            'table "%s" is copied again: %d rows of version %d at %s are replaced',
            table.name,
            table.rows,
            table.version,
            table.uri,
        )
    wanted = TableSchema.of_relation(relation, _key_for(info, table))
    new = new_columns_of(options)
    table.replace(schema_of_copy(table.schema, wanted, table=table.name, new=new))
    return table


def _replaceable(
    warehouse: Warehouse,
    relation: Relation,
    rel: SubscriptionRel,
    app_id: str,
    name_of: Callable[[str], str | None],
    mode: str,
) -> DeltaTable | None:
    uri = warehouse.table_uri(relation.schema, relation.name)
    try:
        # What the rows are that are replaced does not matter, nor whether they can be read.
        table = warehouse.open(relation.schema, relation.name, vectors=False)
        if table is None or _never_filled(table):
            return table
        if table.id != rel.table_id:
            return None
        if mode == APPEND and table.transaction_version(app_id) is None:
            return None
        if mode != REPLACE and _holds_others(table, app_id):
            raise _others_rows(table)
        check_alone(table, app_id, name_of)
        return table if _is_ours(table, relation, rel, app_id, name_of) else None
    except PenstockError as error:
        if not is_own(error):
            raise
        mended = "" if error.hint is None else f"{error.hint.rstrip('.')}. Or: "
        raise error.changed(hint=f"{mended}{_MOVE_AWAY.format(uri=uri)}") from None


def added_marker(app_id: str) -> str:
    """Return the marker's name for copies that were added to rows of others."""
    return f"{app_id}/added"


def replaced_marker(app_id: str) -> str:
    """Return the marker's name for copies that replaced all rows."""
    return f"{app_id}/replaced"


def _holds_others(table: DeltaTable, app_id: str) -> bool:
    """Return whether a copy was added to rows of others, which a new copy would remove."""
    added = table.transaction_version(added_marker(app_id)) or 0
    return added > (table.transaction_version(replaced_marker(app_id)) or 0)


def _others_rows(table: DeltaTable) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(
        f'target table "{table.name}" has rows that its copy was added to',
        detail="The copy would take the place of all rows, and nobody can tell whose they are.",
        hint="copy_target = replace also removes the rows of others.",
        alter="SET (copy_target = replace)",
    )


def _is_ours(
    table: DeltaTable,
    relation: Relation,
    rel: SubscriptionRel,
    app_id: str,
    name_of: Callable[[str], str | None],
) -> bool:
    """Return whether a table has the earlier copy of ``rel``, or the rows of a dropped
    subscription.

    While a table is out of the subscription, others may write to it. If they have changed rows
    since, the table is theirs. If another relation has the name now, the table may be all that is
    left of the old relation."""
    if table.transaction_version(app_id) is None:
        if _left_by_dropped(table, name_of):
            return not rel.returned
        return False
    if not rel.returned:
        return True
    return rel.relid == relation.oid and not table.changed_by_others(app_id)


def _never_filled(table: DeltaTable) -> bool:
    """Return whether a table was created for a copy that was never committed.

    The table's id is not compared: the node may have been stopped before it recorded the table in
    pg_subscription_rel. Such a table can be replaced without loss."""
    filled = table.rows or table.app_ids
    return not (filled or any(column.own for column in table.schema.columns))


def _left_by_dropped(table: DeltaTable, name_of: Callable[[str], str | None]) -> bool:
    return any(is_app_id(each) and name_of(each) is None for each in table.app_ids)


def copy_leaves(
    warehouse: Warehouse,
    tree: Sequence[LakeTable],
    root: DeltaTable,
    rel: SubscriptionRel,
    app_id: str,
    name_of: Callable[[str], str | None],
    mode: str = EMPTY,
) -> Leaves | None:
    """Return the partitions that a copy goes to; None if the table is not partitioned.

    ``root``: the partitioned table, prepared for the copy. The rows of an earlier copy of ``rel``,
    whole or not, are replaced, and the rows of others if ``mode`` says so. Raises the errors of
    ``open_partitions``; NotInPrerequisiteState if a partition has rows of others.
    """
    if not tree:
        return None
    routing, tables = routing_of(tree, root.schema)
    check_key(tree[0], routing, root.schema)
    adds_rows = mode == APPEND
    leaves = tuple(open_leaf(warehouse, table, vectors=adds_rows) for table in tables)
    same = root.id == rel.table_id
    earlier = same and (
        root.transaction_version(app_id) is not None or _left_by_dropped(root, name_of)
    )
    changed = rel.returned and any(leaf.changed_by_others(app_id) for leaf in leaves)
    for leaf in leaves:
        begun = leaf.transaction_version(copy_marker(rel, app_id)) is not None
        adds = mode == APPEND and not earlier
        if adds and begun:
            take_back_copy(leaf, copy_marker(rel, app_id))
        begun = begun or (same and _is_of_a_copy(leaf, app_id))
        if mode == EMPTY and leaf.rows and not begun and (changed or not earlier):
            raise _not_empty(leaf)
        if leaf.rows and not adds:
            check_alone(leaf, app_id, name_of)
        made = leaf.schema.as_leaf_of(root.schema)
        if (leaf.rows and not adds) or (made != leaf.schema and not leaf.rows):
            leaf.replace(made)
        leaf.add_columns(leaf.schema.lacking(root.schema.columns))
        check_columns(leaf, root.schema)
    return Leaves(leaves, routing)


def take_back_copy(leaf: DeltaTable, marker: str) -> None:
    """Remove the rows that a copy added to a partition before a crash, while other partitions lack
    the copy. Raises NotInPrerequisiteState, StorageError."""
    while (found := leaf.reversal(marker, 0, ADDING_COPY)) is not None:
        try:
            leaf.reverse(marker, found)
        except CommitConflict:
            continue
        log.info('what was copied to partition "%s" is taken back: it is copied again', leaf.name)
        return


def _is_of_a_copy(leaf: DeltaTable, app_id: str) -> bool:
    """Return whether all rows of a partition come from copies, such as a copy of an earlier
    membership that was never committed to the root."""
    copied = any(marker.startswith(_copies_of(app_id)) for marker in leaf.app_ids)
    return copied and not leaf.changed_by_others(app_id)


def _not_empty(table: DeltaTable) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(
        f'target table "{table.name}" is not empty',
        detail=f"It holds {table.rows} rows at {table.uri}.",
        hint="Remove or rename it, or subscribe WITH (copy_data = false). Or set copy_target = "
        "append, which adds the copy to these rows, or copy_target = replace, which puts it in "
        "their place.",
    )


def ensure_table(
    warehouse: Warehouse,
    info: RemoteTable,
    *,
    must_be_empty: bool,
    options: LakeOptions = DEFAULTS,
    mode: str = EMPTY,
) -> DeltaTable:
    """Open the target of a published table, or create it. ``options``, ``mode``: as for
    ``copy_target``.

    Raises NotInPrerequisiteState if rows would be copied into a table that has rows;
    RelationChanged if its columns do not fit; InvalidParameterValue or FeatureNotSupported if a new
    table cannot have the layout of ``options``.
    """
    relation, new = info.relation, new_columns_of(options)
    table = warehouse.open(relation.schema, relation.name)
    wanted = TableSchema.of_relation(relation, _key_for(info, table))
    if table is None:
        for source, name in wanted.renamed:
            log.warning(
                'column "%s" of table "%s" is stored as "%s"', source, relation.qualified_name, name
            )
        made = new.schema(wanted)
        check_no_variant(made, table=relation.qualified_name)
        layout = _layouts(options).layout_of((relation.schema, relation.name), made)
        return warehouse.create(relation.schema, relation.name, made.with_row(), layout)
    if must_be_empty and table.rows and mode == EMPTY:
        raise _not_empty(table)
    if must_be_empty and table.rows and mode == REPLACE:
        table.replace(table.schema)
    table.mark(table.schema.taken())
    if must_be_empty:
        _take_key(table, wanted)
    try:
        whole_rows = relation.replica_identity is ReplicaIdentity.FULL
        added = columns_to_add(
            table.schema, wanted, table=table.name, whole_rows=whole_rows, new=new
        )
        check_same_key(table.schema, wanted.source_key, table.name)
    except RelationChanged as error:
        if must_be_empty:
            error.hint = _MOVE_AWAY.format(uri=table.uri)
        raise
    table.add_columns(added if added or table.schema.columns else (ROW,))
    table.mark(table.schema.with_published(wanted.by_source))
    return table


def _take_key(table: DeltaTable, wanted: TableSchema) -> None:
    """Give a table the publisher's key, by which changes of the stream find their rows. The first
    copy does this if CREATE TABLE on the node or another writer has made the table."""
    schema, own = table.schema, table.schema.by_source
    made_here = all(column.local for column in schema.columns)
    known = all(source in own for source in wanted.source_key)
    if made_here and known and schema.source_key != wanted.source_key:
        key = tuple(own[source].name for source in wanted.source_key)
        taken = TableSchema(schema.columns, key)
        check_no_variant(taken, table=table.name)
        if table.rows:
            table.mark(taken)
        else:
            table.replace(taken)
