"""Every table of the lake, as output plugins see it: no publication has a say.

In: a table with its columns at a version. Out: how its changes go out: all columns, all operations,
no filter, of old rows what the replica identity tells (ExtractReplicaIdentity of heapam.c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.catalog import LakeTable
from penstock.decoding import RelationData
from penstock.pipeline.change_item import PublishedTable
from penstock.pipeline.scan import ScanColumn
from penstock.publication.members import Operation
from penstock.relation import Attribute, Relation, ReplicaIdentity
from penstock.walsender.lake_columns import LakeColumn, column_type


class EveryTable:
    """``wanted.Published`` without publications; for one stream."""

    def __init__(self) -> None:
        self._seen: dict[Relation, tuple[LakeTable, tuple[LakeColumn, ...]]] = {}

    def publishes(self, table: LakeTable) -> bool:
        """Always."""
        return True

    def names(self, table: LakeTable) -> bool:
        """Never: what cannot be told is left out, as with FOR ALL TABLES."""
        return False

    def has(self, publications: Sequence[int]) -> bool:
        """Always: what is lost to no publication is lost to who reads every table."""
        return True

    def of(self, table: LakeTable, columns: tuple[LakeColumn, ...]) -> PublishedTable | None:
        """The table itself, partition or not."""
        full = table.replica_identity is ReplicaIdentity.FULL
        attributes = tuple(
            Attribute(c.name, *column_type(c), key=full or c.name in (table.identity or ()))
            for c in columns
        )
        relation = Relation(table.oid, table.schema, table.name, table.replica_identity, attributes)
        self._seen[relation] = table, columns
        return PublishedTable(
            relation=relation,
            name=table.qualified_name,
            columns=tuple(ScanColumn(c.name, c.stored, c.type) for c in columns),
            key=table.identity or table.primary_key,
            identity=table.identity,
            filters={},
            published=frozenset(Operation),
        )

    def relation_data(self, relation: Relation, type_names: Mapping[int, str]) -> RelationData:
        """What plugins see of a table that ``of`` has told. ``type_names``: the node's own."""
        table, columns = self._seen[relation]
        return RelationData.of(
            relation,
            type_names=type_names,
            not_null=[column.name for column in columns if column.not_null],
            primary_key=table.primary_key,
            generated={column.name: column.generated for column in columns},
        )
