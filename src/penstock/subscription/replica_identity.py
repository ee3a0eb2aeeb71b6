"""The replica identity: choose the key of a target's rows when the publisher's identity changes
(relation.c: logicalrep_rel_mark_updatable).

A target's key is chosen from the relation of a change, and holds from that change on. A PRIMARY KEY
made by CREATE TABLE on the node stays, as a subscriber's does: ``fold`` refuses updates and deletes
that lack its columns. Any other key is the publisher's replica identity, and a new replica identity
replaces it: at that point of the stream its columns are unique and NOT NULL at the publisher. The
target's rows must hold the publisher's values in these columns, or changes would not find them. If
the rows may hold other values, the old key stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.catalog.pg_subscription import is_app_id
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.schema_changes import check_same_key
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes.out_of_range import CLAMP, NULL
from penstock.pgtypes.text_output import may_not_fit
from penstock.pgtypes.variant import VARIANT
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.target import Target

log = logging.getLogger(__name__)


def keeps_key(schema: TableSchema, relation: Relation) -> bool:
    """Return whether a table with this schema can keep its key for changes of ``relation``.

    FULL sends every column, including any key. A relation without a key sends no updates or
    deletes. The table's own PRIMARY KEY stays.
    """
    full = relation.replica_identity is ReplicaIdentity.FULL
    own = schema.primary_key
    if full or not relation.key or (own and set(own) == set(schema.source_key)):
        return True
    return set(relation.key) == set(schema.source_key)


def follow_identity(
    target: Target,
    relation: Relation,
    app_id: str,
    out_of_range: str,
    name_of: Callable[[str], str | None],
    check_newest: Callable[[Target], None],
) -> None:
    """Stage the replica identity of ``relation`` as the target's key if the key has to change.

    If rows cannot be found by it, the old key stays, with a warning. The table must already have
    the columns. ``name_of``: returns a subscription's name by its app id. ``check_newest``: raises
    if a newer version exists. Raises SchemaChanged if columns of the key are no longer published.
    """
    schema = target.table.schema
    if not keeps_key(schema, relation):
        check_newest(target)
        alone = not living(target.table, app_id, name_of)
        obstacle = _obstacle(target, relation, out_of_range, alone=alone)
        if obstacle is None:
            key = tuple(schema.by_source[name].name for name in relation.key)
            told = (target.rel.qualified_name, ", ".join(relation.key))
            log.info('rows of table "%s" are known by the new replica identity (%s)', *told)
            target.table.mark(TableSchema(schema.columns, key))
            return
        if relation != target.followed:
            told = (target.rel.qualified_name, obstacle)
            log.warning('table "%s" keeps its key, the replica identity has changed: %s', *told)
    published = {attribute.name for attribute in relation.attributes}
    if not published.issuperset(schema.source_key):
        check_same_key(schema, relation.key, target.table.name)


def living(table: DeltaTable, app_id: str, name_of: Callable[[str], str | None]) -> frozenset[str]:
    """Return the app ids of the other subscriptions that fill a table.

    Another subscription's publisher may define the table differently. ``name_of``: returns a
    subscription's name by its app id, or None if it was dropped.
    """
    others = (each for each in table.app_ids if is_app_id(each) and each != app_id)
    return frozenset(each for each in others if name_of(each) is not None)


def _obstacle(target: Target, relation: Relation, out_of_range: str, *, alone: bool) -> str | None:
    """Return why the target's rows cannot be found by the publisher's replica identity, or None."""
    table, leaves = target.table, target.leaves
    if not alone:
        return "another subscription fills it, too"
    columns = [table.schema.by_source[name] for name in relation.key]
    for column in columns:
        if column.type == VARIANT:
            return f'column "{column.source}" is a variant'
        lacks = column.name in table.unfilled or (column.local and not column.published)
        if lacks and target.rows:
            return f'rows from before lack the publisher\'s values of column "{column.source}"'
        if out_of_range in (NULL, CLAMP) and _may_be_replaced(column, relation):
            return f'column "{column.source}" may hold other values than the publisher\'s'
    if leaves is not None and leaves.routing.columns - {column.name for column in columns}:
        return "it is partitioned by other columns"
    return None


def _may_be_replaced(column: Column, relation: Relation) -> bool:
    sent = next(a for a in relation.attributes if a.name == column.source)
    return may_not_fit(sent.type_oid, sent.typmod) and not column.as_text
