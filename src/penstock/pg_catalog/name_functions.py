"""Names and oids of relations, types, schemas and roles (regproc.c, namespace.c).

In: oids and names. Out: the other. Every public method is an SQL function of its name; ``<type>in``
and ``<type>out`` are the input and output functions of the reg types.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.enum_type import EnumType
from penstock.errors import PenstockError, UndefinedObject
from penstock.identifiers import split_qualified
from penstock.pg_catalog.relations import (
    CATALOG_OIDS,
    coming_tables,
    indexes,
    schema_oids,
)
from penstock.pg_catalog.sequence_rows import owners
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable
from penstock.pg_catalog.type_rows import ARRAY_INPUT
from penstock.pgtypes.pg_type import types, types_by_name
from penstock.sql.text.quoting import quote_identifier, type_text
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import InvalidSchemaName, UndefinedFunction, UndefinedTable

_CATALOG: Final = "pg_catalog"
_OID: Final = 26
_DIGITS: Final = re.compile("[0-9]+")
_SYNONYMS: Final = {
    "char": "bpchar",
    "int": "int4",
    "decimal": "numeric",
    "dec": "numeric",
    "float": "float8",
}


class NameFunctions:
    """Over one snapshot, for one session."""

    def __init__(self, snapshot: CatalogSnapshot, facts: SessionFacts) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._schemas = schema_oids(snapshot)
        self._schema_names = {oid: name for name, oid in self._schemas.items()}
        self._roles = {role.oid: role.name for role in snapshot.all_roles}
        self._indexes = {index.oid: index for t in snapshot.tables for index in indexes(t)}
        self._constraints = {i.constraint_oid: i for i in self._indexes.values() if i.constraint}
        self._relations: dict[int, tuple[str, str]] = {
            table.oid: (table.lake.schema, table.lake.name) for table in snapshot.tables
        } | {index.oid: (index.table.lake.schema, index.name) for index in self._indexes.values()}
        self._relations |= {
            sequence.oid: (table.lake.schema, sequence.name) for sequence, table in owners(snapshot)
        }
        self._enums = {enum.oid: enum for enum in snapshot.types} | {
            enum.array_oid: enum for enum in snapshot.types
        }
        self._coming = coming_tables(snapshot)
        self._relations |= {oid: (_CATALOG, name) for name, oid in CATALOG_OIDS.items()}

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
        for first in self._path():
            if first == schema:
                return True
            if (first, name) in self._relations.values():
                return False
        return False

    def _path(self) -> list[str]:
        """The search path with the schema that is searched first where it is not named."""
        named = list(self._facts.search_path)
        return named if _CATALOG in named else [_CATALOG, *named]

    # Types

    def _type_name(self, oid: int | None, typmod: int | None) -> str | None:
        """format_type, of the node's own types, too."""
        if oid is None:
            return None
        enum = self._enums.get(oid)
        if enum is None:
            return "-" if oid == 0 else type_text(oid, typmod)
        name = quote_identifier(enum.name)
        if not self._is_visible_type(enum):
            name = f"{quote_identifier(enum.schema)}.{name}"
        return f"{name}[]" if oid == enum.array_oid else name

    def _is_visible_type(self, enum: EnumType) -> bool:
        """Whether no schema before it in the path has a type of the name."""
        taken = {(each.schema, each.name) for each in self._enums.values()}
        taken |= {(_CATALOG, row.name) for row in types().values()}
        found = next((s for s in self._path() if (s, enum.name) in taken), None)
        return found == enum.schema

    def _own_type(self, text: str) -> int | None:
        """The oid of one of the node's own types by its name, arrays with ``[]``."""
        try:
            *schema, name = split_qualified(text.removesuffix("[]"))
        except PenstockError:
            return None
        for each in schema[-1:] or self._path():
            for enum in self._enums.values():
                if (enum.schema, enum.name) == (each, name):
                    return enum.array_oid if text.endswith("[]") else enum.oid
        return None

    def pg_type_is_visible(self, oid: int) -> bool | None:
        enum = self._enums.get(oid)
        if enum is not None:
            return self._is_visible_type(enum)
        return True if oid in types() else None

    def pg_function_is_visible(self, _: int) -> bool | None:
        return None

    pg_collation_is_visible = pg_function_is_visible
    pg_operator_is_visible = pg_function_is_visible
    pg_opclass_is_visible = pg_function_is_visible
    pg_conversion_is_visible = pg_function_is_visible
    pg_ts_config_is_visible = pg_function_is_visible
    pg_ts_dict_is_visible = pg_function_is_visible
    pg_statistics_obj_is_visible = pg_function_is_visible

    def regclassin(self, text: str) -> int:
        oid = self._class_oid(text)
        if oid is None:
            shown = ".".join(split_qualified(text))
            raise UndefinedTable(f'relation "{shown}" does not exist')
        return oid

    def _class_oid(self, text: str) -> int | None:
        if _DIGITS.fullmatch(text.strip()):
            return int(canonical(text, _OID))
        if text.strip() == "-":
            return 0
        parts = split_qualified(text)
        schemas = [parts[-2]] if len(parts) > 1 else self._path()
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
        found = self._relations.get(oid) or self._coming.get(oid)
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
        if _DIGITS.fullmatch(text.strip()):
            return int(canonical(text, _OID))
        return _type_oid(text) or (self._own_type(text.strip()) if self._enums else None)

    def regtypeout(self, oid: int) -> str:
        shown = self._type_name(oid, None) or "-"
        return str(oid) if shown == "???" else shown

    def regnamespacein(self, text: str) -> int:
        oid = self.to_regnamespace(text)
        if oid is None:
            raise InvalidSchemaName(f'schema "{text}" does not exist')
        return oid

    def to_regnamespace(self, text: str) -> int | None:
        if _DIGITS.fullmatch(text.strip()):
            return int(canonical(text, _OID))
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
        if _DIGITS.fullmatch(text.strip()):
            return int(canonical(text, _OID))
        name = split_qualified(text)[-1]
        return next((oid for oid, role in self._roles.items() if role == name), None)

    def regroleout(self, oid: int) -> str:
        name = self._roles.get(oid)
        return str(oid) if name is None else quote_identifier(name)

    def regprocin(self, text: str) -> int:
        if _DIGITS.fullmatch(text.strip()):
            return int(canonical(text, _OID))
        name = split_qualified(text)[-1]
        if name == "array_in":
            return ARRAY_INPUT
        for row in types().values():
            if row.receive == name:
                return row.receive_oid
        raise UndefinedFunction(f'function "{text}" does not exist')

    def regprocout(self, oid: int) -> str:
        """The receive functions of types are those that there are rows for."""
        if oid in (0, ARRAY_INPUT):
            return "array_in" if oid else "-"
        found = (row.receive for row in types().values() if row.receive_oid == oid)
        return next(found, str(oid))


def _type_oid(name: str) -> int | None:
    """The oid of a type by SQL's or PostgreSQL's name, arrays with ``[]``; None if unknown."""
    text = name.strip().lower().removeprefix("pg_catalog.")
    base = text.removesuffix("[]").partition("(")[0].strip()
    found = types_by_name().get(_SYNONYMS.get(base, base.strip('"')))
    if found is None:
        found = next((type_ for type_ in types().values() if type_.sql_name == base), None)
    if found is None:
        return None
    return found.array if text.endswith("[]") else found.oid
