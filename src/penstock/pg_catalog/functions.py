"""Functions that read the catalogs, for DuckDB to call.

A function is called with every argument of its signature, NULL for omitted ones. A strict function
returns NULL if its first argument is NULL. Errors are PenstockError, which the database raises to
its caller.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from penstock.enum_type import EnumType
from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.identifiers import simple_quote_literal, split_qualified
from penstock.lsn import Lsn
from penstock.pg_catalog.privileges import acl_default, has_privilege, role_named
from penstock.pg_catalog.relation_rows import ARRAY_INPUT, SCHEMA_COMMENTS, owners
from penstock.pg_catalog.relations import (
    CATALOG_OIDS,
    Index,
    coming_tables,
    indexes,
    is_partitioned,
    replica_identity_index,
    schema_oids,
)
from penstock.pg_catalog.snapshot import (
    CatalogSnapshot,
    CatalogTable,
    SessionFacts,
)
from penstock.pgtypes.pg_type import types, types_by_name
from penstock.sql.grammar.raw_statements import without_parentheses
from penstock.sql.text.quoting import quote_identifier, type_text
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, TableFunction
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import (
    InvalidSchemaName,
    NullValueNotAllowed,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)

# Rows that functions in FROM return, made while the query reads them. DuckDB hides an error that is
# raised while it reads, so the reader keeps the error for the caller.


class RowStream(Protocol):
    """The rows that one call of a function returns."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches: o1, o2 ..., in the types that ``held_as`` returns."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises PenstockError."""

    def texts(self) -> Iterator[Sequence[pa.Array]]:
        """Yield the rows as columns of bytes in text format, instead of ``batches``."""

    def succeed(self) -> None:
        """Note that the query has returned all its rows: the call's remaining rows count as
        read."""

    def close(self) -> None:
        """End the call, with or without success."""


OpenRows = Callable[..., RowStream]
"""A function that begins a call. Raises PenstockError."""


def guarded(rows: RowStream, errors: list[Exception]) -> pa.RecordBatchReader:
    """Return a reader of the rows, to be read once; errors are added to ``errors``."""

    def drawn() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows.batches()
        except Exception as error:
            errors.append(error)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, drawn())


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function in Python. ``strict``: if the first argument is NULL, the result is NULL and the
    function is not called."""

    signature: CatalogFunction
    call: Callable[..., Any]
    strict: bool = True


# name(arguments) returns; one of the classes below has a method of that name
_SIGNATURES: Final = """
pg_get_userbyid(oid) name
pg_table_is_visible(oid) bool
pg_type_is_visible(oid) bool
pg_function_is_visible(oid) bool
pg_collation_is_visible(oid) bool
pg_operator_is_visible(oid) bool
pg_opclass_is_visible(oid) bool
pg_opfamily_is_visible(oid) bool
pg_conversion_is_visible(oid) bool
pg_ts_config_is_visible(oid) bool
pg_ts_dict_is_visible(oid) bool
pg_statistics_obj_is_visible(oid) bool
pg_relation_is_publishable(regclass) bool
pg_get_replica_identity_index(regclass) regclass
pg_get_expr(pg_node_tree,oid,bool) text
pg_get_constraintdef(oid,bool) text
pg_get_indexdef(oid,int4,bool) text
pg_get_partkeydef(oid) text
pg_get_partition_constraintdef(oid) text
pg_get_viewdef(oid,bool) text
pg_get_statisticsobjdef_columns(oid) text
pg_get_triggerdef(oid,bool) text
pg_get_ruledef(oid,bool) text
pg_get_function_result(oid) text
pg_get_function_arguments(oid) text
pg_get_function_identity_arguments(oid) text
pg_get_functiondef(oid) text
pg_get_serial_sequence(text,text) text
format_type(oid,int4) text
pg_table_size(regclass) int8
pg_relation_size(regclass,text) int8
pg_total_relation_size(regclass) int8
pg_indexes_size(regclass) int8
pg_database_size(oid) int8
pg_size_pretty(int8) text
obj_description(oid,name) text
shobj_description(oid,name) text
col_description(oid,int4) text
to_regclass(text) regclass
to_regtype(text) regtype
to_regnamespace(text) regnamespace
to_regrole(text) regrole
regclassin(text) regclass
regclassout(regclass) text
regtypein(text) regtype
regtypeout(regtype) text
regnamespacein(text) regnamespace
regnamespaceout(regnamespace) text
regrolein(text) regrole
regroleout(regrole) text
regprocin(text) regproc
regprocout(regproc) text
pg_lsnin(text) pg_lsn
pg_lsnout(pg_lsn) text
pg_current_wal_lsn() pg_lsn
pg_current_wal_flush_lsn() pg_lsn
pg_current_wal_insert_lsn() pg_lsn
pg_wal_lsn_diff(pg_lsn,pg_lsn) numeric
pg_last_wal_receive_lsn() pg_lsn
pg_last_wal_replay_lsn() pg_lsn
has_table_privilege(any,any,text) bool
has_schema_privilege(any,any,text) bool
has_database_privilege(any,any,text) bool
has_any_column_privilege(any,any,text) bool
pg_has_role(any,any,text) bool
acldefault(char,oid) _aclitem
version() text
current_database() name
current_catalog() name
current_schema() name
current_schemas(bool) _name
current_user() name
session_user() name
user() name
current_role() name
pg_backend_pid() int4
pg_export_snapshot() text
pg_is_in_recovery() bool
pg_advisory_unlock_all() void
pg_my_temp_schema() oid
pg_is_other_temp_schema(oid) bool
current_setting(text,bool) text
set_config(text,text,bool) text
pg_encoding_to_char(int4) name
pg_char_to_encoding(name) int4
pg_client_encoding() name
getdatabaseencoding() name
quote_ident(text) text
now() timestamptz
statement_timestamp() timestamptz
transaction_timestamp() timestamptz
clock_timestamp() timestamptz
pg_tablespace_location(oid) text
"""

