"""Columns and rows of every catalog, for DuckDB.

A catalog is an Arrow table with the columns of the reported version. A catalog without a builder is
empty, as it would be in a database without such objects.
"""

from __future__ import annotations

import datetime
import functools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import pyarrow as pa

from penstock.catalog.pg_authid import Role
from penstock.catalog.pg_publication import Publication
from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.guc.guc_tables import settings
from penstock.interrupts import check_for_interrupts
from penstock.lsn import Lsn
from penstock.pg_catalog import relation_rows
from penstock.pg_catalog.relation_rows import Row
from penstock.pg_catalog.relations import relation_oids, schema_oids
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot, CatalogTable, SessionFacts
from penstock.publication.members import Members
from penstock.publication.relation_sync import columns_without_list, publication_tables
from penstock.sql.to_duckdb.catalog_lowering import held_as
from penstock.walreceiver.conninfo import ConnInfo

# Columns of PostgreSQL's catalogs by version, and queries of its views.

INFORMATION_SCHEMA: Final = "information_schema"
Columns = tuple[tuple[str, str], ...]

_PENSTOCK: Final[dict[str, str]] = {
    "penstock_publication_tables": "pubname:name pubid:oid relid:oid attrs:int2vector "
    "qual:pg_node_tree",
    "penstock_partition_ancestors": "child:oid relid:regclass position:int4",
    "penstock_origin_status": "local_id:oid external_id:text remote_lsn:pg_lsn local_lsn:pg_lsn",
    "penstock_keywords": "word:text catcode:char catdesc:text",
    "penstock_partition_tree": "root:oid relid:regclass parentrelid:regclass isleaf:bool "
    "level:int4",
}
_OURS: Final[dict[str, str]] = {
    "pg_stat_lake_tables": "relid:oid schemaname:name relname:text version:int8 table_id:text "
    "state:text error:text error_since:timestamptz",
    "pg_stat_lake_subscription": "subid:oid subname:name app_id:text on_table_error:text "
    "schema_change:text unsent_changes:text history:text messages:bool metadata_columns:bool "
    "conflict_resolution:text out_of_range:text values_out_of_range:int8 "
    "soft_delete:bool partition_by:text cluster_by:text "
    "jsonb_as:text verify_interval:int8 verify_rate:int8 copy_target:text "
    "stopped:bool error:text "
    "error_detail:text error_hint:text error_time:timestamptz state:text "
    "applied_lsn:pg_lsn cut_lsn:pg_lsn publisher_lsn:pg_lsn "
    "lag_bytes:int8 lag_seconds:float8 retained_bytes:int8 rows_applied:int8 "
    "rows_per_second:float8 "
    "copy_snapshot_at:timestamptz copy_snapshot_xmin:xid copy_retained_bytes:int8",
    "pg_stat_lake_subscription_rel": "subid:oid subname:name relid:oid schemaname:name "
    "relname:name state:char lsn:pg_lsn sync_id:text error:text error_detail:text "
    "error_hint:text error_time:timestamptz verify_result:text verify_lsn:pg_lsn "
    "verified_at:timestamptz",
}
"""Our own views, which PostgreSQL lacks: queries may name them."""
_ODD_TYPES: Final = {"_pg_statistic": "_text"}


@functools.cache
def catalogs(version: int) -> Mapping[str, Columns]:
    """Return the columns of every catalog and view of a major version, and of our own tables."""
    out = _of_version("columns.toml", version)
    out |= {table: _columns(text) for table, text in (_PENSTOCK | _OURS).items()}
    return out


@functools.cache
def information_schema(version: int) -> Mapping[str, Columns]:
    """Return the columns of information_schema's views, by their names there."""
    return _of_version("information_schema.toml", version)


def _of_version(file: str, version: int) -> dict[str, Columns]:
    out: dict[str, Columns] = {}
    for table, versions in _load(file).items():
        for span, text in versions.items():
            first, _, last = span.partition("-")
            if int(first) <= version <= int(last):
                out[table] = _columns(text)
    return out


def view_text(schema: str, name: str) -> str | None:
    """Return the query of a view, "" for a view without rows; None if the name is no view here."""
    views = _load("views.toml")
    if schema == INFORMATION_SCHEMA:
        return str(views[INFORMATION_SCHEMA].get(name, ""))
    found = None if schema else views.get(name)
    return found if isinstance(found, str) else None


def is_internal(table: str) -> bool:
    """Tell whether a table is only for functions, so that no query may name it."""
    return table in _PENSTOCK


def _columns(text: str) -> Columns:
    pairs = (word.partition(":") for word in text.split())
    return tuple((name, _ODD_TYPES.get(kind, kind)) for name, _, kind in pairs)


