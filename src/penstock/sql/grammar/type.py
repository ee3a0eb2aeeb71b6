"""Statements about types (parsenodes.h, CreateEnumStmt, AlterEnumStmt).

Only enums can be created; all other types are refused by name (0A000).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.sql.grammar.column import ColumnType, column_type
from penstock.sql.grammar.names import Readers, any_name, cascades, not_supported
from penstock.sql.grammar.parsenodes import RangeVar, Statement
from penstock.sql.grammar.raw_node import RawNode
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class CreateEnum(Statement):
    """CREATE TYPE name AS ENUM (labels)."""

    name: RangeVar
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddEnumValue(Statement):
    """ALTER TYPE name ADD VALUE [IF NOT EXISTS] label [BEFORE | AFTER neighbor].

    ``neighbor`` None: the label is added at the end.
    """

    name: RangeVar
    label: str
    neighbor: str | None = None
    after: bool = True
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropType(Statement):
    """DROP TYPE [IF EXISTS] types [CASCADE | RESTRICT]; ``missing_ok``: with IF EXISTS."""

    types: tuple[ColumnType, ...]
    missing_ok: bool = False
    cascade: bool = False


def _create(raw: RawNode, _source: Source) -> CreateEnum:
    return CreateEnum(any_name(raw.names("typeName")), raw.names("vals"))


def _add_value(raw: RawNode, _source: Source) -> AddEnumValue:
    if raw.take("oldVal") is not None:
        raise not_supported("ALTER TYPE ... RENAME VALUE")
    neighbor, after = raw.take("newValNeighbor"), bool(raw.take("newValIsAfter"))
    return AddEnumValue(
        any_name(raw.names("typeName")),
        raw.take("newVal") or "",
        neighbor,
        after,
        bool(raw.take("skipIfNewValExists")),
    )


def _drop(raw: RawNode, _source: Source) -> DropType:
    types = tuple(column_type(node["TypeName"]) for node in raw.nodes("objects"))
    return DropType(types, bool(raw.take("missing_ok")), cascades(raw))


READERS: Final[Readers] = {
    "CreateEnumStmt": _create,
    "AlterEnumStmt": _add_value,
    "DropStmt OBJECT_TYPE": _drop,
}
