"""CREATE, ALTER and DROP PUBLICATION (publicationcmds.c, pg_publication.c).

``publication.rules`` decides which tables and schemas a publication may combine;
``publication.row_filter`` compiles row filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Publication, PublicationRel
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_owner,
    role_of,
)
from penstock.commands.define import conflicting_options, def_get_boolean, def_get_string
from penstock.commands.namespace import (
    find_schema,
    get_schema,
    get_table,
    register_all,
    table_columns,
)
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.errors import (
    DuplicateObject,
    InsufficientPrivilege,
    InvalidParameterValue,
    NotInPrerequisiteState,
    SqlSyntaxError,
    UndefinedObject,
)
from penstock.identifiers import split_identifiers
from penstock.protocol.answers import Notice
from penstock.publication.row_filter import compile_row_filter
from penstock.publication.rules import (
    check_column_list_allowed,
    check_leaves_allowed,
    check_row_filter_allowed,
    check_schema_allowed,
    column_list,
)
from penstock.sql import (
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    CreatePublication,
    DefElem,
    DropPublication,
    PublicationAction,
    PublicationObject,
    PublicationSchema,
    PublicationTable,
    RenamePublication,
)
from penstock.sqlstate import InvalidSchemaName

_ALTERED = "ALTER PUBLICATION"


def create_publication(
    statement: CreatePublication, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run CREATE PUBLICATION (CreatePublication)."""
    with catalog.write() as transaction:
        check_create_in_database(scope)
        if statement.all_tables and not scope.role.superuser:
            raise InsufficientPrivilege("must be superuser to create FOR ALL TABLES publication")
        if transaction.publications.find(statement.name) is not None:
            raise DuplicateObject(f'publication "{statement.name}" already exists')
        fields = parse_publication_options(statement.options)
        publication = transaction.publications.create(
            statement.name, owner=scope.role.oid, all_tables=statement.all_tables, **fields
        )
        objects = open_objects(transaction, scope, statement.objects)
        if objects.schemas and not scope.role.superuser:
            raise InsufficientPrivilege(
                "must be superuser to create FOR TABLES IN SCHEMA publication"
            )
        warnings: list[Notice] = []
        if statement.all_tables or objects.schemas:
            warnings = register_all(transaction, scope)
        rels = open_tables(transaction, scope, objects.tables, publication=publication)
        _check_column_lists(publication, rels, with_schemas=bool(objects.schemas))
        add_tables(transaction, scope, publication, rels, missing_ok=True)
        add_schemas(transaction, publication, objects.schemas, missing_ok=True)
    return CommandResult("CREATE PUBLICATION", tuple(warnings))