_NOT_STRICT: Final = frozenset(("set_config", "format_type"))


def functions(snapshot: CatalogSnapshot, facts: SessionFacts) -> Mapping[str, PythonFunction]:
    """Return all functions, by name."""
    relations, sessions = RelationFunctions(snapshot, facts), SessionFunctions(snapshot, facts)
    out: dict[str, PythonFunction] = {}
    for line in _SIGNATURES.strip().splitlines():
        signature = _read(line)
        home = relations if hasattr(relations, signature.name) else sessions
        strict = bool(signature.arguments) and signature.name not in _NOT_STRICT
        out[signature.name] = PythonFunction(signature, getattr(home, signature.name), strict)
    return out


def _read(line: str) -> CatalogFunction:
    name, _, rest = line.partition("(")
    arguments, _, rest = rest.partition(") ")
    split = tuple(arguments.split(",")) if arguments else ()
    return CatalogFunction(name, split, rest)


_IN_ALL_VERSIONS: Final = {
    "pg_get_keywords": TableFunction(
        "pg_get_keywords",
        (),
        (("word", "text"), ("catcode", "char"), ("catdesc", "text")),
        'SELECT k.word AS o1, k.catcode AS o2, k.catdesc AS o3 FROM cat."penstock_keywords" k',
        tables=("penstock_keywords",),
    ),
    "pg_available_extensions": TableFunction(
        "pg_available_extensions",
        (),
        (("name", "name"), ("default_version", "text"), ("comment", "text")),
        "SELECT NULL AS o1, NULL AS o2, NULL AS o3 WHERE false",
    ),
    "pg_options_to_table": TableFunction(
        "pg_options_to_table",
        ("_text",),
        (("option_name", "text"), ("option_value", "text")),
        "SELECT split_part(o, '=', 1) AS o1, "
        "CASE WHEN contains(o, '=') THEN substr(o, strpos(o, '=') + 1) END AS o2 "
        "FROM (SELECT unnest({0}) AS o)",
    ),
    "pg_partition_ancestors": TableFunction(
        "pg_partition_ancestors",
        ("regclass",),
        (("relid", "regclass"),),
        'SELECT a.relid AS o1 FROM cat."penstock_partition_ancestors" AS a '
        "WHERE a.child = {0} ORDER BY a.position",
        tables=("penstock_partition_ancestors",),
    ),
    "pg_partition_tree": TableFunction(
        "pg_partition_tree",
        ("regclass",),
        (
            ("relid", "regclass"),
            ("parentrelid", "regclass"),
            ("isleaf", "bool"),
            ("level", "int4"),
        ),
        "SELECT t.relid AS o1, t.parentrelid AS o2, t.isleaf AS o3, t.level AS o4 "
        'FROM cat."penstock_partition_tree" AS t WHERE t.root = {0}',
        tables=("penstock_partition_tree",),
    ),
}


