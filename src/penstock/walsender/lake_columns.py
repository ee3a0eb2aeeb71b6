"""A lake table's columns with PostgreSQL types, for publishing, not for writing.

``columns_of`` reads the columns from a table's state, ``as_then`` returns the table at that
version. A table that replication could not maintain (NOT NULL, generated columns) can still be
published. A table with an unknown reader feature cannot.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from penstock.lakehouse.protocol import check_readable
from penstock.lakehouse.schema import (
    PHYSICAL_NAME,
    Column,
    TableSchema,
    arrow_type,
    attribute_of,
    delta_type,
    recorded_type,
    type_text,
)
from penstock.lakehouse.state import TableState
from penstock.lsn import Lsn
from penstock.pgtypes.pg_type import TEXT
from penstock.pgtypes.registry import type_of_arrow
from penstock.pipeline.change_item import PublishedTable
from penstock.pipeline.scan import ScanColumn
from penstock.publication.relation_sync import RelationSyncEntry
from penstock.relation import Relation, ReplicaIdentity
from penstock.sql.builtin.type_cache import is_enum


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a lake table. ``delta`` is its name in the Delta table, ``stored`` its name in
    the files, which differs if columns have been renamed. ``type`` is its Arrow type."""

    attribute: Attribute
    delta: str
    stored: str
    type: pa.DataType

    @property
    def name(self) -> str:
        """The column's name in PostgreSQL."""
        return self.attribute.name


def columns_of(state: TableState) -> tuple[LakeColumn, ...]:
    """Return the columns in the table's order. Raises FeatureNotSupported for structs, maps and
    variants, and for tables that need a reader feature not known here."""
    check_readable(state.protocol, state.metadata)
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return tuple(column for column in map(_column, fields) if column.name)  # without ROW


def _column(field: Mapping[str, Any]) -> LakeColumn:
    metadata = field.get("metadata") or {}
    return LakeColumn(
        attribute_of(field, recorded_type(metadata)),
        delta=field["name"],
        stored=metadata.get(PHYSICAL_NAME, field["name"]),
        type=arrow_type(field["type"]),
    )


def as_then(table: LakeTable, version: int, state: TableState, end: Lsn | None = None) -> LakeTable:
    """Return the table as it was when a version was committed; ``state`` is that version's.

    With ``end``, return it as it was at the end of a transaction that did not change it.

    The table may have had no replica identity, or one with columns that the version lacks (only
    other writers cause that). Then the present identity counts, if the version has its columns: the
    error asks users to give the table an identity, so an identity given later must help.
    """
    then = table.at(version) if end is None else table.at_end_of(end, version)
    if then is table:
        return table
    try:
        held = {column.name for column in columns_of(state)}
    except FeatureNotSupported:
        return then  # the error is raised when the columns are needed
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
    """Return the table's columns at a version. Raises FeatureNotSupported and
    NotInPrerequisiteState, with the table's name, if they cannot be published."""
    try:
        columns = columns_of(state)
        for column in columns:
            column_type(column)  # raises: PostgreSQL has no arrays of arrays, for example
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


def schema_of(columns: Iterable[LakeColumn]) -> TableSchema:
    """Return the schema of rows that sessions write."""
    return TableSchema(tuple(Column(c.delta, c.attribute, c.type) for c in columns))


def spark_type(kind: pa.DataType) -> str:
    """Return a type as Spark SQL writes it in CAST."""
    return type_text(delta_type(kind)).replace("long", "bigint")


def table_column(column: LakeColumn) -> Attribute:
    """Return a column as PostgreSQL's catalogs, queries and row filters see it."""
    type_oid, typmod = column_type(column)
    return replace(column.attribute, type_oid=type_oid, typmod=typmod)


def column_type(column: LakeColumn) -> tuple[int, int]:
    """Return a column's (oid, typmod), as recorded, or else derived from its Arrow type."""
    own = column.attribute
    return (own.type_oid, own.typmod) if own.type_oid else type_of_arrow(column.type)


def sent_type(column: LakeColumn) -> tuple[int, int]:
    """Return the type whose output and send functions print the values, text for an enum."""
    oid, typmod = column_type(column)
    return (TEXT, -1) if is_enum(oid) else (oid, typmod)


def published_table(
    table: LakeTable, columns: Sequence[LakeColumn], entry: RelationSyncEntry
) -> PublishedTable:
    """Return how a table is published. ``columns`` are all of the table."""
    full = table.replica_identity is ReplicaIdentity.FULL
    wanted = [c for c in columns if entry.columns is None or c.name in entry.columns]
    attributes = tuple(
        Attribute(c.name, *column_type(c), key=full or c.name in (table.identity or ()))
        for c in wanted
    )
    return PublishedTable(
        relation=Relation(
            entry.target.oid,
            entry.target.schema,
            entry.target.name,
            table.replica_identity,
            attributes,
        ),
        name=table.qualified_name,
        columns=tuple(ScanColumn(c.name, c.stored, c.type) for c in columns),
        key=table.identity or table.primary_key,
        identity=table.identity,
        filters=entry.filters,
        published=entry.operations,
        refused=entry.refused,
    )
