"""Statements about publications (parsenodes.h, CreatePublicationStmt and its neighbours).

A row filter is kept as SQL text, which the row filter compiler parses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.sql.grammar.names import Readers, cascades, options, relation, role_spec
from penstock.sql.grammar.parsenodes import DefElem, RangeVar, RoleSpec, Statement
from penstock.sql.grammar.raw_node import Json, RawNode, string
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class PublicationTable:
    """TABLE t [(columns)] [WHERE (where)]; ``where``: the text between the parentheses."""

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


_ACTIONS: Final = {
    "AP_AddObjects": PublicationAction.ADD,
    "AP_SetObjects": PublicationAction.SET,
    "AP_DropObjects": PublicationAction.DROP,
}


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


def _create(raw: RawNode, source: Source) -> CreatePublication:
    return CreatePublication(
        raw.take("pubname"),
        _objects(raw, source),
        bool(raw.take("for_all_tables")),
        options(raw),
    )


def _alter(raw: RawNode, source: Source) -> Statement:
    name, given, objects = raw.take("pubname"), options(raw), _objects(raw, source)
    action = _ACTIONS[raw.take("action")]
    raw.expect("for_all_tables", None)
    if given:
        return AlterPublicationOptions(name, given)
    return AlterPublicationObjects(name, action, objects)


def _objects(raw: RawNode, source: Source) -> tuple[PublicationObject, ...]:
    return tuple(_object(node, source) for node in raw.nodes("pubobjects"))


def _object(node: Json, source: Source) -> PublicationObject:
    raw = RawNode.of(node)
    kind, name, fields = raw.take("pubobjtype"), raw.take("name"), raw.node("pubtable")
    raw.done()
    if fields is None:
        return PublicationSchema(name if kind == "PUBLICATIONOBJ_TABLES_IN_SCHEMA" else None)
    table = RawNode("PublicationTable", fields)
    found = PublicationTable(
        relation(table),
        table.names("columns") or None,
        source.where(fields["relation"]["location"]) if table.node("whereClause") else None,
    )
    table.done()
    return found


def _owner(raw: RawNode, _source: Source) -> AlterPublicationOwner:
    return AlterPublicationOwner(string(raw.take("object")), role_spec(raw.take("newowner")))


def _rename(raw: RawNode, _source: Source) -> RenamePublication:
    raw.ignore("relationType", "behavior")
    return RenamePublication(string(raw.take("object")), raw.take("newname"))


def _drop(raw: RawNode, _source: Source) -> DropPublication:
    cascades(raw)
    return DropPublication(raw.names("objects"), bool(raw.take("missing_ok")))


READERS: Final[Readers] = {
    "CreatePublicationStmt": _create,
    "AlterPublicationStmt": _alter,
    "AlterOwnerStmt OBJECT_PUBLICATION": _owner,
    "RenameStmt OBJECT_PUBLICATION": _rename,
    "DropStmt OBJECT_PUBLICATION": _drop,
}
