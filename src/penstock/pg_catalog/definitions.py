"""Columns of PostgreSQL's catalogs by version, and queries of its views.

In: ``columns.toml`` and ``information_schema.toml``, read from servers, and ``views.toml``. Out:
names and types of every catalog's columns, queries of views.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

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
    """Return the query of a view, "" for a view without rows; None if it is no view here."""
    views = _load("views.toml")
    if schema == INFORMATION_SCHEMA:
        return str(views[INFORMATION_SCHEMA].get(name, ""))
    found = None if schema else views.get(name)
    return found if isinstance(found, str) else None


def is_internal(table: str) -> bool:
    """Tell whether a table is one that functions read and no query may name."""
    return table in _PENSTOCK


def _columns(text: str) -> Columns:
    pairs = (word.partition(":") for word in text.split())
    return tuple((name, _ODD_TYPES.get(kind, kind)) for name, _, kind in pairs)


@functools.cache
def _load(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(name).read_text("utf-8")
    return tomllib.loads(text)
