"""Look up the tables of the lake that statements name.

``LakeTables`` finds tables by name, checks privileges as PostgreSQL does, and returns versions and
columns at a consistent point. The rows of a partitioned table are those of its leaves.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    LakeTable,
    Role,
    Sequence,
    SessionSequences,
)
from penstock.errors import InsufficientPrivilege
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.state import load, load_at
from penstock.lakehouse.warehouse import Warehouse
from penstock.sql import RangeVar
from penstock.sql.builtin.search_path import check_database, schemas_to_search
from penstock.sql.grammar.partition_bound import key_columns
from penstock.sqlstate import UndefinedTable
from penstock.walsender.lake_columns import LakeColumn, columns_of, spark_type
from penstock.walsender.sequencer import Position, Sequencer


@dataclass(frozen=True, slots=True)
class BlockPosition(Position):
    """A consistent point with the changes of a transaction block. ``staged``: the files of the
    tables that the block has changed, by oid."""

    staged: Mapping[int, Mapping[str, DataFile]]


class LakeTables:
    """Finds the tables of one warehouse, for all sessions."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog, sequencer: Sequencer) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._sequencer = sequencer

    def find(self, name: RangeVar, role: Role, *, owner: bool = False) -> LakeTable:
        """Find a table by its name. ``owner``: the role must own the table, because the statement
        changes it. Raises PenstockError (42P01, 42501)."""
        if self._named(name) is None:
            self._sequencer.step(discover=True)  # the table may be new in the warehouse
        with self._catalog.read() as t:
            table = _named(t, name)
            if table is None:
                raise UndefinedTable(f'relation "{name}" does not exist')
            mine = role.superuser or table.owner == role.oid
            if not mine and (owner or not t.roles.may_select(table.oid, role.oid)):
                raise InsufficientPrivilege(f"permission denied for table {table.name}")
        return table

    def _named(self, name: RangeVar) -> LakeTable | None:
        with self._catalog.read() as t:
            return _named(t, name)

    def sequences(self, table: LakeTable) -> Mapping[str, Sequence]:
        """Return the sequences of the table's columns, by column name."""
        with self._catalog.read() as t:
            return {sequence.column: sequence for sequence in t.sequences.of_table(table.oid)}

    def restart_sequences(self, table: LakeTable) -> None:
        """Restart the sequences of the table's columns (ResetSequence)."""
        for sequence in self.sequences(table).values():
            self._catalog.sequences.restart(sequence.oid)

    def take(self, oid: int, count: int, *, session: SessionSequences) -> abc.Sequence[int]:
        """Take the next ``count`` values of a sequence, for a session. Raises PenstockError (42P01,
        2200H)."""
        return self._catalog.sequences.take(oid, count, session)

    def leaves(self, table: LakeTable) -> list[LakeTable]:
        """Return the table, or for a partitioned table the partitions that hold its rows."""
        return [member for member in self.tree(table) if member.partition_key is None]

    def tree(self, table: LakeTable) -> list[LakeTable]:
        """Return the table and its partitions of all levels."""
        if table.partition_key is None:
            return [table]
        with self._catalog.read() as t:
            children = [child for child in t.tables.all() if child.parent == table.oid]
        return [table, *(member for child in children for member in self.tree(child))]

    def partition_keys(self, table: LakeTable) -> frozenset[str]:
        """Return the names of the columns that decide to which partition a row belongs: the
        partition keys of the table, of its ancestors and of its partitions."""
        with self._catalog.read() as t:
            found, above = list(t.tables.family(table)), table
            while (parent := t.tables.find_oid(above.parent or 0)) is not None:
                found.append(above := parent)
        keys = [each.partition_key for each in found if each.partition_key is not None]
        return frozenset(name for key in keys for name in key_columns(key))

    def version(self, table: LakeTable, at: Position) -> int:
        """Return the version of a leaf at a consistent point. Raises UndefinedTable."""
        version = at.versions.get(table.oid)
        if version is None:
            # The table was discovered after the consistent point was taken.
            version = self._sequencer.position(discover=True).versions.get(table.oid)
        if version is None:
            raise UndefinedTable(f'relation "{table.qualified_name}" does not exist')
        return version

    @staticmethod
    def staged(table: LakeTable, at: Position) -> tuple[DataFile, ...] | None:
        """Return the files of a leaf, including a transaction block's changes; None if the block
        has not changed the leaf."""
        files = at.staged.get(table.oid) if isinstance(at, BlockPosition) else None
        return None if files is None else tuple(files.values())

    def columns(self, table: LakeTable, version: int | None = None) -> tuple[LakeColumn, ...]:
        """Return the columns at a version, or at the newest version if None. The columns of a
        partitioned table are stored in a Delta table without rows."""
        storage = self._warehouse.storage
        uri = table.uri or self._warehouse.table_uri(table.schema, table.name)
        if version is not None:
            return columns_of(load_at(storage, uri, version))
        state = load(storage, uri)
        if state is None:
            raise UndefinedTable(f'relation "{table.qualified_name}" does not exist')
        return columns_of(state)

    def columns_at(self, table: LakeTable, at: Position) -> tuple[LakeColumn, ...]:
        """Return the columns at a consistent point: the columns of a leaf, or the table's present
        columns if it has no leaf."""
        leaf = next(iter(self.leaves(table)), None)
        if leaf is None:
            return self.columns(table)
        return self.columns(leaf, self.version(leaf, at))

    def spark_columns(self, table: LakeTable) -> tuple[tuple[str, str], ...]:
        """Return the present columns as (name in Delta, Spark type)."""
        return tuple((column.delta, spark_type(column.type)) for column in self.columns(table))


def _named(transaction: CatalogTransaction, name: RangeVar) -> LakeTable | None:
    """Return the table of a name, in the first schema of the search path that has one."""
    check_database(name.catalog, str(name))
    schemas = schemas_to_search(name.schema)
    found = (transaction.tables.find(schema, name.name) for schema in schemas)
    return next((table for table in found if table is not None), None)


def is_partitioned(table: LakeTable) -> bool:
    """Tell whether the table has partitions, or is one."""
    return table.partition_key is not None or table.parent is not None
