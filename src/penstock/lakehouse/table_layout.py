"""The layout of a Delta table's rows in files, as far as writers of files need it.

A ``TableLayout`` is read from a table's metaData and domainMetadata, or from the options of a new
table; it is a frozen value that is sent to executors. Columns are refused if Delta cannot partition
or cluster by them, or if readers would read different values. ``table_writer`` writes the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.identifiers import split_identifiers
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.statistics import has_order
from penstock.pgtypes.variant import type_name
from penstock.relation import TableName, qualified, table_of_option
from penstock.sqlstate import UndefinedColumn

CLUSTERING: Final = "delta.clustering"
"""The domain of the domainMetadata that names the columns of liquid clustering."""
_MOST_CLUSTERING: Final = 4
"""The largest number of columns that Delta clusters by."""


@dataclass(frozen=True)
class TableLayout:
    """A layout. ``partition_by``: columns (Delta names) whose values are in the Delta log and not
    in the files; ``cluster_by``: columns that must have statistics, whatever their position."""

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()


NO_LAYOUT: Final = TableLayout()


def layout_of(metadata: Mapping[str, Any], domains: Mapping[str, str]) -> TableLayout:
    """Return the layout of a table. ``domains``: the configurations of the domainMetadata."""
    clustering = json.loads(domains.get(CLUSTERING) or "{}").get("clusteringColumns") or ()
    return TableLayout(
        tuple(metadata.get("partitionColumns") or ()),
        tuple(path[0] for path in clustering),
    )


def clustering_configuration(layout: TableLayout) -> str:
    """Return the configuration of the domainMetadata ``CLUSTERING``."""
    return json.dumps({"clusteringColumns": [[name] for name in layout.cluster_by]})


def check_layout(table: str, layout: TableLayout, columns: pa.Schema) -> None:
    """Raise FeatureNotSupported if a table with these columns cannot have this layout."""
    for way, names in (("partitioned", layout.partition_by), ("clustered", layout.cluster_by)):
        for name in names:
            if name not in columns.names:
                raise FeatureNotSupported(
                    f'target table "{table}" cannot be without column "{name}"',
                    detail=f"Its Delta table is {way} by it.",
                    hint="Move the table away and refresh: the copy makes a new one.",
                )
    for name in layout.partition_by:
        if not _has_text(columns.field(name).type):
            raise FeatureNotSupported(
                f'target table "{table}" is partitioned by column "{name}", whose type is '
                f"{type_name(columns.field(name).type)}",
                detail="Values of this type have no text in Delta's log that all readers take for "
                "the same.",
                hint="Partition it by other columns.",
            )
    if layout.partition_by and len(layout.partition_by) == len(columns):
        raise FeatureNotSupported(
            f'target table "{table}" is partitioned by all of its columns',
            detail="Rows of a Delta table have at least one column in their files.",
            hint="Partition it by fewer columns.",
        )


def check_new_layout(table: str, layout: TableLayout, columns: pa.Schema) -> None:
    """Raise FeatureNotSupported if a new table cannot have this layout, or if Delta would not
    cluster the table."""
    check_layout(table, layout, columns)
    for name in layout.cluster_by:
        if not has_order(columns.field(name).type):
            raise FeatureNotSupported(
                f'target table "{table}" cannot be clustered by column "{name}", whose type is '
                f"{type_name(columns.field(name).type)}",
                detail="Delta keeps no bounds of its values.",
                hint="Cluster it by other columns.",
            )
    if len(layout.cluster_by) > _MOST_CLUSTERING:
        raise FeatureNotSupported(
            f'target table "{table}" is to be clustered by {len(layout.cluster_by)} columns',
            detail=f"Delta clusters by {_MOST_CLUSTERING} at most.",
        )


def _has_text(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind))


# The options partition_by and cluster_by of a subscription give the layouts of new tables:
# ``schema.table (column, ...); table (column)``, names at the publisher. A syntax error is reported
# when the option is set, a missing column when the table is created.

PARTITION_BY: Final = "partition_by"
CLUSTER_BY: Final = "cluster_by"
_QUOTED: Final = '"(?:[^"]|"")*"'
_ITEM: Final = re.compile(rf'\s*((?:{_QUOTED}|[^"();,])+)\(((?:{_QUOTED}|[^"();])*)\)\s*(?:[;,]|$)')
_HINT: Final = "It is a list of tables with columns: public.orders (region, day); events (day)."


@dataclass(frozen=True)
class NewTableLayouts:
    """The columns of the two options, by table."""

    partition_by: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    cluster_by: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, partition_by: str, cluster_by: str) -> NewTableLayouts:
        """Parse both options. Raises InvalidParameterValue."""
        made = cls(column_lists(PARTITION_BY, partition_by), column_lists(CLUSTER_BY, cluster_by))
        both = made.partition_by.keys() & made.cluster_by.keys()
        if both:
            raise InvalidParameterValue(
                f'table "{qualified(*min(both))}" is in {PARTITION_BY} and in {CLUSTER_BY}',
                hint="Delta clusters only tables without partitions.",
            )
        return made

    def layout_of(self, table: TableName, schema: TableSchema) -> TableLayout:
        """Return the layout of a new table. Raises InvalidParameterValue (42703)."""
        return TableLayout(
            _names(PARTITION_BY, self.partition_by.get(table, ()), table, schema),
            _names(CLUSTER_BY, self.cluster_by.get(table, ()), table, schema),
        )


def column_lists(option: str, text: str) -> dict[TableName, tuple[str, ...]]:
    """Parse an option's text; return the columns by table. Raises InvalidParameterValue."""
    found: dict[TableName, tuple[str, ...]] = {}
    at = 0
    while text[at:].strip():
        item = _ITEM.match(text, at)
        table = table_of_option(split_identifiers(item[1], ".")) if item else None
        columns = split_identifiers(item[2]) if item else None
        if item is None or table is None or not columns:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"', hint=_HINT
            )
        if table in found or len(set(columns)) < len(columns):
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"',
                detail=f'Table "{qualified(*table)}", or one of its columns, is there twice.',
            )
        found[table] = columns
        at = item.end()
    return found


def _names(
    option: str, columns: tuple[str, ...], table: TableName, schema: TableSchema
) -> tuple[str, ...]:
    for column in columns:
        if column not in schema.by_source:
            raise InvalidParameterValue(
                f'column "{column}" of parameter "{option}" is none of table "{qualified(*table)}"',
                detail=f"Its columns are {', '.join(schema.by_source)}.",
                hint=f"Set it anew: ALTER SUBSCRIPTION ... SET ({option} = '...').",
                sqlstate=UndefinedColumn.default_sqlstate,
            )
    return tuple(schema.by_source[column].name for column in columns)
