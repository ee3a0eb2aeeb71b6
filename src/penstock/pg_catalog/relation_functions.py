"""System information functions over relations (ruleutils.c, dbsize.c).

In: oids. Out: PostgreSQL's texts. Every public method is an SQL function of its name; missing
objects give what PostgreSQL gives.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.pg_catalog.name_functions import NameFunctions
from penstock.pg_catalog.privileges import has_privilege
from penstock.pg_catalog.relations import (
    Index,
    is_partitioned,
    replica_identity_index,
)
from penstock.sql.grammar.parse_expression import without_parentheses
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import UndefinedColumn

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_LIMIT: Final = 10 * 1024
_OF_SEQUENCE: Final = re.compile(r"nextval\(([0-9]+)\)")
"""The default of a serial column, as the catalogs keep it."""


class RelationFunctions(NameFunctions):
    """What relations are made of, how large they are, and who may read them."""

    # Definitions

    def format_type(self, oid: int | None, typmod: int | None) -> str | None:
        return self._type_name(oid, typmod)

    def pg_get_expr(self, node: str, _relation: int, pretty: bool | None) -> str:
        sequence = _OF_SEQUENCE.fullmatch(node)
        if sequence is not None:
            name = simple_quote_literal(self.regclassout(int(sequence[1])))
            return f"nextval({name}::regclass)"
        return without_parentheses(node) if pretty else node

    def pg_relation_is_publishable(self, oid: int) -> bool | None:
        if oid in self._indexes:
            return False
        table = self._table(oid)
        return None if table is None else table.unpublishable is None

    def pg_get_replica_identity_index(self, oid: int) -> int | None:
        table = self._table(oid)
        index = None if table is None else replica_identity_index(table)
        return None if index is None else index.oid

    def pg_get_indexdef(self, oid: int, column: int | None, _pretty: bool | None) -> str | None:
        index = self._indexes.get(oid)
        if index is None:
            return None
        if column:
            return (
                quote_identifier(index.columns[column - 1]) if column <= len(index.columns) else ""
            )
        lake = index.table.lake
        only = "ONLY " if is_partitioned(index.table) else ""
        relation = f"{quote_identifier(lake.schema)}.{quote_identifier(lake.name)}"
        return (
            f"CREATE UNIQUE INDEX {quote_identifier(index.name)} ON {only}{relation} "
            f"USING btree ({_names(index)})"
        )

    def pg_get_constraintdef(self, oid: int, _pretty: bool | None) -> str | None:
        index = self._constraints.get(oid)
        if index is not None:
            kind = "PRIMARY KEY" if index.primary else "UNIQUE"
            return f"{kind} ({_names(index)})"
        return None

    def pg_get_partkeydef(self, oid: int) -> str | None:
        table = self._table(oid)
        return None if table is None else table.lake.partition_key

    def pg_get_partition_constraintdef(self, _: int) -> str | None:
        return None

    def pg_get_viewdef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_statisticsobjdef_columns(self, _: int) -> str | None:
        return None

    def pg_get_triggerdef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_ruledef(self, _: int, _pretty: bool | None) -> str | None:
        return None

    def pg_get_function_result(self, _: int) -> str | None:
        return None

    pg_get_function_arguments = pg_get_function_result
    pg_get_function_identity_arguments = pg_get_function_result
    pg_get_functiondef = pg_get_function_result

    def pg_get_serial_sequence(self, name: str, column: str | None) -> str | None:
        if column is None:
            return None
        oid = self.regclassin(name)
        table = self._table(oid)
        if table is not None and table.number(column) is None:
            shown = f'column "{column}" of relation "{table.lake.name}"'
            raise UndefinedColumn(f"{shown} does not exist")
        for sequence in self._snapshot.sequences:
            if (sequence.table, sequence.column) == (oid, column):
                return ".".join(map(quote_identifier, self._relations[sequence.oid]))
        return None

    # Sizes and comments

    def pg_table_size(self, oid: int) -> int | None:
        table = self._table(oid)
        if table is None:
            return 0 if oid in self._indexes else None
        return table.size

    def pg_relation_size(self, oid: int, _fork: str | None) -> int | None:
        return self.pg_table_size(oid)

    def pg_total_relation_size(self, oid: int) -> int | None:
        return self.pg_table_size(oid)

    def pg_indexes_size(self, oid: int) -> int | None:
        return None if self._table(oid) is None else 0

    def pg_database_size(self, _: int) -> int:
        return sum(table.size for table in self._snapshot.tables)

    def pg_size_pretty(self, size: int) -> str:
        """dbsize.c: halves are rounded away from zero, a unit is used from 10 of the next on."""
        if abs(size) < _LIMIT:
            return f"{size} bytes"
        unit, value = 0, abs(size) >> 9  # keeps one bit for rounding
        unit = 1
        while value >= 2 * _LIMIT - 1 and unit < len(_UNITS) - 1:
            value >>= 10
            unit += 1
        rounded = (value + 1) // 2
        return f"{'-' if size < 0 else ''}{rounded} {_UNITS[unit]}"

    def obj_description(self, _: int, _catalog: str | None) -> str | None:
        return None

    def shobj_description(self, _: int, _catalog: str) -> str | None:
        return None

    def col_description(self, _: int, _column: int) -> str | None:
        return None

    def has_table_privilege(self, first: str, second: str, third: str | None) -> bool | None:
        """(role, table, privilege) or (table, privilege)."""
        role, table, privilege = (
            (self._facts.user, first, second) if third is None else (first, second, third)
        )
        oid = self.regclassin(table)
        return has_privilege(self._snapshot, role, oid, privilege, self._facts.version)

    has_any_column_privilege = has_table_privilege


def _names(index: Index) -> str:
    return ", ".join(quote_identifier(column) for column in index.columns)
