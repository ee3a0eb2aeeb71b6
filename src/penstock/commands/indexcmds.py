"""CREATE UNIQUE INDEX and DROP INDEX (indexcmds.c, tablecmds.c).

In: a parsed statement, the catalog, the scope. Out: indexes in the catalog alone, without files.
"""

from __future__ import annotations

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, UniqueIndex
from penstock.commands.aclchk import check_create_in_schema, check_owner
from penstock.commands.define_relation import UNDEFINED_COLUMN
from penstock.commands.depend import DEPENDENT_OBJECTS_STILL_EXIST, shown_name
from penstock.commands.generated_columns import check_not_virtual
from penstock.commands.namespace import (
    find_schema,
    get_schema,
    get_table,
    keep_former,
    register,
    table_columns,
)
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.unique_indexes import DUPLICATE_TABLE, add_index, is_taken
from penstock.commands.unique_indexes import drop_index as drop
from penstock.errors import NotInPrerequisiteState, UndefinedObject, WrongObjectType
from penstock.protocol.answers import Notice
from penstock.sql import CreateIndex, DropIndex, RangeVar
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import InvalidSchemaName


def create_index(statement: CreateIndex, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE UNIQUE INDEX (DefineIndex)."""
    with catalog.write() as transaction:
        table = get_table(transaction, scope, statement.relation)
        check_owner(scope.role, table.owner, "table", table.name)
        schema = get_schema(transaction, scope, table.schema)
        check_create_in_schema(scope, schema.owner, schema.name)
        name = statement.name
        if statement.missing_ok and name and is_taken(transaction, table.schema, name):
            message = f'relation "{name}" already exists, skipping'
            return CommandResult("CREATE INDEX", (notice(message, sqlstate=DUPLICATE_TABLE),))
        known = table_columns(scope, table)
        for column in statement.columns:
            if column not in known.names:
                raise UndefinedObject(
                    f'column "{column}" does not exist', sqlstate=UNDEFINED_COLUMN
                )
        check_not_virtual(statement.columns, known, "indexes")
        add_index(transaction, table, statement.columns, name, constraint=False)
    return CommandResult("CREATE INDEX")


def drop_index(statement: DropIndex, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP INDEX, for all indexes or none (RemoveRelations)."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        for name in statement.names:
            found = _index_to_drop(transaction, scope, name, statement.missing_ok, notices)
            if found is not None:
                before = transaction.tables.family(found[0])
                drop(transaction, *found)
                keep_former(transaction, scope, before)
    return CommandResult("DROP INDEX", tuple(notices))


def _index_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    name: RangeVar,
    missing_ok: bool,
    notices: list[Notice],
) -> tuple[LakeTable, UniqueIndex] | None:
    schemas = scope.search_path if name.schema is None else (name.schema,)
    if name.schema and find_schema(transaction, scope, name.schema) is None:
        missing = f'schema "{name.schema}" does not exist'
        if not missing_ok:
            raise InvalidSchemaName(missing)
        notices.append(notice(f"{missing}, skipping"))
        return None
    for schema in schemas:
        if register(transaction, scope, schema, name.name) is not None:
            raise WrongObjectType(
                f'"{name.name}" is not an index', hint="Use DROP TABLE to remove a table."
            )
        for table in transaction.tables.all():
            if table.schema == schema:
                index = _find_droppable(transaction, scope, table, name.name)
                if index is not None:
                    return table, index
    missing = f'index "{name.name}" does not exist'
    if not missing_ok:
        raise UndefinedObject(missing)
    notices.append(notice(f"{missing}, skipping"))
    return None


def _find_droppable(
    transaction: CatalogTransaction, scope: CommandScope, table: LakeTable, name: str
) -> UniqueIndex | None:
    """Return a table's index of that name, if it may be dropped. Raises NotInPrerequisiteState
    (2BP01)."""
    index = next((own for own in table.indexes if own.name == name), None)
    is_key = bool(table.primary_key) and name == table.primary_key_name
    if index is None and not is_key:
        return None
    check_owner(scope.role, table.owner, "index", name)
    shown = shown_name(transaction, scope, table.schema, name)
    if index is not None and index.parent is not None:
        owner, above = _index(transaction, index.parent)
        raise _required_error(
            shown, f"index {shown_name(transaction, scope, owner.schema, above.name)}"
        )
    if index is None or index.constraint:
        held_by = shown_name(transaction, scope, table.schema, table.name)
        raise _required_error(shown, f"constraint {quote_identifier(name)} on table {held_by}")
    return index


def _index(transaction: CatalogTransaction, oid: int) -> tuple[LakeTable, UniqueIndex]:
    return next((t, i) for t in transaction.tables.all() for i in t.indexes if i.oid == oid)


def _required_error(shown: str, what: str) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(
        f"cannot drop index {shown} because {what} requires it",
        hint=f"You can drop {what} instead.",
        sqlstate=DEPENDENT_OBJECTS_STILL_EXIST,
    )
