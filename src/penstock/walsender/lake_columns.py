"""A lake table's columns as PostgreSQL types, for publishing: only read, never written.

In: a table's state. Out: its columns by their PostgreSQL names. A table that
replication could not maintain (NOT NULL, generated columns) can be published all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.lakehouse.delta_types import arrow_type, delta_type, type_text
from penstock.lakehouse.schema import SOURCE, TYPE
from penstock.lakehouse.state import TableState
from penstock.pgtypes.of_arrow import pg_type
from penstock.publication.row_filter import FilterColumn


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """``delta``: name in the table; ``name``: in PostgreSQL. ``type_oid`` 0: follows ``type``."""

    name: str
    delta: str
    type: pa.DataType
    type_oid: int
    typmod: int
    not_null: bool


def columns_of(state: TableState) -> tuple[LakeColumn, ...]:
    """Columns in the table's order. Raises FeatureNotSupported for structs, maps, variants."""
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return tuple(_column(field) for field in fields)


def _column(field: Mapping[str, Any]) -> LakeColumn:
    metadata = field.get("metadata") or {}
    oid, _, typmod = str(metadata.get(TYPE, "0,-1")).partition(",")
    return LakeColumn(
        name=metadata.get(SOURCE, field["name"]),
        delta=field["name"],
        type=arrow_type(field["type"]),
        type_oid=int(oid),
        typmod=int(typmod or -1),
        not_null=field.get("nullable") is False,
    )


def spark_type(kind: pa.DataType) -> str:
    """As Spark SQL writes it in CAST."""
    return type_text(delta_type(kind)).replace("long", "bigint")


def filter_column(column: LakeColumn) -> FilterColumn:
    """As row filters and column lists see it."""
    if column.type_oid:
        return FilterColumn(column.name, column.type_oid, column.typmod)
    return FilterColumn(column.name, *pg_type(column.type))
