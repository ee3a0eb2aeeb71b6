"""Functions that look into the catalogs, for DuckDB to call.

In: a snapshot and who asks. Out: by name the signature and the Python function. All are called with
every argument of the signature, NULL for what was left out; unless they say otherwise they give
NULL for a first argument NULL. Errors are PenstockError, which the database hands on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import UndefinedObject
from penstock.pg_catalog.relation_functions import RelationFunctions
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.session_functions import SessionFunctions
from penstock.pg_catalog.snapshot import CatalogSnapshot
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, TableFunction


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """``strict``: NULL for a first argument NULL without being called."""

    signature: CatalogFunction
    call: Callable[..., Any]
    strict: bool = True


# name(arguments) returns; the method is of that name in one of the classes
_SIGNATURES: Final = """
pg_get_userbyid(oid) name
pg_table_is_visible(oid) bool
pg_type_is_visible(oid) bool
pg_function_is_visible(oid) bool
pg_collation_is_visible(oid) bool
pg_operator_is_visible(oid) bool
pg_opclass_is_visible(oid) bool
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
    """All of them, by name."""
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


def table_functions(version: int) -> Mapping[str, TableFunction]:
    """Functions in FROM, as the reported version has them."""
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
        "pg_get_keywords": TableFunction(
            "pg_get_keywords",
            (),
            (("word", "text"), ("catcode", "char"), ("catdesc", "text")),
            'SELECT k.word AS o1, k.catcode AS o2, k.catdesc AS o3 FROM cat."penstock_keywords" k',
            tables=("penstock_keywords",),
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


# One publication via the root takes partitions out of all (filter_partitions).
_ANY_OF: Final = """list_contains({0}, m.pubname) AND NOT (
    EXISTS (SELECT 1 FROM cat."pg_publication" AS r
            WHERE r.pubviaroot AND list_contains({0}, r.pubname))
    AND m.relid IN (SELECT a.child FROM cat."penstock_partition_ancestors" AS a
            JOIN cat."penstock_publication_tables" AS t ON t.relid = a.relid
            WHERE a.position > 0 AND list_contains({0}, t.pubname)))"""


def existing_publication(snapshot: CatalogSnapshot) -> PythonFunction:
    """Gives a publication's name back. Raises PenstockError (42704) where there is none."""
    names = {publication.name for publication in snapshot.publications}

    def check(name: str) -> str:
        if name not in names:
            raise UndefinedObject(f'publication "{name}" does not exist')
        return name

    return PythonFunction(CatalogFunction("existing_publication", ("text",), "text"), check)
