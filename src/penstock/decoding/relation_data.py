"""A table as a plugin sees it at a change (utils/rel.h, RelationData; pg_attribute).

The frozen values are a ``Relation`` and further facts from its source. Dropped columns are left
out; attributes are in the order of tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.attribute import AttGenerated, Attribute
from penstock.relation import Relation, ReplicaIdentity
from penstock.sql.text.quoting import quote_identifier, type_name, type_text


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeData(Attribute):
    """A column. ``type_name`` is as format_type_be prints it, without a modifier; ``type_text`` is
    as format_type_with_typemod does. ``position`` is attnum."""

    type_name: str
    type_text: str
    position: int
    primary_key: bool = False

    @property
    def quoted_name(self) -> str:
        """The name as quote_identifier prints it."""
        return quote_identifier(self.name)


@dataclass(frozen=True, slots=True)
class RelationData:
    """A table. ``attributes`` are those of ``relation.attributes``, in their order.

    ``rewrite_of`` is set for the rewritten heap of a table and names that table (relrewrite). Only
    plugins that set ``receive_rewrites`` see such heaps.
    """

    relation: Relation
    attributes: tuple[AttributeData, ...]
    rewrite_of: str | None = None

    @classmethod
    def of(
        cls,
        relation: Relation,
        *,
        type_names: Mapping[int, str] | None = None,
        not_null: Collection[str] = (),
        primary_key: Collection[str] = (),
        generated: Mapping[str, AttGenerated] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> RelationData:
        """Make the data of a relation. ``type_names`` are by oid, as format_type prints them, for
        types that are not built in. ``positions`` are attnums by name, needed where columns have
        been dropped."""
        own, kinds, numbers = type_names or {}, generated or {}, positions or {}
        attributes = tuple(
            AttributeData(
                a.name,
                a.type_oid,
                a.typmod,
                key=a.key,
                not_null=a.name in not_null or a.name in primary_key,
                generated=kinds.get(a.name, AttGenerated.NOT),
                type_name=own.get(a.type_oid) or type_name(a.type_oid),
                type_text=own.get(a.type_oid) or type_text(a.type_oid, a.typmod),
                position=numbers.get(a.name, number),
                primary_key=a.name in primary_key,
            )
            for number, a in enumerate(relation.attributes, 1)
        )
        return cls(relation, attributes)

    @property
    def oid(self) -> int:
        return self.relation.oid

    @property
    def schema(self) -> str:
        return self.relation.schema

    @property
    def name(self) -> str:
        return self.relation.name

    @property
    def replica_identity(self) -> ReplicaIdentity:
        return self.relation.replica_identity

    @property
    def quoted_name(self) -> str:
        """The name as quote_qualified_identifier prints it; a rewritten heap has its table's
        name."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.rewrite_of or self.name)}"
