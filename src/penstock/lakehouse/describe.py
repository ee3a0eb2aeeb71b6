"""What a Delta table says of itself, whoever has written it.

In: a warehouse and a table's URI. Out: its metadata, and the names of the tables that a warehouse
holds. Unlike ``DeltaTable`` this also reads tables that we may not write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from penstock.lakehouse.log import log_folder
from penstock.lakehouse.names import earlier_folder_name, folder_name, written_names
from penstock.lakehouse.schema import KEY, SOURCE
from penstock.lakehouse.state import load
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse


@dataclass(frozen=True)
class Description:
    """``fields``: of Delta's schema JSON, in order. ``key``: PostgreSQL's names of its columns.

    ``key`` None: the table says nothing of a key; () says that it has none.
    ``name``: "schema.table" where a subscription or CREATE TABLE made the table, else None.
    """

    version: int
    fields: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...] | None
    name: str | None


def describe(warehouse: Warehouse, uri: str) -> Description | None:
    """The newest version of a table; None when there is none. Raises StorageError."""
    state = load(warehouse.storage, uri)
    if state is None:
        return None
    fields = tuple(json.loads(state.metadata["schemaString"])["fields"])
    sources = {field["name"]: source_name(field) for field in fields}
    key = state.properties.get(KEY)
    return Description(
        version=state.version,
        fields=fields,
        key=None if key is None else tuple(sources[n] for n in json.loads(key) if n in sources),
        name=state.properties.get(SOURCE),
    )


def source_name(field: Mapping[str, Any]) -> str:
    """PostgreSQL's name of a column."""
    return str((field.get("metadata") or {}).get(SOURCE, field["name"]))


def table_names(warehouse: Warehouse) -> Iterator[tuple[str, str]]:
    """(schema, table) of every Delta table in the warehouse, by PostgreSQL's names."""
    for schema in _folders(warehouse, warehouse.uri):
        if schema.startswith((".", OWN_FOLDER)):
            continue
        for table in _folders(warehouse, f"{warehouse.uri}/{schema}"):
            uri = f"{warehouse.uri}/{schema}/{table}"
            if warehouse.storage.exists(log_folder(uri)):
                yield _names(warehouse, uri, schema, table)


def _names(warehouse: Warehouse, uri: str, schema: str, table: str) -> tuple[str, str]:
    """The names of which the folders were made, where the folders say that they differ."""
    if folder_name(schema) == schema and folder_name(table) == table:
        return schema, table
    found = describe(warehouse, uri)
    for names in written_names(found.name) if found and found.name else ():
        for rule in (folder_name, earlier_folder_name):
            if tuple(map(rule, names)) == (schema, table):
                return names
    return schema, table


def _folders(warehouse: Warehouse, uri: str) -> list[str]:
    infos = warehouse.storage.list(uri)
    return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)
