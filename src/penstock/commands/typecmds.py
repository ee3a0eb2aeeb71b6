"""CREATE TYPE ... AS ENUM, ALTER TYPE ... ADD VALUE, DROP TYPE (typecmds.c, pg_enum.c).

Columns store enum values as labels; ``sql.typed.literals`` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable
from penstock.commands.aclchk import check_create_in_schema, check_owner
from penstock.commands.depend import check_not_being_made, still_used_error
from penstock.commands.namespace import (
    columns_of_types,
    creation_schema,
    find_enum,
    find_schema,
    register,
    shown_type,
)
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.enum_type import EnumType
from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    UndefinedObject,
    WrongObjectType,
)
from penstock.identifiers import quoted
from penstock.protocol.answers import Notice
from penstock.sql import AddEnumValue, ColumnType, CreateEnum, DropType
from penstock.sql.builtin import types_by_name
from penstock.sql.builtin.enum_types import enum_name
from penstock.sql.text.quoting import quote_identifier, type_name
from penstock.sqlstate import DependentObjectsStillExist

_MAX_LABEL_BYTES: Final = 63
"""The most bytes of a label (NAMEDATALEN - 1)."""
_INVALID_NAME: Final = "42602"
_UNIQUE_VIOLATION: Final = "23505"


def create_type(statement: CreateEnum, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE TYPE ... AS ENUM (DefineEnum)."""
    with catalog.write() as transaction:
        namespace = creation_schema(transaction, scope, statement.name)
        check_create_in_schema(scope, namespace.owner, namespace.name)
        schema, name = namespace.name, statement.name.name
        taken = transaction.types.find(schema, name) or register(transaction, scope, schema, name)
        if taken is not None:
            raise DuplicateObject(f'type "{name}" already exists')
        for label in statement.labels:
            _check_label(label)
        made = transaction.types.create(
            schema, name, tuple(dict.fromkeys(statement.labels)), scope.role.oid
        )
        _check_once(made, statement.labels)
    return CommandResult("CREATE TYPE")


def _check_label(label: str) -> None:
    if len(label.encode()) > _MAX_LABEL_BYTES:
        raise PenstockError(
            f'invalid enum label "{label}"',
            detail=f"Labels must be {_MAX_LABEL_BYTES} bytes or less.",
            sqlstate=_INVALID_NAME,
        )


def _check_once(made: EnumType, labels: Sequence[str]) -> None:
    """Raise the error of pg_enum's unique index if a label is given twice."""
    for position, label in enumerate(labels):
        if label in labels[:position]:
            raise DuplicateObject(
                'duplicate key value violates unique constraint "pg_enum_typid_label_index"',
                detail=f"Key (enumtypid, enumlabel)=({made.oid}, {label}) already exists.",
                sqlstate=_UNIQUE_VIOLATION,
            )


