"""System information functions over relations, types, schemas and roles (ruleutils.c, regproc.c).

In: oids and names. Out: PostgreSQL's texts. Every method is an SQL function of its name; missing
objects give what PostgreSQL gives.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError, UndefinedObject
from penstock.walsender.pg_catalog.format_type import format_type, type_oid
from penstock.walsender.pg_catalog.identifiers import quote_identifier, split_qualified
from penstock.walsender.pg_catalog.privileges import has_privilege
from penstock.walsender.pg_catalog.relations import (
    Index,
    indexes,
    is_partitioned,
    replica_identity_index,
    schema_oids,
)
from penstock.walsender.pg_catalog.snapshot import CatalogSnapshot, CatalogTable, SessionFacts

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_LIMIT: Final = 10 * 1024


class RelationFunctions:
    """Over one snapshot, for one session."""

    def __init__(self, snapshot: CatalogSnapshot, facts: SessionFacts) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._schemas = schema_oids(snapshot)
        self._schema_names = {oid: name for name, oid in self._schemas.items()}
        self._roles = {role.oid: role.name for role in snapshot.all_roles}
        self._indexes = {index.oid: index for t in snapshot.tables for index in indexes(t)}
        self._constraints = {i.constraint_oid: i for i in self._indexes.values() if i.primary}
        self._relations: dict[int, tuple[str, str]] = {
            table.oid: (table.lake.schema, table.lake.name) for table in snapshot.tables
        } | {index.oid: (index.table.lake.schema, index.name) for index in self._indexes.values()}

    def _table(self, oid: int) -> CatalogTable | None:
        return self._snapshot.table_by_oid.get(oid)

    # Names

    def pg_get_userbyid(self, oid: int) -> str:
        return self._roles.get(oid, f"unknown (OID={oid})")

    def pg_table_is_visible(self, oid: int) -> bool | None:
        found = self._relations.get(oid)
        return None if found is None else self._visible(*found)

    def _visible(self, schema: str, name: str) -> bool:
        """Whether no schema before it in the path has the name."""
        for first in self._facts.search_path:
            if first == schema:
                return True
            if (first, name) in self._relations.values():
                return False
        return schema == "pg_catalog"

    def pg_type_is_visible(self, oid: int) -> bool | None:
        return None if format_type(oid, None) == "???" else True

    def pg_function_is_visible(self, _: int) -> bool | None:
        return None

    def regclassin(self, text: str) -> int:
        oid = self._class_oid(text)
        if oid is None:
            shown = ".".join(split_qualified(text))
            raise PenstockError(f'relation "{shown}" does not exist', sqlstate="42P01")
        return oid

    def _class_oid(self, text: str) -> int | None:
        if text.strip().isdigit():
            return int(text)
        if text.strip() == "-":
            return 0
        parts = split_qualified(text)
        schemas = [parts[-2]] if len(parts) > 1 else list(self._facts.search_path)
        for schema in schemas:
            for oid, names in self._relations.items():
                if names == (schema, parts[-1]):
                    return oid
        return None

    def to_regclass(self, text: str) -> int | None:
        return self._class_oid(text)

    def regclassout(self, oid: int) -> str:
        if oid == 0:
            return "-"
        found = self._relations.get(oid)
        if found is None:
            return str(oid)
        schema, name = found
        shown = quote_identifier(name)
        return shown if self._visible(schema, name) else f"{quote_identifier(schema)}.{shown}"

    def regtypein(self, text: str) -> int:
        oid = self.to_regtype(text)
        if oid is None:
            raise UndefinedObject(f'type "{text}" does not exist')
        return oid

    def to_regtype(self, text: str) -> int | None:
        return int(text) if text.strip().isdigit() else type_oid(text)

    def regtypeout(self, oid: int) -> str:
        shown = format_type(oid, None) or "-"
        return str(oid) if shown == "???" else shown

    def regnamespacein(self, text: str) -> int:
        oid = self.to_regnamespace(text)
        if oid is None:
            raise PenstockError(f'schema "{text}" does not exist', sqlstate="3F000")
        return oid

    def to_regnamespace(self, text: str) -> int | None:
        if text.strip().isdigit():
            return int(text)
        return self._schemas.get(split_qualified(text)[-1])

    def regnamespaceout(self, oid: int) -> str:
        name = self._schema_names.get(oid)
        return str(oid) if name is None else quote_identifier(name)

    def regrolein(self, text: str) -> int:
        oid = self.to_regrole(text)
        if oid is None:
            raise UndefinedObject(f'role "{text}" does not exist')
        return oid

    def to_regrole(self, text: str) -> int | None:
        if text.strip().isdigit():
            return int(text)
        name = split_qualified(text)[-1]
        return next((oid for oid, role in self._roles.items() if role == name), None)

    def regroleout(self, oid: int) -> str:
        name = self._roles.get(oid)
        return str(oid) if name is None else quote_identifier(name)

    def regprocin(self, text: str) -> int:
        if text.strip().isdigit():
            return int(text)
        raise PenstockError(f'function "{text}" does not exist', sqlstate="42883")

    def regprocout(self, oid: int) -> str:
        return "-" if oid == 0 else str(oid)

    # Definitions

    def format_type(self, oid: int | None, typmod: int | None) -> str | None:
        return format_type(oid, typmod)

    def pg_get_expr(self, node: str, _relation: int, _pretty: bool | None) -> str:
        return node

    def pg_relation_is_publishable(self, oid: int) -> bool | None:
        if oid in self._indexes:
            return False
        return None if self._table(oid) is None else True

    def pg_get_replica_identity_index(self, oid: int) -> int | None:
        table = self._table(oid)
        index = None if table is None else replica_identity_index(table)
        return None if index is None else index.oid

    def pg_get_indexdef(self, oid: int, column: int | None, _pretty: bool | None) -> str | None:
        index = self._indexes.get(oid)
        if index is None:
            return None
        if column:
            return (
                quote_identifier(index.columns[column - 1]) if column <= len(index.columns) else ""
            )
        lake = index.table.lake
        only = "ONLY " if is_partitioned(index.table) else ""
        relation = f"{quote_identifier(lake.schema)}.{quote_identifier(lake.name)}"
        return (
            f"CREATE UNIQUE INDEX {quote_identifier(index.name)} ON {only}{relation} "
            f"USING btree ({_names(index)})"
        )

    def pg_get_constraintdef(self, oid: int, _pretty: bool | None) -> str | None:
        index = self._constraints.get(oid)
        if index is not None:
            return f"PRIMARY KEY ({_names(index)})"
        return None

    def pg_get_partkeydef(self, oid: int) -> str | None:
        table = self._table(oid)
        return None if table is None else table.lake.partition_key

    def pg_get_partition_constraintdef(self, _: int) -> str | None:
        return None

    def pg_get_viewdef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_statisticsobjdef_columns(self, _: int) -> str | None:
        return None

    def pg_get_triggerdef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_ruledef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_function_result(self, _: int) -> str | None:
        return None

    pg_get_function_arguments = pg_get_function_result
    pg_get_function_identity_arguments = pg_get_function_result
    pg_get_functiondef = pg_get_function_result

    def pg_get_serial_sequence(self, _table: str, _column: str) -> str | None:
        return None

    # Sizes and comments

    def pg_table_size(self, oid: int) -> int | None:
        table = self._table(oid)
        if table is None:
            return 0 if oid in self._indexes else None
        return table.size

    def pg_relation_size(self, oid: int, _fork: str | None) -> int | None:
        return self.pg_table_size(oid)

    def pg_total_relation_size(self, oid: int) -> int | None:
        return self.pg_table_size(oid)

    def pg_indexes_size(self, oid: int) -> int | None:
        return None if self._table(oid) is None else 0

    def pg_database_size(self, _: int) -> int:
        return sum(table.size for table in self._snapshot.tables)

    def pg_size_pretty(self, size: int) -> str:
        """dbsize.c: halves are rounded away from zero, a unit is used from 10 of the next on."""
        if abs(size) < _LIMIT:
            return f"{size} bytes"
        unit, value = 0, abs(size) >> 9  # keeps one bit for rounding
        unit = 1
        while value >= 2 * _LIMIT - 1 and unit < len(_UNITS) - 1:
            value >>= 10
            unit += 1
        rounded = (value + 1) // 2
        return f"{'-' if size < 0 else ''}{rounded} {_UNITS[unit]}"

    def obj_description(self, _: int, _catalog: str | None) -> str | None:
        return None

    def shobj_description(self, _: int, _catalog: str) -> str | None:
        return None

    def col_description(self, _: int, _column: int) -> str | None:
        return None

    def has_table_privilege(self, first: str, second: str, third: str | None) -> bool | None:
        """(role, table, privilege) or (table, privilege)."""
        role, table, privilege = (
            (self._facts.user, first, second) if third is None else (first, second, third)
        )
        return has_privilege(self._snapshot, role, self.regclassin(table), privilege)


def _names(index: Index) -> str:
    return ", ".join(quote_identifier(column) for column in index.columns)
