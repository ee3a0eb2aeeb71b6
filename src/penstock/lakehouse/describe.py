"""What a Delta table says of itself, by any writer.

In: a warehouse and a table's URI. Out: its metadata, and the names of the tables that a warehouse
holds. Unlike ``DeltaTable`` this also reads tables that we may not write.
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
    """``fields``: of Delta's schema JSON, in order. ``key``: PostgreSQL's names of its columns.

    ``key`` None: the table says nothing of a key; () says that it has none.
    ``name``: "schema.table" where a subscription or CREATE TABLE made the table, else None.
    ``id``: the Delta table's own.
    """

    version: int
    id: str
    fields: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...] | None
    name: str | None


def describe(warehouse: Warehouse, uri: str) -> TableDescription | None:
    """The newest version of a table; None when there is none. Raises StorageError."""
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
    """PostgreSQL's name of a column."""
    return str((field.get("metadata") or {}).get(SOURCE, field["name"]))


def table_names(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """(schema, table) of every Delta table in the warehouse, by PostgreSQL's names.

    A folder that cannot be read hides nothing but what is in it. Raises StorageError where the
    warehouse itself cannot be read.
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
    """Whether a table is there, as far as one can see."""
    try:
        return warehouse.storage.exists(log_folder(uri))
    except StorageError:
        return True


def _names(warehouse: Warehouse, uri: str, schema: str, table: str) -> tuple[str, str]:
    """The names of which the folders were made, where the folders say that they differ."""
    if folder_name(schema) == schema and folder_name(table) == table:
        return schema, table
    found = _if_readable(warehouse, uri)
    for names in written_names(found.name) if found and found.name else ():
        for rule in (folder_name, earlier_folder_name):
            if tuple(map(rule, names)) == (schema, table):
                return names
    return schema, table


def _if_readable(warehouse: Warehouse, uri: str) -> TableDescription | None:
    """None, too, where the table cannot be read: where it is needed, that is an error."""
    try:
        return describe(warehouse, uri)
    except PenstockError as error:
        log.debug("%s", error.message)
        return None


def _folders(warehouse: Warehouse, uri: str) -> list[str]:
    infos = warehouse.storage.list(uri)
    return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
