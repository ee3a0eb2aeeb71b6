"""A table as a plugin sees it at a change (utils/rel.h, RelationData; pg_attribute).

In: a ``Relation`` and what its source knows besides. Out: frozen values. Dropped columns are no
part of them, and attributes stand in the order of tuples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.relation import AttGenerated, Relation, ReplicaIdentity
from penstock.sql.text.quoting import quote_identifier, type_name, type_text


@dataclass(frozen=True, slots=True)
class AttributeData:
    """A column. ``type_name``: as format_type_be prints it, without a modifier; ``type_text``: as
    format_type_with_typemod does. ``position``: attnum. ``key``: part of the replica identity.
    """

    name: str
    type_oid: int
    typmod: int
    type_name: str
    type_text: str
    position: int
    key: bool = False
    not_null: bool = False
    primary_key: bool = False
    generated: AttGenerated = AttGenerated.NOT

    @property
    def quoted_name(self) -> str:
        """quote_identifier"""
        return quote_identifier(self.name)


@dataclass(frozen=True, slots=True)
class RelationData:
    """A table. ``attributes``: one for each of ``relation.attributes``, in their order.

    ``rewrite_of``: the name of the table that this one is a rewritten heap of (relrewrite); only
    plugins that set ``receive_rewrites`` see such tables.
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
        """``type_names``: by oid, as format_type prints them, of types that are not built in.
        ``positions``: attnum by name, where columns have been dropped."""
        own, kinds, numbers = type_names or {}, generated or {}, positions or {}
        attributes = tuple(
            AttributeData(
                a.name,
                a.type_oid,
                a.typmod,
                own.get(a.type_oid) or type_name(a.type_oid),
                own.get(a.type_oid) or type_text(a.type_oid, a.typmod),
                numbers.get(a.name, number),
                a.key,
                a.name in not_null or a.name in primary_key,
                a.name in primary_key,
                kinds.get(a.name, AttGenerated.NOT),
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
        """quote_qualified_identifier, with the name that a rewritten table had."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.rewrite_of or self.name)}"
