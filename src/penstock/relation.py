"""Published relations as the publisher describes them (logicalproto.h, LogicalRepRelation).

In: the fields of a Relation message or of the publisher's catalogs. Out: frozen values that every
room knows. Nothing here knows Delta: what a relation becomes in the lake is
``penstock.lakehouse.schema``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReplicaIdentity(Enum):
    """pg_class.relreplident."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One published column. ``key``: part of the replica identity (flag 1 in Relation messages)."""

    name: str
    type_oid: int
    typmod: int = -1
    key: bool = False


@dataclass(frozen=True, slots=True)
class Relation:
    """One published table with its published columns in the order in which tuples carry them."""

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    attributes: tuple[Attribute, ...]

    @property
    def qualified_name(self) -> str:
        """``schema.name``, unquoted, as PostgreSQL's messages print it."""
        return f"{self.schema}.{self.name}"

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the replica identity's columns; all columns for FULL, none for NOTHING."""
        return tuple(a.name for a in self.attributes if a.key)
