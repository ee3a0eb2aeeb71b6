"""How a subscription lays out the tables that its copies make (partition_by, cluster_by).

In: the texts of both options: ``schema.table (column, ...); table (column)``, names at the
publisher. Out: the layout of a new table. What is wrong with a text is told when the option is set,
what does not fit a table when that is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.identifiers import split_identifiers
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table_layout import TableLayout
from penstock.relation import TableName, qualified, table_of_option
from penstock.sqlstate import UndefinedColumn

PARTITION_BY: Final = "partition_by"
CLUSTER_BY: Final = "cluster_by"
_QUOTED: Final = '"(?:[^"]|"")*"'
_ITEM: Final = re.compile(rf'\s*((?:{_QUOTED}|[^"();,])+)\(((?:{_QUOTED}|[^"();])*)\)\s*(?:[;,]|$)')
_HINT: Final = "It is a list of tables with columns: public.orders (region, day); events (day)."


@dataclass(frozen=True)
class NewTableLayouts:
    """By table, the columns of the two options."""

    partition_by: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    cluster_by: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, partition_by: str, cluster_by: str) -> NewTableLayouts:
        """Raises InvalidParameterValue."""
        made = cls(column_lists(PARTITION_BY, partition_by), column_lists(CLUSTER_BY, cluster_by))
        both = made.partition_by.keys() & made.cluster_by.keys()
        if both:
            raise InvalidParameterValue(
                f'table "{qualified(*min(both))}" is in {PARTITION_BY} and in {CLUSTER_BY}',
                hint="Delta clusters tables without partitions only.",
            )
        return made

    def layout_of(self, table: TableName, schema: TableSchema) -> TableLayout:
        """Of a table that is to be made. Raises InvalidParameterValue (42703)."""
        return TableLayout(
            _names(PARTITION_BY, self.partition_by.get(table, ()), table, schema),
            _names(CLUSTER_BY, self.cluster_by.get(table, ()), table, schema),
        )


NO_LAYOUTS: Final = NewTableLayouts()


def column_lists(option: str, text: str) -> dict[TableName, tuple[str, ...]]:
    """The columns by table. Raises InvalidParameterValue."""
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
