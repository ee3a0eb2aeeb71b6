"""ALTER TABLE (gram.y, AlterTableStmt).

In: a cursor behind the words ALTER TABLE. Out: ``AlterTable`` or ``SetSchema``. USING KEY (columns)
needs no index, unlike PostgreSQL's USING INDEX; forms that change columns are refused by name
(0A000).
"""

from __future__ import annotations

from typing import Final

from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import words
from penstock.sql.object_names import column_list, qualified_name, relation_expr, role_spec
from penstock.sql.partition_bound import partition_bound
from penstock.sql.table_grammar import column_def, table_constraint
from penstock.sql.table_statements import (
    AddColumn,
    AddPrimaryKey,
    AddUnique,
    AlterTable,
    AlterTableCommand,
    AttachPartition,
    ChangeOwner,
    DetachPartition,
    DropColumn,
    DropConstraint,
    SetReplicaIdentity,
    SetSchema,
    Unique,
)

_OTHER_FORMS: Final = words(
    "alter rename set reset cluster enable disable force no inherit validate of not options"
)


def alter_table(cursor: Cursor) -> AlterTable | SetSchema:
    """[IF EXISTS] relation_expr and its commands, or SET SCHEMA (AlterObjectSchemaStmt)"""
    missing_ok = cursor.accept("if", "exists")
    if cursor.accept("all", "in", "tablespace"):
        raise not_supported("ALTER TABLE ALL IN TABLESPACE")
    relation = relation_expr(cursor)
    if cursor.accept("set", "schema"):
        schema = cursor.name()
        cursor.expect_end()
        return SetSchema(relation, schema, missing_ok, notices=cursor.notices)
    if cursor.word() in ("attach", "detach"):
        commands = [_partition_command(cursor)]
    else:
        commands = [_command(cursor)]
        while cursor.accept_symbol(","):
            commands.append(_command(cursor))
    cursor.expect_end()
    return AlterTable(relation, tuple(commands), missing_ok, notices=cursor.notices)


def _partition_command(cursor: Cursor) -> AlterTableCommand:
    """``partition_cmd``"""
    attach = cursor.take().value == "attach"
    cursor.expect("partition")
    relation = qualified_name(cursor)
    if attach:
        return AttachPartition(relation, partition_bound(cursor))
    if cursor.accept_any("concurrently", "finalize"):
        raise not_supported("DETACH PARTITION CONCURRENTLY")
    return DetachPartition(relation)


def _command(cursor: Cursor) -> AlterTableCommand:
    """``alter_table_cmd``"""
    if cursor.accept("add"):
        return _add(cursor)
    if cursor.accept("drop", "constraint"):
        return _drop_constraint(cursor)
    if cursor.accept("drop"):
        return _drop_column(cursor)
    if cursor.accept("replica"):
        cursor.expect("identity")
        return _replica_identity(cursor)
    if cursor.accept("owner"):
        cursor.expect("to")
        return ChangeOwner(role_spec(cursor))
    if cursor.word() in _OTHER_FORMS:
        raise not_supported(f"ALTER TABLE ... {str(cursor.word()).upper()}")
    raise cursor.syntax_error()


def _add(cursor: Cursor) -> AlterTableCommand:
    if cursor.accept("column"):
        return _add_column(cursor)
    key = table_constraint(cursor)
    if isinstance(key, Unique):
        return AddUnique(key)
    if key is not None:
        return AddPrimaryKey(key)
    return _add_column(cursor)


def _drop_constraint(cursor: Cursor) -> DropConstraint:
    missing_ok = cursor.accept("if", "exists")
    name = cursor.name()
    cursor.opt_drop_behavior()
    return DropConstraint(name, missing_ok)


def _add_column(cursor: Cursor) -> AddColumn:
    missing_ok = cursor.accept("if", "not", "exists")
    return AddColumn(column_def(cursor), missing_ok)


def _drop_column(cursor: Cursor) -> DropColumn:
    cursor.accept("column")
    missing_ok = cursor.accept("if", "exists")
    name = cursor.name()
    return DropColumn(name, missing_ok, cursor.opt_drop_behavior())


def _replica_identity(cursor: Cursor) -> SetReplicaIdentity:
    """``replica_identity``, and USING KEY"""
    if cursor.accept("nothing"):
        return SetReplicaIdentity("n")
    if cursor.accept("full"):
        return SetReplicaIdentity("f")
    if cursor.accept("default"):
        return SetReplicaIdentity("d")
    cursor.expect("using")
    if cursor.accept("key"):
        return SetReplicaIdentity("i", column_list(cursor))
    cursor.expect("index")
    return SetReplicaIdentity("i", index=cursor.name())