def table_functions(version: int) -> Mapping[str, TableFunction]:
    """Return the functions in FROM, as the reported version has them."""
    members = 'cat."penstock_publication_tables" AS m'
    columns: tuple[tuple[str, str], ...] = (("relid", "oid"),)
    targets = "m.relid AS o1"
    if version >= 15:
        columns = (*columns, ("attrs", "int2vector"), ("qual", "pg_node_tree"))
        targets += ", m.attrs AS o2, m.qual AS o3"
    where, arguments = "m.pubname = pg__existing_publication({0})", ("text",)
    if version >= 16:
        columns = (("pubid", "oid"), *columns)
        targets = "m.pubid AS o1, m.relid AS o2, m.attrs AS o3, m.qual AS o4"
        where, arguments = _ANY_OF, ("variadic",)
    tables = ("penstock_publication_tables", "penstock_partition_ancestors", "pg_publication")
    return {
        "pg_get_publication_tables": TableFunction(
            "pg_get_publication_tables",
            arguments,
            columns,
            f"SELECT {targets} FROM {members} WHERE {where}",
            tables=tables,
        ),
        **_IN_ALL_VERSIONS,
    }


# If one publication publishes via the root, partitions are left out of all (filter_partitions).
_ANY_OF: Final = """list_contains({0}, m.pubname) AND NOT (
    EXISTS (SELECT 1 FROM cat."pg_publication" AS r
            WHERE r.pubviaroot AND list_contains({0}, r.pubname))
    AND m.relid IN (SELECT a.child FROM cat."penstock_partition_ancestors" AS a
            JOIN cat."penstock_publication_tables" AS t ON t.relid = a.relid
            WHERE a.position > 0 AND list_contains({0}, t.pubname)))"""


def existing_publication(snapshot: CatalogSnapshot) -> PythonFunction:
    """Return a function that returns a publication's name unchanged. It raises PenstockError
    (42704) if there is no such publication."""
    names = {publication.name for publication in snapshot.publications}

    def check(name: str) -> str:
        if name not in names:
            raise UndefinedObject(f'publication "{name}" does not exist')
        return name

    return PythonFunction(CatalogFunction("existing_publication", ("text",), "text"), check)


# Functions about the session and its server (misc.c, varlena.c, guc_funcs.c).
#
# ``set_config`` changes the session.

_ENCODINGS: Final = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}


class SessionFunctions:
    """Functions about one session. Every public method is an SQL function of its name."""

    def __init__(self, snapshot: CatalogSnapshot, facts: SessionFacts) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._changed: dict[str, str] = {}

    def version(self) -> str:
        number = self._facts.settings.get("server_version", f"{self._facts.version}.0")
        return f"PostgreSQL {number} (Penstock)"

    def current_database(self) -> str:
        return self._facts.database

    current_catalog = current_database

    def current_schema(self) -> str | None:
        known = schema_oids(self._snapshot)
        return next((name for name in self._facts.search_path if name in known), None)

    def current_schemas(self, implicit: bool) -> list[str]:
        known = schema_oids(self._snapshot)
        named = [name for name in self._facts.search_path if name in known]
        if implicit and "pg_catalog" not in named:
            return ["pg_catalog", *named]
        return named

    def current_user(self) -> str:
        if not self._facts.user:
            raise UndefinedObject(f"invalid role OID: {self._facts.role_oid}")
        return self._facts.user

    session_user = current_user
    user = current_user
    current_role = current_user

    def pg_backend_pid(self) -> int:
        return self._facts.pid

    def pg_export_snapshot(self) -> str:
        if self._facts.export_snapshot is None:
            raise FeatureNotSupported("snapshots are exported by sessions only")
        return self._facts.export_snapshot()

    def pg_is_in_recovery(self) -> bool:
        return False

    def pg_advisory_unlock_all(self) -> str:
        return ""  # a node has no advisory locks

    def pg_my_temp_schema(self) -> int:
        return 0

    def pg_is_other_temp_schema(self, _: int) -> bool:
        return False

    def current_setting(self, name: str, missing_ok: bool | None) -> str | None:
        key = name.lower()
        if key in self._changed:
            return self._changed[key]
        value = self._facts.settings.get(key)
        if value is None and not missing_ok:
            raise UndefinedObject(f'unrecognized configuration parameter "{name}"')
        return value

    def set_config(self, name: str | None, value: str | None, is_local: bool | None) -> str:
        if name is None:
            raise NullValueNotAllowed("SET requires parameter name")
        set_config = self._facts.set_config
        now = value or "" if set_config is None else set_config(name, value, bool(is_local))
        self._changed[name.lower()] = now
        return now

    def pg_encoding_to_char(self, encoding: int) -> str:
        return _ENCODINGS.get(encoding, "")

    def pg_char_to_encoding(self, name: str) -> int:
        return next((n for n, known in _ENCODINGS.items() if known == name.upper()), -1)

    def pg_client_encoding(self) -> str:
        return self._facts.settings.get("client_encoding", "UTF8")

    def getdatabaseencoding(self) -> str:
        return "UTF8"

    def quote_ident(self, name: str) -> str:
        return quote_identifier(name)

    def now(self) -> datetime.datetime:
        return self._facts.started.replace(tzinfo=None)

    transaction_timestamp = now

    def statement_timestamp(self) -> datetime.datetime:
        return self._facts.statement_started.replace(tzinfo=None)

    def clock_timestamp(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)

    def pg_tablespace_location(self, _: int) -> str:
        return ""

    # Positions

    def pg_lsnin(self, text: str) -> int:
        return int(Lsn.parse(text.strip()))

    def pg_lsnout(self, position: int) -> str:
        return str(Lsn(position))

    def pg_current_wal_lsn(self) -> int:
        return int(self._snapshot.current_lsn)

    pg_current_wal_flush_lsn = pg_current_wal_lsn
    pg_current_wal_insert_lsn = pg_current_wal_lsn

    def pg_last_wal_receive_lsn(self) -> int | None:
        return None  # a node is no standby

    pg_last_wal_replay_lsn = pg_last_wal_receive_lsn

    def pg_wal_lsn_diff(self, left: int, right: int | None) -> decimal.Decimal | None:
        return None if right is None else decimal.Decimal(left - right)

    # Rights, as far as a lake has them

    def has_schema_privilege(self, *_: object) -> bool:
        return True

    def has_database_privilege(self, *_: object) -> bool:
        return True

    def pg_has_role(self, first: str, second: str, third: str | None) -> bool:
        """Take (member, role, privilege) or (role, privilege). No role is a member of another."""
        member, name = (self._facts.user, first) if third is None else (first, second)
        found, role = role_named(self._snapshot, member), role_named(self._snapshot, name)
        return found is not None and (found.superuser or found == role)