def alter_options(
    statement: AlterPublicationOptions, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run ALTER PUBLICATION ... SET (options) (AlterPublicationOptions)."""
    with catalog.write() as transaction:
        publication = _get(transaction, scope, statement.name)
        fields = parse_publication_options(statement.options)
        if not publication.all_tables and fields.get("via_root") is False:
            for rel in transaction.publications.relations(publication.oid):
                table = transaction.tables.find_oid(rel.relation)
                if table is not None:
                    check_leaves_allowed(publication, table, rel)
        transaction.publications.save(replace(publication, **fields))
    return CommandResult(_ALTERED)


def alter_objects(
    statement: AlterPublicationObjects, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run ALTER PUBLICATION ... ADD, DROP or SET of objects (AlterPublicationTables,
    AlterPublicationSchemas)."""
    with catalog.write() as transaction:
        publication = _get(transaction, scope, statement.name)
        objects = open_objects(transaction, scope, statement.objects)
        _check_alter(statement, publication, objects, scope)
        warnings = register_all(transaction, scope) if objects.schemas else []
        match statement.action:
            case PublicationAction.ADD:
                _add(transaction, scope, publication, objects)
            case PublicationAction.DROP:
                rels = open_tables(
                    transaction, scope, objects.tables, publication=publication, compile=False
                )
                drop_tables(transaction, publication, rels)
                drop_schemas(transaction, publication, objects.schemas)
            case PublicationAction.SET:
                _set(transaction, scope, publication, objects)
    return CommandResult(_ALTERED, tuple(warnings))


def alter_owner(
    statement: AlterPublicationOwner, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run ALTER PUBLICATION ... OWNER TO (AlterPublicationOwner_internal)."""
    with catalog.write() as transaction:
        owner = role_of(transaction, statement.owner, scope)
        publication = transaction.publications.get(statement.name)
        if publication.owner != owner.oid and not scope.role.superuser:
            check_owner(scope.role, publication.owner, "publication", publication.name)
            check_can_set_role(scope, owner)
        transaction.publications.save(replace(publication, owner=owner.oid))
    return CommandResult(_ALTERED)


def rename_publication(
    statement: RenamePublication, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run ALTER PUBLICATION ... RENAME TO (AlterObjectRename_internal)."""
    with catalog.write() as transaction:
        publication = _get(transaction, scope, statement.name)
        if transaction.publications.find(statement.new_name) is not None:
            raise DuplicateObject(f'publication "{statement.new_name}" already exists')
        transaction.publications.save(replace(publication, name=statement.new_name))
    return CommandResult(_ALTERED)


def drop_publication(
    statement: DropPublication, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run DROP PUBLICATION: drop all of the publications or none (RemoveObjects)."""
    notices = []
    with catalog.write() as transaction:
        found = {}
        for name in statement.names:
            if statement.missing_ok and transaction.publications.find(name) is None:
                notices.append(notice(f'publication "{name}" does not exist, skipping'))
                continue
            publication = _get(transaction, scope, name)
            found[publication.oid] = publication
        for oid in found:
            transaction.publications.delete(oid)
    return CommandResult("DROP PUBLICATION", tuple(notices))


def _get(transaction: CatalogTransaction, scope: CommandScope, name: str) -> Publication:
    publication = transaction.publications.get(name)
    check_owner(scope.role, publication.owner, "publication", name)
    return publication


def _check_alter(
    statement: AlterPublicationObjects,
    publication: Publication,
    objects: PublishedObjects,
    scope: CommandScope,
) -> None:
    """Check that ALTER PUBLICATION is allowed for the publication (CheckAlterPublication)."""
    adds = statement.action is not PublicationAction.DROP
    if adds and objects.schemas and not scope.role.superuser:
        raise InsufficientPrivilege("must be superuser to add or set schemas")
    for kind, given in (("Schemas", objects.schemas), ("Tables", objects.tables)):
        if given and publication.all_tables:
            raise NotInPrerequisiteState(
                f'publication "{publication.name}" is defined as FOR ALL TABLES',
                detail=f"{kind} cannot be added to or dropped from FOR ALL TABLES publications.",
            )


def _check_column_lists(
    publication: Publication, rels: Sequence[PublicationRelInfo], *, with_schemas: bool
) -> None:
    for rel in rels:
        if rel.listed is not None:
            check_column_list_allowed(publication, rel.table, with_schemas=with_schemas)


def _add(
    transaction: CatalogTransaction,
    scope: CommandScope,
    publication: Publication,
    objects: PublishedObjects,
) -> None:
    rels = open_tables(transaction, scope, objects.tables, publication=publication)
    has_schemas = bool(objects.schemas or transaction.publications.namespaces(publication.oid))
    _check_column_lists(publication, rels, with_schemas=has_schemas)
    add_tables(transaction, scope, publication, rels, missing_ok=False)
    if objects.schemas:
        listed = transaction.publications.relations(publication.oid)
        check_schema_allowed(
            publication, with_column_lists=any(rel.columns is not None for rel in listed)
        )
    add_schemas(transaction, publication, objects.schemas, missing_ok=False)


def _set(
    transaction: CatalogTransaction,
    scope: CommandScope,
    publication: Publication,
    objects: PublishedObjects,
) -> None:
    rels = open_tables(transaction, scope, objects.tables, publication=publication)
    _check_column_lists(publication, rels, with_schemas=bool(objects.schemas))
    wanted: dict[int, PublicationRelInfo] = {rel.table.oid: rel for rel in rels}
    for old in transaction.publications.relations(publication.oid):
        rel = wanted.get(old.relation)
        if rel is None or not is_same(scope, rel, old):
            transaction.publications.remove_relation(publication.oid, old.relation)
    add_tables(transaction, scope, publication, rels, missing_ok=True)
    for namespace in transaction.publications.namespaces(publication.oid):
        if namespace.schema not in objects.schemas:
            transaction.publications.remove_namespace(publication.oid, namespace.schema)
    add_schemas(transaction, publication, objects.schemas, missing_ok=True)


# Members of publications: tables with row filters and column lists, and schemas (publicationcmds.c,
# OpenTableList; pg_publication.c, publication_add_relation).

_SYSTEM_SCHEMAS: Final = frozenset({"pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True, slots=True)
class PublishedObjects:
    """The objects in a statement: tables as written, and names of schemas without duplicates."""

    tables: tuple[PublicationTable, ...]
    schemas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublicationRelInfo:
    """A table in a statement. ``listed``: its column list as written; ``row_filter``: the text of
    the compiled filter; ``filtered``: the table has a WHERE clause."""

    table: LakeTable
    listed: tuple[str, ...] | None
    row_filter: str | None
    filtered: bool


def open_objects(
    transaction: CatalogTransaction, scope: CommandScope, objects: Sequence[PublicationObject]
) -> PublishedObjects:
    """Split objects into tables and schemas (ObjectsInPublicationToOids). Raises 3F000."""
    tables = tuple(item for item in objects if isinstance(item, PublicationTable))
    schemas: dict[str, None] = {}
    for item in objects:
        if isinstance(item, PublicationSchema):
            schemas[_schema(transaction, scope, item.name)] = None
    return PublishedObjects(tables, tuple(schemas))


def _schema(transaction: CatalogTransaction, scope: CommandScope, name: str | None) -> str:
    if name is None:
        for schema in scope.search_path:
            if find_schema(transaction, scope, schema) is not None:
                return schema
        raise InvalidSchemaName("no schema has been selected for CURRENT_SCHEMA")
    if name in _SYSTEM_SCHEMAS:
        return name
    return get_schema(transaction, scope, name).name


def open_tables(
    transaction: CatalogTransaction,
    scope: CommandScope,
    tables: Sequence[PublicationTable],
    *,
    publication: Publication,
    compile: bool = True,
) -> list[PublicationRelInfo]:
    """Look up the tables of a statement (OpenTableList). With ``compile``, also compile their row
    filters (TransformPubWhereClauses)."""
    opened = [(get_table(transaction, scope, item.relation), item) for item in tables]
    first: dict[int, tuple[LakeTable, PublicationTable]] = {}
    for table, item in opened:
        if table.oid in first:
            _check_repetition(table, item, first[table.oid][1])
        else:
            first[table.oid] = (table, item)
    return [_rel_info(scope, publication, table, item, compile) for table, item in first.values()]


def _check_repetition(table: LakeTable, item: PublicationTable, first: PublicationTable) -> None:
    if item.where is not None or first.where is not None:
        raise DuplicateObject(f'conflicting or redundant WHERE clauses for table "{table.name}"')
    if item.columns is not None or first.columns is not None:
        raise DuplicateObject(f'conflicting or redundant column lists for table "{table.name}"')


def _rel_info(
    scope: CommandScope,
    publication: Publication,
    table: LakeTable,
    item: PublicationTable,
    compile: bool,
) -> PublicationRelInfo:
    row_filter = None
    if compile and item.where is not None:
        check_row_filter_allowed(publication, table)
        row_filter = _compile(scope, table, item.where)
    return PublicationRelInfo(table, item.columns, row_filter, item.where is not None)


def _compile(scope: CommandScope, table: LakeTable, where: str) -> str:
    return compile_row_filter(where, table_columns(scope, table), table=table.name).text


def add_tables(
    transaction: CatalogTransaction,
    scope: CommandScope,
    publication: Publication,
    rels: Sequence[PublicationRelInfo],
    *,
    missing_ok: bool,
) -> None:
    """Add tables to a publication (PublicationAddTables)."""
    members = {rel.relation for rel in transaction.publications.relations(publication.oid)}
    for rel in rels:
        check_owner(scope.role, rel.table.owner, "table", rel.table.name)
        if rel.table.oid in members:
            if missing_ok:
                continue
            raise DuplicateObject(
                f'relation "{rel.table.name}" is already member of publication "{publication.name}"'
            )
        transaction.publications.add_relation(
            publication.oid, rel.table.oid, _columns(scope, rel), rel.row_filter
        )


def is_same(scope: CommandScope, rel: PublicationRelInfo, old: PublicationRel) -> bool:
    """Tell whether the publication has a table with the row filter and columns of a statement."""
    return (_columns(scope, rel), rel.row_filter) == (old.columns, old.row_filter)


def _columns(scope: CommandScope, rel: PublicationRelInfo) -> tuple[str, ...] | None:
    if rel.listed is None:
        return None
    return column_list(rel.listed, table_columns(scope, rel.table), table=rel.table.name)


def drop_tables(
    transaction: CatalogTransaction, publication: Publication, rels: Sequence[PublicationRelInfo]
) -> None:
    """Remove tables from a publication (PublicationDropTables)."""
    members = {rel.relation for rel in transaction.publications.relations(publication.oid)}
    for rel in rels:
        if rel.listed is not None:
            raise SqlSyntaxError("column list must not be specified in ALTER PUBLICATION ... DROP")
        if rel.table.oid not in members:
            raise UndefinedObject(f'relation "{rel.table.name}" is not part of the publication')
        if rel.filtered:
            raise SqlSyntaxError(
                "cannot use a WHERE clause when removing a table from a publication"
            )
        transaction.publications.remove_relation(publication.oid, rel.table.oid)


def add_schemas(
    transaction: CatalogTransaction,
    publication: Publication,
    schemas: Sequence[str],
    *,
    missing_ok: bool,
) -> None:
    """Add schemas to a publication (PublicationAddSchemas)."""
    members = {row.schema for row in transaction.publications.namespaces(publication.oid)}
    for schema in schemas:
        if schema in members:
            if missing_ok:
                continue
            raise DuplicateObject(
                f'schema "{schema}" is already member of publication "{publication.name}"'
            )
        if schema in _SYSTEM_SCHEMAS:
            raise InvalidParameterValue(
                f'cannot add schema "{schema}" to publication',
                detail="This operation is not supported for system schemas.",
            )
        transaction.publications.add_namespace(publication.oid, schema)


def drop_schemas(
    transaction: CatalogTransaction, publication: Publication, schemas: Sequence[str]
) -> None:
    """Remove schemas from a publication (PublicationDropSchemas)."""
    members = {row.schema for row in transaction.publications.namespaces(publication.oid)}
    for schema in schemas:
        if schema not in members:
            raise UndefinedObject(f'tables from schema "{schema}" are not part of the publication')
        transaction.publications.remove_namespace(publication.oid, schema)


# Options of publications (publicationcmds.c, parse_publication_options).

_ACTIONS: Final = ("insert", "update", "delete", "truncate")
_GENERATED_COLUMNS: Final = {"none": "n", "stored": "s"}


def parse_publication_options(options: Sequence[DefElem]) -> dict[str, Any]:
    """Return the options as fields of ``Publication``: name -> value. Raises SqlSyntaxError."""
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for option in options:
        reader = _READERS.get(option.name)
        if reader is None:
            raise SqlSyntaxError(f'unrecognized publication parameter: "{option.name}"')
        if option.name in seen:
            raise conflicting_options()
        seen.add(option.name)
        fields |= reader(option)
    return fields


def _publish(option: DefElem) -> dict[str, Any]:
    actions = split_identifiers(def_get_string(option))
    if actions is None:
        raise SqlSyntaxError('invalid list syntax in parameter "publish"')
    for action in actions:
        if action not in _ACTIONS:
            raise SqlSyntaxError(f'unrecognized value for publication option "publish": "{action}"')
    return {action: action in actions for action in _ACTIONS}


def _via_root(option: DefElem) -> dict[str, Any]:
    return {"via_root": def_get_boolean(option)}


def _generated_columns(option: DefElem) -> dict[str, Any]:
    """Read publish_generated_columns (defGetGeneratedColsOption)."""
    text = "" if option.arg is None else str(option.arg)
    value = _GENERATED_COLUMNS.get(text.lower())
    if value is None:
        raise SqlSyntaxError(
            f'invalid value for publication parameter "{option.name}": "{text}"',
            detail='Valid values are "none" and "stored".',
        )
    return {"generated_columns": value}


_READERS: Final = {
    "publish": _publish,
    "publish_via_partition_root": _via_root,
    "publish_generated_columns": _generated_columns,
}
