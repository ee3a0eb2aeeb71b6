"""Which tables of the lake a session's statement names.

In: names, roles, consistent points. Out: rows of the catalog, checked for rights as PostgreSQL
checks them; versions and columns. A partitioned table is its leaves.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.catalog import Catalog, LakeTable, Role, Sequence, SessionSequences
from penstock.errors import InsufficientPrivilege
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.state import load, load_at
from penstock.lakehouse.warehouse import Warehouse
from penstock.sql import RangeVar
from penstock.sqlstate import UndefinedTable
from penstock.walsender.lake_columns import LakeColumn, columns_of, spark_type
from penstock.walsender.sequencer import Position, Sequencer

_PUBLIC: Final = "public"


@dataclass(frozen=True, slots=True)
class BlockPosition(Position):
    """A consistent point with what a transaction block has changed. ``staged``: the files of the
    tables that it has changed, by oid."""

    staged: Mapping[int, Mapping[str, DataFile]]


class LakeTables:
    """Over one warehouse; for every session."""

    def __init__(self, warehouse: Warehouse, catalog: Catalog, sequencer: Sequencer) -> None:
        self._warehouse = warehouse
        self._catalog = catalog
        self._sequencer = sequencer

    def find(self, name: RangeVar, role: Role, *, owner: bool = False) -> LakeTable:
        """``owner``: it is to be changed, not only read. Raises PenstockError (42P01, 42501)."""
        if self._named(name) is None:
            self._sequencer.step(discover=True)  # it may be new in the warehouse
        with self._catalog.read() as t:
            table = t.tables.find(name.schema or _PUBLIC, name.name)
            if table is None:
                raise UndefinedTable(f'relation "{name}" does not exist')
            mine = role.superuser or table.owner == role.oid
            if not mine and (owner or not t.roles.may_select(table.oid, role.oid)):
                raise InsufficientPrivilege(f"permission denied for table {table.name}")
        return table

    def _named(self, name: RangeVar) -> LakeTable | None:
        with self._catalog.read() as t:
            return t.tables.find(name.schema or _PUBLIC, name.name)

    def sequences(self, table: LakeTable) -> Mapping[str, Sequence]:
        """Of its columns, by their names."""
        with self._catalog.read() as t:
            return {sequence.column: sequence for sequence in t.sequences.of_table(table.oid)}

    def restart_sequences(self, table: LakeTable) -> None:
        """ResetSequence: they begin again."""
        for sequence in self.sequences(table).values():
            self._catalog.sequences.restart(sequence.oid)

    def take(self, oid: int, count: int, *, session: SessionSequences) -> abc.Sequence[int]:
        """The next values of a sequence, for a session. Raises PenstockError (42P01, 2200H)."""
        return self._catalog.sequences.take(oid, count, session)

    def leaves(self, table: LakeTable) -> list[LakeTable]:
        """The table, or the partitions that hold its rows: none where there is no partition."""
        return [member for member in self.tree(table) if member.partition_key is None]

    def tree(self, table: LakeTable) -> list[LakeTable]:
        """The table, its partitions and theirs."""
        if table.partition_key is None:
            return [table]
        with self._catalog.read() as t:
            children = [child for child in t.tables.all() if child.parent == table.oid]
        return [table, *(member for child in children for member in self.tree(child))]

    def version(self, table: LakeTable, at: Position) -> int:
        """The version of a leaf at a consistent point. Raises UndefinedObject."""
        version = at.versions.get(table.oid)
        if version is None:
            # Known since the snapshot was taken.
            version = self._sequencer.position(discover=True).versions.get(table.oid)
        if version is None:
            raise UndefinedTable(f'relation "{table.qualified_name}" does not exist')
        return version

    @staticmethod
    def staged(table: LakeTable, at: Position) -> tuple[DataFile, ...] | None:
        """The files of a leaf that a transaction block has changed; None: those of its version."""
        files = at.staged.get(table.oid) if isinstance(at, BlockPosition) else None
        return None if files is None else tuple(files.values())

    def columns(self, table: LakeTable, version: int | None = None) -> tuple[LakeColumn, ...]:
        """At a version, or now; a partitioned table has a Delta table without rows for them."""
        storage = self._warehouse.storage
        uri = table.uri or self._warehouse.table_uri(table.schema, table.name)
        if version is not None:
            return columns_of(load_at(storage, uri, version))
        state = load(storage, uri)
        if state is None:
            raise UndefinedTable(f'relation "{table.qualified_name}" does not exist')
        return columns_of(state)

    def columns_at(self, table: LakeTable, at: Position) -> tuple[LakeColumn, ...]:
        """At a consistent point: those of a leaf; now where there is none."""
        leaf = next(iter(self.leaves(table)), None)
        if leaf is None:
            return self.columns(table)
        return self.columns(leaf, self.version(leaf, at))

    def spark_columns(self, table: LakeTable) -> tuple[tuple[str, str], ...]:
        """(name in Delta, Spark type), now."""
        return tuple((column.delta, spark_type(column.type)) for column in self.columns(table))


def is_partitioned(table: LakeTable) -> bool:
    """Whether it has partitions, or is one."""
    return table.partition_key is not None or table.parent is not None
