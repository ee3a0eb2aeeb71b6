"""Every table of the lake, as output plugins see it, independent of publications.

A table's changes are sent with all columns and operations, and without a filter. The replica
identity decides about old rows (ExtractReplicaIdentity of heapam.c).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.catalog import LakeTable
from penstock.decoding import RelationData
from penstock.lsn import Lsn
from penstock.pipeline.change_item import PublishedTable
from penstock.protocol.answers import Notice
from penstock.publication.members import Operation
from penstock.publication.relation_sync import RelationSyncEntry
from penstock.relation import Relation
from penstock.sql.text.quoting import quote_identifier
from penstock.walsender.lake_columns import LakeColumn, published_table

_VISIBLE: Final = "public"


class EveryTable:
    """``decoding_options.Published`` for a reader of every table."""

    def at(self, place: Lsn) -> EveryTable:
        """Return this object, whatever the position."""
        return self

    def warnings(self) -> Sequence[Notice]:
        """Return none: no publication is missing."""
        return ()

    def publishes(self, table: LakeTable) -> bool:
        """Return True, since this reader has every table."""
        return True

    def names(self, table: LakeTable) -> bool:
        """Return False: a table that cannot be sent is skipped, as with FOR ALL TABLES."""
        return False

    def has(self, publications: Sequence[int]) -> bool:
        """Return True, since this reader has every table, published or not."""
        return True

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool = False
    ) -> PublishedTable | None:
        """Return the table under its own name, even if it is a partition."""
        entry = RelationSyncEntry(table, None, {}, frozenset(Operation), {})
        return published_table(table, columns, entry)


def relation_data(
    relation: Relation,
    table: LakeTable,
    columns: Sequence[LakeColumn],
    types: Mapping[int, tuple[str, str]],
) -> RelationData:
    """Return a table as plugins see it in one transaction. ``types``: schema and name of the node's
    own types, by oid."""
    used = (a.type_oid for a in relation.attributes if a.type_oid in types)
    return RelationData.of(
        relation,
        type_names={oid: _type_text(types[oid]) for oid in used},
        not_null=[column.name for column in columns if column.attribute.not_null],
        primary_key=table.primary_key,
        generated={column.name: column.attribute.generated for column in columns},
    )


def _type_text(name: tuple[str, str]) -> str:
    """Return a type's name as format_type prints it with public in the search path."""
    schema, type_ = name
    shown = quote_identifier(type_)
    return shown if schema == _VISIBLE else f"{quote_identifier(schema)}.{shown}"
