"""Statements about publications (parsenodes.h, CreatePublicationStmt and its neighbours).

In: what the grammar found. Out: frozen values. A row filter is kept as its source text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.sql.object_names import RangeVar, RoleSpec
from penstock.sql.statements import DefElem, Statement


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """TABLE t [(columns)] [WHERE (where)]; ``where``: what stands between the parentheses."""

    relation: RangeVar
    columns: tuple[str, ...] | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class PublicationSchema:
    """TABLES IN SCHEMA name; None means CURRENT_SCHEMA."""

    name: str | None


PublicationObject = PublicationTable | PublicationSchema


class PublicationAction(Enum):
    """AlterPublicationAction."""

    ADD = "ADD"
    SET = "SET"
    DROP = "DROP"


@dataclass(frozen=True, slots=True)
class CreatePublication(Statement):
    """CREATE PUBLICATION name [FOR ALL TABLES | FOR objects] [WITH (...)]."""

    name: str
    objects: tuple[PublicationObject, ...] = ()
    all_tables: bool = False
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterPublicationOptions(Statement):
    """ALTER PUBLICATION name SET (...)."""

    name: str
    options: tuple[DefElem, ...]


@dataclass(frozen=True, slots=True)
class AlterPublicationObjects(Statement):
    """ALTER PUBLICATION name ADD | SET | DROP objects."""

    name: str
    action: PublicationAction
    objects: tuple[PublicationObject, ...]


@dataclass(frozen=True, slots=True)
class AlterPublicationOwner(Statement):
    """ALTER PUBLICATION name OWNER TO owner."""

    name: str
    owner: RoleSpec


@dataclass(frozen=True, slots=True)
class RenamePublication(Statement):
    """ALTER PUBLICATION name RENAME TO new_name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropPublication(Statement):
    """DROP PUBLICATION [IF EXISTS] names [CASCADE | RESTRICT]; the last has no effect."""

    names: tuple[str, ...]
    missing_ok: bool = False