# System information functions over relations (ruleutils.c, dbsize.c).
#
# Every public method is an SQL function of its name. For a missing object it returns the same as
# PostgreSQL.

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_LIMIT: Final = 10 * 1024
_OF_TYPE: Final = re.compile(r"('(?:[^']|'')*')::([0-9]+)")
_OF_SEQUENCE: Final = re.compile(r"nextval\(([0-9]+)\)")
"""The default of a serial column in the form that the catalogs keep."""


# Names and oids of relations, types, schemas and roles (regproc.c, namespace.c).
#
# Every public method is an SQL function of its name; ``<type>in`` and ``<type>out`` are the input
# and output functions of the reg types.

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
    """Functions over the names of one snapshot, for one session."""

    def __init__(self, snapshot: CatalogSnapshot, facts: SessionFacts) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._schemas = schema_oids(snapshot)
        self._schema_names = {oid: name for name, oid in self._schemas.items()}
        roles = snapshot.all_roles
        self._roles = {role.oid: role.name for role in roles}
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
        self._oids = {names: oid for oid, names in reversed(self._relations.items())}
        self._type_names = {(each.schema, each.name) for each in self._enums.values()}

    def _table(self, oid: int) -> CatalogTable | None:
        return self._snapshot.table_by_oid.get(oid)

    # Names

    def pg_get_userbyid(self, oid: int) -> str:
        return self._roles.get(oid, f"unknown (OID={oid})")

    def pg_table_is_visible(self, oid: int) -> bool | None:
        found = self._relations.get(oid)
        return None if found is None else self._visible(*found)

    def _visible(self, schema: str, name: str) -> bool:
        """Tell whether the schema is in the path, and no schema before it has the name."""
        for first in self._path():
            if first == schema:
                return True
            if (first, name) in self._oids:
                return False
        return False

    def _path(self) -> list[str]:
        """Return the search path, with pg_catalog first if it is not named."""
        named = list(self._facts.search_path)
        return named if _CATALOG in named else [_CATALOG, *named]

    # Types

    def _type_name(self, oid: int | None, typmod: int | None) -> str | None:
        """Return the text of format_type, for the node's own types, too."""
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
        """Tell whether the type's schema is in the path, and no schema before it has a type of the
        name."""
        found = next((s for s in self._path() if self._has_type(s, enum.name)), None)
        return found == enum.schema

    def _has_type(self, schema: str, name: str) -> bool:
        if schema == _CATALOG:
            return name in types_by_name()
        return (schema, name) in self._type_names

    def _own_type(self, text: str) -> int | None:
        """Return the oid of a type of the node's own by its name, arrays with ``[]``; None if
        unknown."""
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
    pg_opfamily_is_visible = pg_function_is_visible
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
        found = (self._oids.get((schema, parts[-1])) for schema in schemas)
        return next((oid for oid in found if oid is not None), None)

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
        """Print the oid of a function: the catalogs have only the types' receive functions and
        array_in."""
        if oid in (0, ARRAY_INPUT):
            return "array_in" if oid else "-"
        found = (row.receive for row in types().values() if row.receive_oid == oid)
        return next(found, str(oid))


