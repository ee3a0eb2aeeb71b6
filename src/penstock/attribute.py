"""Columns of tables (pg_attribute.h, FormData_pg_attribute; tupdesc.h).

In: what another form of a column says of it: a Relation message, a row of the publisher's catalogs,
a field of a Delta table. Out: frozen values that every room knows. The room that owns the other
form makes an ``Attribute`` of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AttGenerated(StrEnum):
    """pg_attribute.attgenerated; false for a column that is not generated."""

    NOT = ""
    STORED = "s"
    VIRTUAL = "v"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as pg_attribute and pg_attrdef have it.

    ``default``: a constant as SQL writes it. ``generation``: the expression, if the node generates
    the column. ``not_null``: the column was declared NOT NULL.
    """

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
