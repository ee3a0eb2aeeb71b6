"""Published relations as the publisher describes them (logicalproto.h, LogicalRepRelation).

In: the fields of a Relation message or of the publisher's catalogs. Out: frozen values that every
room knows. Nothing here knows Delta: what a relation becomes in the lake is
``penstock.lakehouse.schema``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

from penstock.identifiers import quoted

TableName = tuple[str, str]
"""Schema and name. What is looked up by its name is looked up by this, never by a text."""

_PUBLIC: Final = "public"
_AMBIGUOUS: Final = frozenset('."')


def qualified(schema: str, table: str) -> str:
    """``schema.table`` for people; different tables never have the same text.

    Unquoted, as PostgreSQL's messages print it, except for a part with a dot or a quote.
    """
    return f"{_part(schema)}.{_part(table)}"


def table_of_option(parts: tuple[str, ...] | None) -> TableName | None:
    """A table as options of subscriptions name it, without a schema in public; None: it is no
    name of one."""
    match parts:
        case (schema, table):
            return schema, table
        case (table,):
            return _PUBLIC, table
        case _:
            return None


def _part(name: str) -> str:
    if _AMBIGUOUS.isdisjoint(name):
        return name
    return quoted(name)


class ReplicaIdentity(Enum):
    """pg_class.relreplident; a table of the lake has INDEX by USING KEY, too."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class AttGenerated(StrEnum):
    """pg_attribute.attgenerated; false for a column that is not generated."""

    NOT = ""
    STORED = "s"
    VIRTUAL = "v"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as pg_attribute and pg_attrdef have it. ``default``: a constant as SQL
    writes it; ``generation``: the expression where the node generates it; ``not_null``: NOT NULL
    was said of it."""

    name: str
    type_oid: int
    typmod: int = -1
    generated: AttGenerated = AttGenerated.NOT
    collation: str = "default"
    default: str | None = None
    generation: str | None = None
    not_null: bool = False


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
        """Its name for people (``qualified``)."""
        return qualified(self.schema, self.name)

    @property
    def table_name(self) -> TableName:
        """Its name to look it up by."""
        return self.schema, self.name

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the replica identity's columns; all columns for FULL, none for NOTHING."""
        return tuple(a.name for a in self.attributes if a.key)
