"""What is in a publication: tables with their filters and lists, schemas (publicationcmds.c,
OpenTableList and its neighbours; pg_publication.c, publication_add_relation).

In: objects as written. Out: checked values and rows of the catalog, or PostgreSQL's errors, in the
order in which PostgreSQL finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable, Publication, PublicationRel
from penstock.commands.aclchk import check_owner
from penstock.commands.namespace import get_schema, get_table, table_columns
from penstock.commands.scope import CommandScope
from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    SqlSyntaxError,
    UndefinedObject,
)
from penstock.publication.row_filter import compile_row_filter
from penstock.publication.rules import check_row_filter_allowed, column_list
from penstock.sql import (
    PublicationObject,
    PublicationSchema,
    PublicationTable,
)
from penstock.sqlstate import InvalidSchemaName

_SYSTEM_SCHEMAS: Final = frozenset({"pg_catalog", "information_schema", "pg_toast"})


@dataclass(frozen=True, slots=True)
class PublishedObjects:
    """Objects of a statement: tables as written, names of schemas without repetition."""

    tables: tuple[PublicationTable, ...]
    schemas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublicationRelInfo:
    """A table that a statement names. ``listed``: columns as written; ``row_filter``: compiled, as
    text; ``filtered``: WHERE was written."""

    table: LakeTable
    listed: tuple[str, ...] | None
    row_filter: str | None
    filtered: bool


def open_objects(
    transaction: CatalogTransaction, scope: CommandScope, objects: Sequence[PublicationObject]
) -> PublishedObjects:
    """ObjectsInPublicationToOids. Raises UndefinedObject (3F000)."""
    tables = tuple(item for item in objects if isinstance(item, PublicationTable))
    schemas: dict[str, None] = {}
    for item in objects:
        if isinstance(item, PublicationSchema):
            schemas[_schema(transaction, scope, item.name)] = None
    return PublishedObjects(tables, tuple(schemas))


def _schema(transaction: CatalogTransaction, scope: CommandScope, name: str | None) -> str:
    if name is None:
        if not scope.search_path:
            raise InvalidSchemaName("no schema has been selected for CURRENT_SCHEMA")
        return scope.search_path[0]
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
    """OpenTableList and TransformPubWhereClauses; without ``compile`` filters are left alone."""
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
    """PublicationAddTables"""
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
    """Whether a table is in the publication as a statement wants it."""
    return (_columns(scope, rel), rel.row_filter) == (old.columns, old.row_filter)


def _columns(scope: CommandScope, rel: PublicationRelInfo) -> tuple[str, ...] | None:
    if rel.listed is None:
        return None
    return column_list(rel.listed, table_columns(scope, rel.table), table=rel.table.name)


def drop_tables(
    transaction: CatalogTransaction, publication: Publication, rels: Sequence[PublicationRelInfo]
) -> None:
    """PublicationDropTables"""
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
    """PublicationAddSchemas"""
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
    """PublicationDropSchemas"""
    members = {row.schema for row in transaction.publications.namespaces(publication.oid)}
    for schema in schemas:
        if schema not in members:
            raise UndefinedObject(f'tables from schema "{schema}" are not part of the publication')
        transaction.publications.remove_namespace(publication.oid, schema)
