"""Descriptions of Delta tables, whoever has made them.

``describe`` returns the metadata of the table at a URI, ``table_names`` the names of all tables in
a warehouse. Unlike ``DeltaTable`` they also read tables that we may not write.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.names import earlier_folder_name, folder_name, written_names
from penstock.lakehouse.schema import KEY, SOURCE
from penstock.lakehouse.state import TableState, load
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableDescription:
    """The metadata of one version of a Delta table.

    ``fields``: the fields of Delta's schema JSON, in order. ``key``: PostgreSQL's names of the key
    columns; () if the metadata records that there is no key, None if it records nothing.
    ``name``: "schema.table" if a subscription or CREATE TABLE made the table, else None.
    ``id``: the Delta table's id.
    """

    version: int
    id: str
    fields: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...] | None
    name: str | None


def describe(warehouse: Warehouse, uri: str) -> TableDescription | None:
    """Return the newest version of a table; None if there is none. Raises StorageError."""
    try:
        state = load(warehouse.storage, uri)
        return None if state is None else _description(state)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f'log of table "{uri}" cannot be read: {error!r}', sqlstate="XX001"
        ) from None


def _description(state: TableState) -> TableDescription:
    written = json.loads(state.metadata["schemaString"])["fields"]
    fields = tuple(field for field in written if source_name(field))  # without ROW
    sources = {field["name"]: source_name(field) for field in fields}
    key = state.properties.get(KEY)
    return TableDescription(
        version=state.version,
        id=str(state.metadata["id"]),
        fields=fields,
        key=None if key is None else tuple(sources[n] for n in json.loads(key) if n in sources),
        name=state.properties.get(SOURCE),
    )


def source_name(field: Mapping[str, Any]) -> str:
    """Return PostgreSQL's name of a column."""
    return str((field.get("metadata") or {}).get(SOURCE, field["name"]))


def table_names(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """Yield (schema, table) of every Delta table in the warehouse, by PostgreSQL's names.

    A schema's folder that cannot be read is left out. Raises StorageError if the warehouse itself
    cannot be read.
    """
    for schema in _folders(warehouse, warehouse.uri):
        if schema.startswith((".", OWN_FOLDER)):
            continue
        try:
            tables = _folders(warehouse, f"{warehouse.uri}/{schema}")
        except StorageError as error:
            log.debug("schema left out: %s", error.message)
            continue
        for table in tables:
            uri = f"{warehouse.uri}/{schema}/{table}"
            if _has_log(warehouse, uri):
                yield _names(warehouse, uri, schema, table)


def _has_log(warehouse: Warehouse, uri: str) -> bool:
    """Return whether there is a table; True also if that cannot be found out."""
    try:
        return warehouse.storage.exists(log_folder(uri))
    except StorageError:
        return True


def _names(warehouse: Warehouse, uri: str, schema: str, table: str) -> tuple[str, str]:
    """Return the names of a table and its schema. If the folders could have been made from other
    names, the names are read from the table."""
    if folder_name(schema) == schema and folder_name(table) == table:
        return schema, table
    found = _if_readable(warehouse, uri)
    for names in written_names(found.name) if found and found.name else ():
        for rule in (folder_name, earlier_folder_name):
            if tuple(map(rule, names)) == (schema, table):
                return names
    return schema, table


def _if_readable(warehouse: Warehouse, uri: str) -> TableDescription | None:
    """Return a table's description; None if there is no table, or it cannot be read. The next user
    of the table reports the error."""
    try:
        return describe(warehouse, uri)
    except PenstockError as error:
        log.debug("%s", error.message)
        return None


def _folders(warehouse: Warehouse, uri: str) -> list[str]:
    infos = warehouse.storage.list(uri)
    return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
