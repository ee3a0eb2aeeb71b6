"""Statements about tables and schemas (parsenodes.h, CreateStmt, AlterTableStmt).

In: what the grammar found. Out: frozen values. Types are names; what they are is looked up later.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.relation import AttGenerated
from penstock.sql.column_type_grammar import ColumnType
from penstock.sql.object_names import RangeVar, RoleSpec
from penstock.sql.partition_bound import PartitionBound, Strategy
from penstock.sql.quoting import quote_identifier
from penstock.sql.statements import Statement


@dataclass(frozen=True, slots=True)
class Unique:
    """[CONSTRAINT name] UNIQUE (columns)"""

    columns: tuple[str, ...]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """GENERATED ALWAYS AS (expression) STORED or VIRTUAL; the expression as it was written."""

    expression: str
    kind: AttGenerated


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """A column with the constraints that were written behind it.

    ``default``: a constant as SQL writes it, or ``now()``. ``generations``: each GENERATED.
    """

    name: str
    type: ColumnType
    not_null: bool = False
    null: bool = False
    primary_key: bool = False
    default: str | None = None
    generations: tuple[Generation, ...] = ()
    references: RangeVar | None = None
    unique: Unique | None = None


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """PARTITION BY strategy (columns)."""

    strategy: Strategy
    columns: tuple[str, ...]

    def __str__(self) -> str:
        """As the catalog keeps it: ``RANGE (a, b)`` (pg_get_partkeydef)."""
        return f"{self.strategy.name} ({', '.join(map(quote_identifier, self.columns))})"


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """CREATE TABLE. ``primary_keys``, ``uniques``: each PRIMARY KEY (...) and UNIQUE (...) of the
    table form, in order.

    ``parent`` and ``bound``: of PARTITION OF, which takes its columns from there, with
    ``defaults`` of its own. ``like``: a table whose columns come behind the first ``like_at``.
    """

    relation: RangeVar
    columns: tuple[ColumnDef, ...] = ()
    primary_keys: tuple[tuple[str, ...], ...] = ()
    missing_ok: bool = False
    partition_by: PartitionSpec | None = None
    parent: RangeVar | None = None
    bound: PartitionBound | None = None
    defaults: tuple[tuple[str, str | None], ...] = ()
    like: RangeVar | None = None
    like_at: int = 0
    uniques: tuple[Unique, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTableAs(Statement):
    """CREATE TABLE relation [(columns)] AS query [WITH [NO] DATA]."""

    relation: RangeVar
    columns: tuple[str, ...]
    query: str
    missing_ok: bool = False
    with_data: bool = True


@dataclass(frozen=True, slots=True)
class DropTable(Statement):
    """DROP TABLE [IF EXISTS] relations [CASCADE | RESTRICT]."""

    relations: tuple[RangeVar, ...]
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ADD [COLUMN] [IF NOT EXISTS] column"""

    column: ColumnDef
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """DROP [COLUMN] [IF EXISTS] name [CASCADE | RESTRICT]"""

    name: str
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class AddPrimaryKey:
    """ADD [CONSTRAINT name] PRIMARY KEY (columns)"""

    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddUnique:
    """ADD [CONSTRAINT name] UNIQUE (columns)"""

    unique: Unique


@dataclass(frozen=True, slots=True)
class SetReplicaIdentity:
    """REPLICA IDENTITY kind: ``d`` DEFAULT, ``f`` FULL, ``n`` NOTHING, ``i`` USING KEY (key), or
    USING INDEX ``index``."""

    kind: str
    key: tuple[str, ...] = ()
    index: str | None = None


@dataclass(frozen=True, slots=True)
class DropConstraint:
    """DROP CONSTRAINT [IF EXISTS] name [CASCADE | RESTRICT]"""

    name: str
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class ChangeOwner:
    """OWNER TO owner"""

    owner: RoleSpec


@dataclass(frozen=True, slots=True)
class AttachPartition:
    """ATTACH PARTITION relation bound"""

    relation: RangeVar
    bound: PartitionBound


@dataclass(frozen=True, slots=True)
class DetachPartition:
    """DETACH PARTITION relation"""

    relation: RangeVar


AlterTableCommand = (
    AddColumn
    | DropColumn
    | AddPrimaryKey
    | AddUnique
    | DropConstraint
    | SetReplicaIdentity
    | ChangeOwner
    | AttachPartition
    | DetachPartition
)


@dataclass(frozen=True, slots=True)
class AlterTable(Statement):
    """ALTER TABLE [IF EXISTS] relation commands."""

    relation: RangeVar
    commands: tuple[AlterTableCommand, ...]
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class SetSchema(Statement):
    """ALTER TABLE [IF EXISTS] relation SET SCHEMA schema."""

    relation: RangeVar
    schema: str
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class CreateIndex(Statement):
    """CREATE UNIQUE INDEX [[IF NOT EXISTS] name] ON relation (columns)"""

    relation: RangeVar
    columns: tuple[str, ...]
    name: str | None = None
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropIndex(Statement):
    """DROP INDEX [IF EXISTS] names [CASCADE | RESTRICT]"""

    names: tuple[RangeVar, ...]
    missing_ok: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class CreateSchema(Statement):
    """CREATE SCHEMA [IF NOT EXISTS] [name] [AUTHORIZATION owner]; no name: the owner's."""

    name: str | None
    owner: RoleSpec | None = None
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class DropSchema(Statement):
    """DROP SCHEMA [IF EXISTS] names [CASCADE | RESTRICT]."""

    names: tuple[str, ...]
    missing_ok: bool = False
    cascade: bool = False
