"""How a table of the lake is published at a version: for tasks, in the words of ``pipeline``.

In: the table, its columns, what its publications say. Out: frozen values that cross to executors.
What changed is left to ``decoding``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog import LakeTable
from penstock.catalog import ReplicaIdentity as LakeIdentity
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from penstock.lakehouse.state import TableState
from penstock.lakehouse.table_changes import FilePart
from penstock.pipeline.change_item import Operation, PublishedTable
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.publication.members import Action
from penstock.relation import Attribute, Relation, ReplicaIdentity
from penstock.walsender.lake_columns import LakeColumn, column_type, columns_of
from penstock.walsender.published import Published

_IDENTITY: Final = {
    LakeIdentity.DEFAULT: ReplicaIdentity.DEFAULT,
    LakeIdentity.NOTHING: ReplicaIdentity.NOTHING,
    LakeIdentity.FULL: ReplicaIdentity.FULL,
    LakeIdentity.KEY: ReplicaIdentity.INDEX,
}

_OPERATIONS: Final = {
    Action.INSERT: Operation.INSERT,
    Action.UPDATE: Operation.UPDATE,
    Action.DELETE: Operation.DELETE,
}


def as_then(table: LakeTable, version: int, state: TableState) -> LakeTable:
    """The table as it was when a version was committed. ``state``: that version.

    Where it had no identity then, or one by columns that it did not have, as only other writers can
    bring about, the identity of now counts, if it had its columns: the error that says so asks for
    one.
    """
    then = table.at(version)
    if then is table:
        return table
    try:
        held = {column.name for column in columns_of(state)}
    except FeatureNotSupported:
        return then  # which is told with the columns
    if then.identity is not None and held.issuperset(then.identity):
        return then
    if table.identity is None or not held.issuperset(table.identity):
        return then
    return replace(
        then,
        primary_key=table.primary_key,
        replica_identity=table.replica_identity,
        identity_key=table.identity_key,
    )


def columns_at(table: LakeTable, state: TableState) -> tuple[LakeColumn, ...]:
    """Raises FeatureNotSupported, NotInPrerequisiteState with the table's name."""
    try:
        columns = columns_of(state)
        for column in columns:
            column_type(column)  # PostgreSQL has none for arrays of arrays, for example
    except FeatureNotSupported as error:
        raise FeatureNotSupported(
            f'cannot publish changes of table "{table.name}"', detail=error.message, hint=error.hint
        ) from None
    names = Counter(column.name.lower() for column in columns)
    twice = [column.name for column in columns if names[column.name.lower()] > 1]
    if twice:
        raise FeatureNotSupported(
            f'cannot publish changes of table "{table.name}"',
            detail=f"Names of columns differ in case only: {', '.join(twice)}.",
        )
    held = {column.name for column in columns}
    for name in table.identity or table.primary_key:
        if name not in held:
            raise NotInPrerequisiteState(
                f'table "{table.name}" no longer has the column "{name}" of its key',
                hint="Choose another key with ALTER TABLE ... REPLICA IDENTITY, then drop the slot "
                "and copy the table again.",
            )
    return columns


def published_table(
    table: LakeTable, published: Published, columns: Sequence[LakeColumn]
) -> PublishedTable:
    """``columns``: all of the table."""
    rule, target = published.rule, published.target
    full = table.replica_identity is LakeIdentity.FULL
    wanted = [c for c in columns if rule.columns is None or c.name in rule.columns]
    attributes = tuple(
        Attribute(c.name, *column_type(c), key=full or c.name in (table.identity or ()))
        for c in wanted
    )
    published_names = {c.name for c in wanted}
    needed = [c.name for c in columns if not c.generated] if full else table.identity or ()
    return PublishedTable(
        relation=Relation(
            target.oid,
            target.schema,
            target.name,
            _IDENTITY[table.replica_identity],
            attributes,
        ),
        name=table.qualified_name,
        columns=tuple(ScanColumn(c.name, c.stored, c.type) for c in columns),
        key=table.identity or table.primary_key,
        identity=table.identity,
        filters={_OPERATIONS[action]: text for action, text in rule.filters.items()},
        published=frozenset(_OPERATIONS[a] for a in rule.actions if a in _OPERATIONS),
        covered=published_names.issuperset(needed),
    )


def scan_file(part: FilePart) -> ScanFile:
    """As tasks read it."""
    file = part.file
    return ScanFile(file.path, file.size, file.rows, part.gone, part.only, file.partition_values)