def add_value(statement: AddEnumValue, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run ALTER TYPE ... ADD VALUE (AlterEnum)."""
    written = ColumnType(statement.name.name, statement.name.schema)
    with catalog.write() as transaction:
        enum = _get_enum(transaction, scope, written)
        check_owner(scope.role, enum.owner, "type", enum_name(enum))
        _check_label(statement.label)
        if statement.label in enum.texts:
            message = f'enum label "{statement.label}" already exists'
            if not statement.missing_ok:
                raise DuplicateObject(message)
            skipped = notice(f"{message}, skipping", sqlstate=DuplicateObject.default_sqlstate)
            return CommandResult("ALTER TYPE", (skipped,))
        transaction.types.add_label(enum, statement.label, _place(enum, statement))
    return CommandResult("ALTER TYPE")


def _place(enum: EnumType, statement: AddEnumValue) -> int:
    """Return the index of the new label, counted from 0."""
    if statement.neighbor is None:
        return len(enum.labels)
    if statement.neighbor not in enum.texts:
        raise InvalidParameterValue(f'"{statement.neighbor}" is not an existing enum label')
    return enum.texts.index(statement.neighbor) + statement.after


def _get_enum(
    transaction: CatalogTransaction, scope: CommandScope, written: ColumnType
) -> EnumType:
    found = find_enum(transaction, scope, written)
    if found is None and written.schema is None and written.name in types_by_name():
        raise WrongObjectType(f"{types_by_name()[written.name].sql_name} is not an enum")
    if found is None:
        raise UndefinedObject(f'type "{shown_type(written)}" does not exist')
    return found


def drop_type(statement: DropType, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP TYPE: drop all of the types or none (RemoveObjects). If columns have one of the
    types, CASCADE is refused; PostgreSQL would drop these columns."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        dropped: dict[int, EnumType] = {}
        for written in statement.types:
            enum = _type_to_drop(transaction, scope, written, statement.missing_ok, notices)
            if enum is not None:
                check_owner(scope.role, enum.owner, "type", enum_name(enum))
                dropped[enum.oid] = enum
        for written in statement.types:
            _check_no_array(transaction, scope, written)
        check_unused(transaction, scope, tuple(dropped.values()), cascade=statement.cascade)
        check_not_being_made(transaction, enums=tuple(dropped.values()))
        for oid in dropped:
            transaction.types.delete(oid)
    return CommandResult("DROP TYPE", tuple(notices))


def _type_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    written: ColumnType,
    missing_ok: bool,
    notices: list[Notice],
) -> EnumType | None:
    missing_schema = written.schema and find_schema(transaction, scope, written.schema) is None
    if missing_schema and missing_ok:
        notices.append(notice(f'schema "{written.schema}" does not exist, skipping'))
        return None
    found = find_enum(transaction, scope, written)
    builtin = types_by_name().get(written.name) if written.schema is None else None
    if found is None and builtin is not None:
        oid = builtin.array if written.array else builtin.oid
        check_owner(scope.role, None, "type", type_name(oid))
        raise DependentObjectsStillExist(
            f"cannot drop type {type_name(oid)} because it is required by the database system"
        )
    if found is None and missing_ok:
        notices.append(notice(f'type "{shown_type(written)}" does not exist, skipping'))
    elif found is None:
        raise UndefinedObject(f'type "{shown_type(written)}" does not exist')
    return found


def _check_no_array(
    transaction: CatalogTransaction, scope: CommandScope, written: ColumnType
) -> None:
    """Refuse to drop the array type of an enum: it is only dropped with the enum."""
    enum = find_enum(transaction, scope, written) if written.array else None
    if enum is not None:
        name = enum_name(enum)
        raise DependentObjectsStillExist(
            f"cannot drop type {name}[] because type {name} requires it",
            hint=f"You can drop type {name} instead.",
        )


def check_unused(
    transaction: CatalogTransaction,
    scope: CommandScope,
    enums: Sequence[EnumType],
    *,
    cascade: bool,
) -> None:
    """Check that no column has one of these types. Raises NotInPrerequisiteState (2BP01), or with
    ``cascade`` FeatureNotSupported."""
    used = columns_of_types(transaction, scope, enums)
    if not used:
        return
    lines = [shown_user(scope, *user) for user in used]
    if cascade:
        tables = {table.oid: table for table, _, _ in used}.values()
        names = ", ".join(f"{quoted(t.schema)}.{quoted(t.name)}" for t in tables)
        raise FeatureNotSupported(
            "DROP TYPE ... CASCADE is not supported where columns are of the type",
            detail="\n".join(lines),
            hint=f"Drop the tables first: DROP TABLE {names};",
        )
    raise still_used_error(f"type {enum_name(enums[0])}" if len(enums) == 1 else None, lines)


def shown_user(scope: CommandScope, table: LakeTable, column: str, enum: EnumType) -> str:
    """Return ``column c of table t depends on type color``."""
    name = quote_identifier(table.name)
    if table.schema not in scope.search_path:
        name = f"{quote_identifier(table.schema)}.{name}"
    return f"column {quote_identifier(column)} of table {name} depends on type {enum_name(enum)}"
