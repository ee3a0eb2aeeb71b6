"""CREATE, ALTER and DROP PUBLICATION (publicationcmds.c, pg_publication.c).

In: a parsed statement, the catalog, the scope. Out: rows in the catalog and notices, or
PostgreSQL's error; nothing is changed when it raises. What may be in a publication together is
``publication_objects``'; row filters are the compiler's that the scope brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog import Catalog, CatalogTransaction, Publication
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_owner,
    role_of,
)
from penstock.commands.namespace import register_all
from penstock.commands.publication_objects import (
    PublicationRelInfo,
    PublishedObjects,
    add_schemas,
    add_tables,
    drop_schemas,
    drop_tables,
    is_same,
    open_objects,
    open_tables,
)
from penstock.commands.publication_options import parse_publication_options
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.errors import (
    DuplicateObject,
    InsufficientPrivilege,
    NotInPrerequisiteState,
)
from penstock.protocol.answers import Notice
from penstock.publication.rules import (
    check_column_list_allowed,
    check_leaves_allowed,
    check_schema_allowed,
)
from penstock.sql import (
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    CreatePublication,
    DropPublication,
    PublicationAction,
    RenamePublication,
)

_ALTERED = "ALTER PUBLICATION"


def create_publication(
    statement: CreatePublication, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """CreatePublication"""
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
    """AlterPublicationOptions"""
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
    """AlterPublicationTables and AlterPublicationSchemas"""
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
    """AlterPublicationOwner_internal"""
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
    """AlterObjectRename_internal"""
    with catalog.write() as transaction:
        publication = _get(transaction, scope, statement.name)
        if transaction.publications.find(statement.new_name) is not None:
            raise DuplicateObject(f'publication "{statement.new_name}" already exists')
        transaction.publications.save(replace(publication, name=statement.new_name))
    return CommandResult(_ALTERED)


def drop_publication(
    statement: DropPublication, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """RemoveObjects, all of them or none"""
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
    """CheckAlterPublication"""
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
