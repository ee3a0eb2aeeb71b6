"""A lake table's columns as PostgreSQL types, for publishing: only read, never written.

In: a table's state. Out: its columns by their PostgreSQL names. A table that
replication could not maintain (NOT NULL, generated columns) can be published all the same; one
whose files are to be read in a way that is not known here cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.lakehouse.delta_types import arrow_type, delta_type, type_text
from penstock.lakehouse.protocol import check_readable
from penstock.lakehouse.schema import (
    DEFAULT,
    GENERATED,
    PHYSICAL_NAME,
    SOURCE,
    attgenerated,
    recorded_type,
)
from penstock.lakehouse.state import TableState
from penstock.pgtypes.pg_type import TEXT
from penstock.pgtypes.registry import type_of_arrow
from penstock.publication.row_filter import FilterColumn
from penstock.relation import AttGenerated
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.typed.query_nodes import OutputColumn


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """``delta``: name in the table; ``stored``: in its files (they differ where columns have been
    renamed); ``name``: in PostgreSQL. ``type_oid`` 0: follows ``type``. ``generation``: the
    expression where the node generates it; Delta's own are not PostgreSQL's.
    """

    name: str
    delta: str
    stored: str
    type: pa.DataType
    type_oid: int
    typmod: int
    not_null: bool
    generated: AttGenerated
    default: str | None = None
    generation: str | None = None


def columns_of(state: TableState) -> tuple[LakeColumn, ...]:
    """Columns in the table's order. Raises FeatureNotSupported for structs, maps, variants, and
    for tables that are not to be read by what is known here."""
    check_readable(state.protocol, state.metadata)
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return tuple(_column(field) for field in fields)


def _column(field: Mapping[str, Any]) -> LakeColumn:
    metadata = field.get("metadata") or {}
    oid, typmod = recorded_type(metadata)
    return LakeColumn(
        name=metadata.get(SOURCE, field["name"]),
        delta=field["name"],
        stored=metadata.get(PHYSICAL_NAME, field["name"]),
        type=arrow_type(field["type"]),
        type_oid=oid,
        typmod=typmod,
        not_null=field.get("nullable") is False,
        generated=attgenerated(metadata),
        default=metadata.get(DEFAULT),
        generation=metadata.get(GENERATED),
    )


def spark_type(kind: pa.DataType) -> str:
    """As Spark SQL writes it in CAST."""
    return type_text(delta_type(kind)).replace("long", "bigint")


def filter_column(column: LakeColumn) -> FilterColumn:
    """As row filters and column lists see it."""
    return FilterColumn(
        column.name,
        *column_type(column),
        generated=column.generated,
        generation=column.generation,
    )


def column_type(column: LakeColumn) -> tuple[int, int]:
    """(oid, typmod): the one that it came with, or what its Arrow type is in PostgreSQL."""
    return (column.type_oid, column.typmod) if column.type_oid else type_of_arrow(column.type)


def sent_type(column: LakeColumn) -> tuple[int, int]:
    """Whose output and send functions print its values: an enum's are those of text."""
    oid, typmod = column_type(column)
    return (TEXT, -1) if is_enum(oid) else (oid, typmod)


def output_column(column: LakeColumn) -> OutputColumn:
    """As queries and changes see it."""
    return OutputColumn(
        column.name,
        *column_type(column),
        column.default,
        column.generation,
        virtual=column.generated is AttGenerated.VIRTUAL,
    )
