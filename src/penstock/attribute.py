"""Columns of tables (pg_attribute.h, FormData_pg_attribute; tupdesc.h).

A column has other forms too: in a Relation message, in the publisher's catalogs, as a field of a
Delta table. The room that owns such a form converts it to an ``Attribute``, a frozen value that
every room knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from functools import cached_property


class AttGenerated(StrEnum):
    """pg_attribute.attgenerated; its empty member, for a column that is not generated, is false."""

    NOT = ""
    STORED = "s"
    VIRTUAL = "v"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a table, as pg_attribute and pg_attrdef have it.

    ``type_oid``: 0 if the stored form of the values determines the type. ``identity``: attidentity.
    ``default``: the default as SQL writes it. ``generation``: the expression of a generated column,
    if the node knows it. ``key``: the column is part of the replica identity (flag 1 in Relation
    messages).
    """

    name: str
    type_oid: int
    typmod: int = -1
    _: KW_ONLY
    not_null: bool = False
    generated: AttGenerated = AttGenerated.NOT
    identity: str = ""
    default: str | None = None
    generation: str | None = None
    collation: str = "default"
    key: bool = False

    def has_type_of(self, other: Attribute) -> bool:
        """Tell whether both columns have the same type and modifier."""
        return (self.type_oid, self.typmod) == (other.type_oid, other.typmod)

    def of_type(self, other: Attribute) -> Attribute:
        """Return this column with the type and the modifier of another one."""
        return replace(self, type_oid=other.type_oid, typmod=other.typmod)


class TupleDesc(tuple[Attribute, ...]):
    """The columns of a table in their order (tupdesc.h)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(attribute.name for attribute in self)

    @cached_property
    def by_name(self) -> Mapping[str, Attribute]:
        """The columns by their names."""
        return {attribute.name: attribute for attribute in self}

    def number(self, name: str) -> int | None:
        """Return a column's attnum, from 1; None if no column has the name (attnameAttNum)."""
        return next((n for n, attribute in enumerate(self, 1) if attribute.name == name), None)
