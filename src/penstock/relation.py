"""Published relations as the publisher describes them (logicalproto.h, LogicalRepRelation).

Fields of a Relation message or of the publisher's catalogs become frozen values that every room
knows. Nothing here depends on Delta: ``penstock.lakehouse.schema`` turns a relation into a table of
the lake.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.attribute import Attribute
from penstock.identifiers import quoted

TableName = tuple[str, str]
"""Schema and name. Look tables up by this pair, never by a joined text."""

_PUBLIC: Final = "public"
_AMBIGUOUS: Final = frozenset('."')


def qualified(schema: str, table: str) -> str:
    """Return ``schema.table`` for people; different tables never have the same text.

    Parts are unquoted, as PostgreSQL's messages print them, except for those with a dot or a quote.
    """
    return f"{_part(schema)}.{_part(table)}"


def table_of_option(parts: tuple[str, ...] | None) -> TableName | None:
    """Return the table that an option of a subscription names, by default in public.

    Returns None if the parts are no table's name.
    """
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
    """pg_class.relreplident. A table of the lake gets INDEX by USING KEY, too."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Relation:
    """A published table with its published columns, in the order of its tuples."""

    oid: int
    schema: str
    name: str
    replica_identity: ReplicaIdentity
    attributes: tuple[Attribute, ...]

    @property
    def qualified_name(self) -> str:
        """The relation's name for people (``qualified``)."""
        return qualified(self.schema, self.name)

    @property
    def table_name(self) -> TableName:
        """The relation's name for look-ups."""
        return self.schema, self.name

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the replica identity's columns; all columns for FULL, none for NOTHING."""
        return tuple(a.name for a in self.attributes if a.key)
