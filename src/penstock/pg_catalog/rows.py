"""Rows of every catalog, as columns for DuckDB.

In: a table's name. Out: an Arrow table with the columns of the reported version. A catalog that
nothing here fills is empty, as it would be in a database without such objects.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.lsn import Lsn
from penstock.pg_catalog import (
    enum_rows,
    publication_rows,
    relation_rows,
    role_rows,
    sequence_rows,
    type_rows,
)
from penstock.pg_catalog.definitions import Columns
from penstock.pg_catalog.relation_rows import Row
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogSnapshot
from penstock.sql.to_duckdb.catalog_lowering import held_as

_BUILDERS: Final[Mapping[str, Callable[[CatalogSnapshot], Iterable[Row]]]] = {
    "pg_namespace": relation_rows.pg_namespace,
    "pg_attribute": relation_rows.pg_attribute,
    "pg_attrdef": relation_rows.pg_attrdef,
    "pg_index": relation_rows.pg_index,
    "pg_inherits": relation_rows.pg_inherits,
    "pg_sequence": sequence_rows.pg_sequence,
    "pg_depend": sequence_rows.pg_depend,
    "pg_partitioned_table": relation_rows.pg_partitioned_table,
    "pg_type": type_rows.pg_type,
    "pg_enum": enum_rows.pg_enum,
    "pg_am": type_rows.pg_am,
    "penstock_keywords": type_rows.keywords,
    "pg_collation": type_rows.pg_collation,
    "penstock_partition_ancestors": relation_rows.partition_ancestors,
    "penstock_partition_tree": relation_rows.partition_tree,
    "pg_publication": publication_rows.pg_publication,
    "pg_publication_rel": publication_rows.pg_publication_rel,
    "pg_publication_namespace": publication_rows.pg_publication_namespace,
    "pg_subscription_rel": publication_rows.pg_subscription_rel,
    "pg_replication_slots": publication_rows.pg_replication_slots,
    "pg_authid": role_rows.pg_authid,
    "pg_roles": role_rows.pg_roles,
    "pg_user": role_rows.pg_user,
    "pg_shadow": lambda snapshot: role_rows.pg_user(snapshot, shadow=True),
}
_BY_VERSION: Final[Mapping[str, Callable[[CatalogSnapshot, int], Iterable[Row]]]] = {
    "pg_class": relation_rows.pg_class,
    "pg_constraint": relation_rows.pg_constraint,
    "penstock_publication_tables": publication_rows.publication_table_rows,
    "pg_publication_tables": publication_rows.pg_publication_tables,
    "pg_subscription": publication_rows.pg_subscription,
    "pg_database": role_rows.pg_database,
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
"""Types that queries compute with in another form than functions do."""
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


def table_rows(
    name: str, columns: Columns, snapshot: CatalogSnapshot, facts: SessionFacts
) -> pa.Table:
    """The catalog of that name with its rows."""
    rows = list(_rows(name, snapshot, facts))
    nulls = name in snapshot.views
    return pa.table(
        [
            pa.array(
                [_cell(row, column, kind, nulls=nulls) for row in rows],
                _LOADED.get(kind) or arrow_type(held_as(kind)),
            )
            for column, kind in columns
        ],
        names=[column for column, _ in columns],
    )


def arrow_type(held: str) -> pa.DataType:
    """The Arrow type of a DuckDB type that holds a catalog's values."""
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
        return role_rows.pg_settings(facts)
    if name == "pg_stat_activity":
        return role_rows.pg_stat_activity(snapshot, facts)
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