@functools.cache
def _load(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return tomllib.loads(text)


# Rows of publications and subscriptions.
#
# A column that is left out is 0, false, '' or NULL by its type.

_STREAM: Final = {"off": "f", "on": "t", "parallel": "p"}


def pg_publication(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield all publications."""
    for publication in snapshot.publications:
        yield {
            "oid": publication.oid,
            "pubname": publication.name,
            "pubowner": NODE_OWNER if publication.owner is None else publication.owner,
            "puballtables": publication.all_tables,
            "pubinsert": publication.insert,
            "pubupdate": publication.update,
            "pubdelete": publication.delete,
            "pubtruncate": publication.truncate,
            "pubviaroot": publication.via_root,
            "pubgencols": publication.generated_columns,
        }


def pg_publication_rel(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield the tables that publications name."""
    for row in snapshot.publication_rels:
        table = snapshot.table_by_oid.get(row.relation)
        numbers = None
        if row.columns is not None and table is not None:
            numbers = list(attribute_numbers(table, row.columns))
        yield {
            "oid": row.oid,
            "prpubid": row.publication,
            "prrelid": row.relation,
            "prqual": row.row_filter,
            "prattrs": numbers,
        }


def pg_publication_namespace(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield the schemas that publications name."""
    schemas = schema_oids(snapshot)
    for row in snapshot.publication_namespaces:
        yield {"oid": row.oid, "pnpubid": row.publication, "pnnspid": schemas[row.schema]}


def publication_table_rows(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield pg_get_publication_tables of every publication."""
    for publication in snapshot.publications:
        for row in published_rels(snapshot, publication, version):
            yield {
                "pubname": publication.name,
                "pubid": publication.oid,
                "relid": row.table.oid,
                "attrs": None if row.attributes is None else list(row.attributes),
                "qual": row.row_filter,
            }


def pg_publication_tables(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield the rows of the view pg_publication_tables."""
    for publication in snapshot.publications:
        for row in published_rels(snapshot, publication, version):
            columns = row.table.columns
            numbers = row.attributes
            if numbers is None:
                numbers = tuple(range(1, len(columns) + 1))
            yield {
                "pubname": publication.name,
                "schemaname": row.table.lake.schema,
                "tablename": row.table.lake.name,
                "attnames": [columns[number - 1].name for number in numbers],
                "rowfilter": row.row_filter,
            }


def pg_subscription(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield all subscriptions."""
    for subscription in snapshot.subscriptions:
        yield {
            "oid": subscription.oid,
            "subdbid": snapshot.database_oid,
            "subskiplsn": str(subscription.skip_lsn),
            "subname": subscription.name,
            "subowner": NODE_OWNER if subscription.owner is None else subscription.owner,
            "subenabled": subscription.enabled,
            "subbinary": subscription.binary,
            "substream": _stream(subscription, version),
            "subtwophasestate": subscription.two_phase_state.value,
            "subdisableonerr": subscription.disable_on_error,
            "subpasswordrequired": subscription.password_required,
            "subrunasowner": subscription.run_as_owner,
            "subfailover": subscription.failover,
            "subconninfo": _without_secrets(subscription.conninfo),
            "subslotname": subscription.slot_name,
            "subsynccommit": subscription.synchronous_commit,
            "subpublications": list(subscription.publications),
            "suborigin": subscription.origin,
        }


def _without_secrets(conninfo: str) -> str:
    """Return a connection string without secrets (law 9); PostgreSQL shows superusers the
    password."""
    try:
        return str(ConnInfo.parse(conninfo))
    except PenstockError:
        return "********"


def _stream(subscription: Subscription, version: int) -> object:
    """Return substream: a flag until PostgreSQL 15, then a letter (LOGICALREP_STREAM_OFF and
    others)."""
    streaming = subscription.streaming
    return _STREAM[streaming] if version >= 16 else streaming != "off"


def pg_subscription_rel(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield the tables of subscriptions. Tables that do not exist before their copy have a
    provisional oid."""
    oids = relation_oids(snapshot)
    for row in snapshot.subscription_rels:
        yield {
            "srsubid": row.subid,
            "srrelid": oids[row.table_name],
            "srsubstate": row.state.value,
            "srsublsn": None if row.lsn is None else str(row.lsn),
        }


# Tables of a publication, with their columns and row filters, as a server of a version shows them.
#
# ``penstock.publication`` decides which tables a publication has; this section adds the columns'
# numbers, and leaves out columns that older versions lack. Filters are passed on as text. A query
# that joins several publications combines them.

_FILTERS_SINCE = 15
_COLUMNS_ALWAYS_SINCE = 16
_GENERATED_SINCE = 18


@dataclass(frozen=True, slots=True)
class PublishedRel:
    """A table of a publication. ``attributes``: numbers of its columns; None: all (version 15)."""

    publication: Publication
    table: CatalogTable
    attributes: tuple[int, ...] | None
    row_filter: str | None


def published_rels(
    snapshot: CatalogSnapshot, publication: Publication, version: int
) -> tuple[PublishedRel, ...]:
    """Return the tables of one publication, sorted by oid if PostgreSQL has no order."""
    members = Members(
        snapshot.publications,
        snapshot.publication_rels,
        snapshot.publication_namespaces,
        [table.lake for table in snapshot.tables],
    )
    unpublishable = {table.oid for table in snapshot.tables if table.unpublishable}
    return tuple(
        _published(members, publication, snapshot.table_by_oid[table.oid], version)
        for table in publication_tables(members, publication, unpublishable)
    )


def _published(
    members: Members, publication: Publication, table: CatalogTable, version: int
) -> PublishedRel:
    row = members.row(publication, table.lake)
    if version < _FILTERS_SINCE:
        return PublishedRel(publication, table, None, None)
    attributes = None
    if row is not None and row.columns is not None:
        attributes = attribute_numbers(table, row.columns)
    elif version >= _COLUMNS_ALWAYS_SINCE:
        stored = version >= _GENERATED_SINCE and publication.generated_columns == "s"
        attributes = attribute_numbers(table, columns_without_list(table.columns, stored=stored))
    return PublishedRel(publication, table, attributes, None if row is None else row.row_filter)


def attribute_numbers(table: CatalogTable, columns: tuple[str, ...]) -> tuple[int, ...]:
    """Return the numbers of a column list, sorted as in pg_publication_rel.prattrs."""
    return tuple(sorted(n for c in columns if (n := table.columns.number(c)) is not None))


# Rows of roles, the database and settings.
#
# Instead of passwords, pg_roles and pg_user show ``********``; only superusers may read pg_authid
# and pg_shadow, as in PostgreSQL.

HIDDEN: Final = "********"
_UTF8: Final = 6


def _role(role: Role) -> Row:
    return {
        "oid": role.oid,
        "rolname": role.name,
        "rolsuper": role.superuser,
        "rolinherit": True,
        "rolcreaterole": role.superuser,
        "rolcreatedb": role.superuser,
        "rolcanlogin": role.login,
        "rolreplication": role.replication,
        "rolconnlimit": role.connection_limit,
        "rolvaliduntil": role.valid_until,
        "rolbypassrls": role.superuser,
    }


def pg_authid(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield roles with the verifiers of their passwords."""
    for role in snapshot.all_roles:
        yield _role(role) | {"rolpassword": role.verifier}


def pg_roles(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Yield roles without passwords."""
    for role in snapshot.all_roles:
        yield _role(role) | {"rolpassword": HIDDEN}


def pg_user(snapshot: CatalogSnapshot, *, shadow: bool = False) -> Iterator[Row]:
    """Yield roles that can log in; ``shadow``: with verifiers."""
    for role in snapshot.all_roles:
        if role.login:
            yield {
                "usename": role.name,
                "usesysid": role.oid,
                "usecreatedb": role.superuser,
                "usesuper": role.superuser,
                "userepl": role.replication,
                "usebypassrls": role.superuser,
                "passwd": role.verifier if shadow else HIDDEN,
                "valuntil": role.valid_until,
            }


def pg_database(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """Yield the one database."""
    yield {
        "oid": snapshot.database_oid,
        "datname": snapshot.database,
        "datdba": NODE_OWNER,
        "encoding": _UTF8,
        "datlocprovider": "c",
        "datallowconn": True,
        "datconnlimit": -1,
        "datcollate": "C",
        "datctype": "C",
        "datlastsysoid": 0 if version < 15 else None,
    }


def pg_settings(facts: SessionFacts) -> Iterator[Row]:
    """Yield the settings of the session. Numbers are in the setting's unit, unlike in SHOW."""
    known = settings(facts.version)
    for name, value in sorted(facts.settings.items()):
        setting = known.get(name)
        if setting is None:
            yield {
                "name": name,
                "setting": value,
                "context": "internal",
                "vartype": "string",
                "source": "default",
                "reset_val": value,
                "boot_val": value,
            }
            continue
        number = value if setting.context == "internal" else setting.read(value)
        yield {
            "name": setting.name,
            "setting": number,
            "unit": setting.unit or None,
            "category": "Preset Options",
            "context": setting.context,
            "vartype": setting.kind,
            "source": "default" if number == setting.boot else "session",
            "min_val": setting.low or None,
            "max_val": setting.high or None,
            "enumvals": list(setting.choices) or None,
            "boot_val": setting.boot,
            "reset_val": number,
        }


_BUILDERS: Final[Mapping[str, Callable[[CatalogSnapshot], Iterable[Row]]]] = {
    "pg_description": relation_rows.pg_description,
    "pg_attribute": relation_rows.pg_attribute,
    "pg_attrdef": relation_rows.pg_attrdef,
    "pg_index": relation_rows.pg_index,
    "pg_inherits": relation_rows.pg_inherits,
    "pg_sequence": relation_rows.pg_sequence,
    "pg_depend": relation_rows.pg_depend,
    "pg_partitioned_table": relation_rows.pg_partitioned_table,
    "pg_type": relation_rows.pg_type,
    "pg_enum": relation_rows.pg_enum,
    "pg_am": relation_rows.pg_am,
    "penstock_keywords": relation_rows.keywords,
    "pg_collation": relation_rows.pg_collation,
    "penstock_partition_ancestors": relation_rows.partition_ancestors,
    "penstock_partition_tree": relation_rows.partition_tree,
    "pg_publication": pg_publication,
    "pg_publication_rel": pg_publication_rel,
    "pg_publication_namespace": pg_publication_namespace,
    "pg_subscription_rel": pg_subscription_rel,
    "pg_authid": pg_authid,
    "pg_roles": pg_roles,
    "pg_user": pg_user,
    "pg_shadow": lambda snapshot: pg_user(snapshot, shadow=True),
}
_BY_VERSION: Final[Mapping[str, Callable[[CatalogSnapshot, int], Iterable[Row]]]] = {
    "pg_namespace": relation_rows.pg_namespace,
    "pg_class": relation_rows.pg_class,
    "pg_constraint": relation_rows.pg_constraint,
    "penstock_publication_tables": publication_table_rows,
    "pg_publication_tables": pg_publication_tables,
    "pg_subscription": pg_subscription,
    "pg_database": pg_database,
}

_ARROW: Final = {
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "INTEGER": pa.int32(),
    "SMALLINT": pa.int16(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "DECIMAL(38,6)": pa.decimal128(38, 6),
}
_LOADED: Final = {
    "timestamptz": pa.timestamp("us", "UTC"),
    "pg_lsn": pa.decimal128(20, 0),
}
"""Types that are loaded in another form than functions use, since queries compute with them."""
_ZEROS: Final[Mapping[str, object]] = {
    "bool": False,
    "char": "",
    "name": "",
    "int2": 0,
    "int4": 0,
    "oid": 0,
    "xid": 0,
    "regproc": 0,
    "float4": 0.0,
}
_EPOCH: Final = datetime.datetime(1970, 1, 1)


_AT_ONCE: Final = 256


def _checked(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows. Raises PenstockError (57014)."""
    for number, row in enumerate(rows):
        if not number % _AT_ONCE:
            check_for_interrupts()
        yield row


def table_rows(
    name: str, columns: Columns, snapshot: CatalogSnapshot, facts: SessionFacts
) -> pa.Table:
    """Return the catalog of that name with its rows."""
    rows = list(_checked(_rows(name, snapshot, facts)))
    nulls = name in snapshot.views
    return pa.table(
        [
            pa.array(
                [_cell(row, column, kind, nulls=nulls) for row in _checked(rows)],
                _LOADED.get(kind) or arrow_type(held_as(kind)),
            )
            for column, kind in columns
        ],
        names=[column for column, _ in columns],
    )


def arrow_type(held: str) -> pa.DataType:
    """Return the Arrow type of a DuckDB type that holds a catalog's values."""
    if held.endswith("[]"):
        return pa.list_(_ARROW[held[:-2]])
    return _ARROW[held]


def _rows(name: str, snapshot: CatalogSnapshot, facts: SessionFacts) -> Iterable[Mapping[str, Any]]:
    if name in snapshot.views:
        return snapshot.views[name]
    if name in _BUILDERS:
        return _BUILDERS[name](snapshot)
    if name in _BY_VERSION:
        return _BY_VERSION[name](snapshot, facts.version)
    if name == "pg_settings":
        return pg_settings(facts)
    return ()


def _cell(row: Mapping[str, Any], column: str, kind: str, *, nulls: bool) -> object:
    if column not in row:
        return None if nulls else _ZEROS.get(kind)
    value = row[column]
    if kind == "timestamptz" and isinstance(value, int | float):
        return _EPOCH + datetime.timedelta(seconds=value)
    if kind == "timestamptz" and isinstance(value, datetime.datetime) and value.tzinfo:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    if kind == "pg_lsn" and value is not None:
        return int(value if isinstance(value, int) else Lsn.parse(str(value)))
    if kind in ("text", "interval", "inet") and value is not None:
        return str(value)
    return value
