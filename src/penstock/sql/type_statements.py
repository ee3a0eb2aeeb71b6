"""Statements about types (parsenodes.h, CreateEnumStmt, AlterEnumStmt).

In: what the grammar found. Out: frozen values.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.column_type_grammar import ColumnType
from penstock.sql.object_names import RangeVar
from penstock.sql.statements import Statement


@dataclass(frozen=True, slots=True)
class CreateEnum(Statement):
    """CREATE TYPE name AS ENUM (labels)."""

    name: RangeVar
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddEnumValue(Statement):
    """ALTER TYPE name ADD VALUE [IF NOT EXISTS] label [BEFORE | AFTER neighbor].

    ``neighbor`` None: at the end.
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
