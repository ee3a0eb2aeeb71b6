"""ALTER TABLE and unique indexes (parsenodes.h, AlterTableStmt, IndexStmt).

REPLICA IDENTITY USING KEY (columns), an extension in ``parser``, needs no index, unlike
PostgreSQL's USING INDEX. A unique index of the lake is a constraint without an index structure.
Other kinds of indexes, and other forms of ALTER TABLE, are refused by name (0A000).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.sql.grammar.column import ColumnDef, Unique, column_def, table_constraint
from penstock.sql.grammar.names import (
    Readers,
    any_names,
    cascades,
    not_supported,
    relation,
    role_spec,
)
from penstock.sql.grammar.parsenodes import RangeVar, RoleSpec, Statement
from penstock.sql.grammar.partition_bound import PartitionBound, partition_bound
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source


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
class AlterNotNull:
    """ALTER [COLUMN] name { SET | DROP } NOT NULL"""

    name: str
    not_null: bool


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
    | AlterNotNull
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


_METHOD: Final = "btree"
_OF_A_COLUMN: Final = re.compile("AlterColumn|ColumnDefault|Identity|Expression|Statistics")


def _alter(raw: RawNode, source: Source) -> AlterTable:
    missing_ok, table = bool(raw.take("missing_ok")), relation(raw)
    commands = tuple(_command(RawNode.of(node), source) for node in raw.nodes("cmds"))
    return AlterTable(table, commands, missing_ok)


def _command(raw: RawNode, source: Source) -> AlterTableCommand:
    """Read ``alter_table_cmd`` or ``partition_cmd``."""
    kind, name = raw.take("subtype").removeprefix("AT_"), raw.take("name")
    missing_ok, cascade = bool(raw.take("missing_ok")), cascades(raw)
    definition = raw.node("def")
    inner = None if definition is None else RawNode.of(definition)
    found: AlterTableCommand
    match kind:
        case "AddColumn":
            assert inner is not None
            found = AddColumn(column_def(inner, source), missing_ok)
        case "AddConstraint":
            assert inner is not None
            key = table_constraint(inner)
            found = AddUnique(key) if isinstance(key, Unique) else AddPrimaryKey(key)
        case "DropColumn":
            found = DropColumn(name, missing_ok, cascade)
        case "SetNotNull" | "DropNotNull":
            found = AlterNotNull(name, kind == "SetNotNull")
        case "DropConstraint":
            found = DropConstraint(name, missing_ok)
        case "ReplicaIdentity":
            assert inner is not None
            found = _replica_identity(inner)
        case "ChangeOwner":
            found = ChangeOwner(role_spec(raw.take("newowner")))
        case "AttachPartition" | "DetachPartition":
            assert inner is not None
            found = _partition(inner)
        case _:
            verb = "ALTER" if _OF_A_COLUMN.search(kind) else _words(kind)
            raise not_supported(f"ALTER TABLE ... {verb}")
    raw.done()
    return found


def _words(kind: str) -> str:
    """Return the SQL words of a kind: ``SET LOGGED`` for ``SetLogged``."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", kind).upper()


def _replica_identity(raw: RawNode) -> SetReplicaIdentity:
    """Read REPLICA IDENTITY; for USING KEY, ``parser`` has added the field ``columns``."""
    found = SetReplicaIdentity(raw.take("identity_type"), raw.names("columns"), raw.take("name"))
    raw.done()
    return found


def _partition(raw: RawNode) -> AttachPartition | DetachPartition:
    if raw.take("concurrent"):
        raise not_supported("DETACH PARTITION CONCURRENTLY")
    table, bound = relation(raw, "name"), raw.node("bound")
    raw.done()
    return (
        DetachPartition(table) if bound is None else AttachPartition(table, partition_bound(bound))
    )


def _move_all(_raw: RawNode, _source: Source) -> AlterTable:
    raise not_supported("ALTER TABLE ALL IN TABLESPACE")


def _set_schema(raw: RawNode, _source: Source) -> SetSchema:
    return SetSchema(relation(raw), raw.take("newschema"), bool(raw.take("missing_ok")))


def _create_index(raw: RawNode, _source: Source) -> CreateIndex:
    if not raw.take("unique"):
        raise not_supported("CREATE INDEX")
    if raw.take("concurrent"):
        raise not_supported("CREATE INDEX CONCURRENTLY")
    table, method = relation(raw), raw.take("accessMethod")
    if table.only:
        raise not_supported("CREATE INDEX ... ON ONLY")
    if method != _METHOD:
        raise not_supported(f"CREATE UNIQUE INDEX ... USING {method}")
    if raw.take("nulls_not_distinct"):
        raise not_supported("UNIQUE NULLS NOT DISTINCT")
    if raw.take("indexIncludingParams"):
        raise not_supported("CREATE UNIQUE INDEX ... INCLUDE")
    columns = tuple(_index_column(node) for node in raw.nodes("indexParams"))
    return CreateIndex(table, columns, raw.take("idxname"), bool(raw.take("if_not_exists")))


def _index_column(node: Json) -> str:
    """Read an ``index_elem``. ASC and DESC are ignored: the index has no structure on disk."""
    raw = RawNode.of(node)
    if raw.take("expr"):
        raise not_supported("an index over expressions")
    if raw.take("collation") or raw.take("opclass"):
        raise not_supported("an index with collation or operator class")
    name = raw.take("name")
    raw.ignore("ordering", "nulls_ordering")
    raw.done()
    return str(name)


def _drop_index(raw: RawNode, _source: Source) -> DropIndex:
    if raw.take("concurrent"):
        raise not_supported("DROP INDEX CONCURRENTLY")
    return DropIndex(any_names(raw, "objects"), bool(raw.take("missing_ok")), cascades(raw))


def _rename(raw: RawNode, _source: Source) -> Statement:
    column = bool(raw.take("subname"))
    raise not_supported(f"ALTER TABLE ... RENAME{' COLUMN' if column else ''}")


READERS: Final[Readers] = {
    "AlterTableStmt OBJECT_TABLE": _alter,
    "AlterTableMoveAllStmt": _move_all,
    "AlterObjectSchemaStmt OBJECT_TABLE": _set_schema,
    "RenameStmt OBJECT_TABLE": _rename,
    "RenameStmt OBJECT_COLUMN": _rename,
    "IndexStmt": _create_index,
    "DropStmt OBJECT_INDEX": _drop_index,
}