def _type_oid(name: str) -> int | None:
    """Return the oid of a type by SQL's or PostgreSQL's name, arrays with ``[]``; None if
    unknown."""
    text = name.strip().lower().removeprefix("pg_catalog.")
    base = text.removesuffix("[]").partition("(")[0].strip()
    found = types_by_name().get(_SYNONYMS.get(base, base.strip('"')))
    if found is None:
        found = next((type_ for type_ in types().values() if type_.sql_name == base), None)
    if found is None:
        return None
    return found.array if text.endswith("[]") else found.oid


class RelationFunctions(NameFunctions):
    """Functions about relations: their definitions, their sizes, and who may read them."""

    # Definitions

    def format_type(self, oid: int | None, typmod: int | None) -> str | None:
        return self._type_name(oid, typmod)

    def pg_get_expr(self, node: str, _relation: int, pretty: bool | None) -> str:
        sequence = _OF_SEQUENCE.fullmatch(node)
        if sequence is not None:
            name = simple_quote_literal(self.regclassout(int(sequence[1])))
            return f"nextval({name}::regclass)"
        labelled = _OF_TYPE.fullmatch(node)
        if labelled is not None:
            return f"{labelled[1]}::{self._type_name(int(labelled[2]), None)}"
        return without_parentheses(node) if pretty else node

    def pg_relation_is_publishable(self, oid: int) -> bool | None:
        if oid in self._indexes:
            return False
        table = self._table(oid)
        return None if table is None else table.unpublishable is None

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
            kind = "PRIMARY KEY" if index.primary else "UNIQUE"
            return f"{kind} ({_names(index)})"
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

    def pg_get_serial_sequence(self, name: str, column: str | None) -> str | None:
        if column is None:
            return None
        oid = self.regclassin(name)
        table = self._table(oid)
        if table is not None and table.columns.number(column) is None:
            shown = f'column "{column}" of relation "{table.lake.name}"'
            raise UndefinedColumn(f"{shown} does not exist")
        for sequence in self._snapshot.sequences:
            if (sequence.table, sequence.column) == (oid, column):
                return ".".join(map(quote_identifier, self._relations[sequence.oid]))
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
        """Print a size (dbsize.c): halves are rounded away from zero, and a unit is used from ten
        on."""
        if abs(size) < _LIMIT:
            return f"{size} bytes"
        unit, value = 0, abs(size) >> 9  # keeps one bit for rounding
        unit = 1
        while value >= 2 * _LIMIT - 1 and unit < len(_UNITS) - 1:
            value >>= 10
            unit += 1
        rounded = (value + 1) // 2
        return f"{'-' if size < 0 else ''}{rounded} {_UNITS[unit]}"

    def obj_description(self, oid: int, catalog: str | None) -> str | None:
        return SCHEMA_COMMENTS.get(oid) if catalog == "pg_namespace" else None

    def shobj_description(self, _: int, _catalog: str) -> str | None:
        return None

    def col_description(self, _: int, _column: int) -> str | None:
        return None

    def acldefault(self, kind: str, owner: int) -> list[str]:
        return acl_default(self._snapshot, kind, owner, self._facts.version)

    def has_table_privilege(self, first: str, second: str, third: str | None) -> bool | None:
        """Take (role, table, privilege) or (table, privilege)."""
        role, table, privilege = (
            (self._facts.user, first, second) if third is None else (first, second, third)
        )
        oid = self.regclassin(table)
        return has_privilege(self._snapshot, role, oid, privilege, self._facts.version)

    has_any_column_privilege = has_table_privilege


def _names(index: Index) -> str:
    return ", ".join(quote_identifier(column) for column in index.columns)
