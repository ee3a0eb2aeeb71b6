"""The node's catalog as a transaction block sees it, with the tables that the block has made.

Statements of the block's session use ``BlockCatalog``. It keeps the tables and sequences that they
make in memory, until COMMIT puts them into the state store. Nobody else sees them before, and a
rollback has nothing to undo. Everything else is written immediately: new oids, and tables of the
warehouse that are seen for the first time.
"""

from __future__ import annotations

import contextlib
from collections import abc
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from penstock.catalog import pg_control
from penstock.catalog.block_commits import MadeTable
from penstock.catalog.catalog import Catalog, CatalogTransaction
from penstock.catalog.pg_class import LakeTable, PgClass
from penstock.catalog.pg_sequence import PgSequence, Sequence, SequenceParameters
from penstock.catalog.sequences import Sequences, SessionSequences, values_after
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from penstock.lsn import Lsn
from penstock.sqlstate import DuplicateTable, NumericValueOutOfRange

SequenceValues = MutableMapping[int, tuple[int, bool]]
"""The last value of each sequence, by oid, and whether it was given out. As in PostgreSQL, values
are not rolled back with the statement that asked for them."""


class BlockCatalog(Catalog):
    """The catalog of one transaction block.

    ``tables``, ``own_sequences``: the block's own, by oid. ``values`` holds the values of these
    sequences and is changed in place."""

    def __init__(self, catalog: Catalog, made: Iterable[MadeTable], values: SequenceValues) -> None:
        self._catalog = catalog
        self._store = catalog._store
        self.statistics = catalog.statistics
        self.node_lock = catalog.node_lock
        self.tables: dict[int, LakeTable] = {}
        self.own_sequences: dict[int, Sequence] = {}
        for table in made:
            self.tables[table.row.oid] = table.row
            self.own_sequences |= {sequence.oid: sequence for sequence in table.sequences}
        self.sequences = _SequenceValues(catalog.sequences, self.own_sequences, values)

    def close(self) -> None:
        """Leave the underlying catalog open."""

    @contextlib.contextmanager
    def read(self) -> Iterator[CatalogTransaction]:
        with self._catalog.read() as t:
            yield _with(t, dict(self.tables), dict(self.own_sequences))

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[CatalogTransaction]:
        tables, sequences = dict(self.tables), dict(self.own_sequences)
        with self._catalog.write(counted=counted) as t:
            yield _with(t, tables, sequences)
        self.tables.clear()
        self.tables.update(tables)
        self.own_sequences.clear()  # in place: ``_SequenceValues`` holds the same dict
        self.own_sequences.update(sequences)


def _with(
    t: CatalogTransaction, tables: dict[int, LakeTable], sequences: dict[int, Sequence]
) -> CatalogTransaction:
    connection = t.tables.connection
    return replace(
        t,
        tables=_Tables(connection, tables),
        sequences=_SequenceRows(connection, sequences),
    )


def _not_made(what: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"changes of {what} that the transaction block has not made cannot run inside of it"
    )


class _Tables(PgClass):
    """The node's tables and the block's; lookups find the block's first."""

    def __init__(self, connection: Connection, made: dict[int, LakeTable]) -> None:
        super().__init__(connection)
        self._made = made

    def all(self) -> tuple[LakeTable, ...]:
        found = [*super().all(), *self._made.values()]
        return tuple(sorted(found, key=lambda table: table.oid))

    def find(self, schema: str, name: str) -> LakeTable | None:
        for table in self._made.values():
            if (table.schema, table.name) == (schema, name):
                return table
        return super().find(schema, name)

    def find_oid(self, oid: int) -> LakeTable | None:
        return self._made.get(oid) or super().find_oid(oid)

    def create(self, schema: str, name: str, uri: str | None, **attributes: Any) -> LakeTable:
        if self.find(schema, name) is not None:
            raise DuplicateTable(f'relation "{name}" already exists')
        table = LakeTable(pg_control.new_oid(self.connection), schema, name, uri, **attributes)
        self._made[table.oid] = table
        return table

    def register(self, schema: str, name: str, uri: str, key: tuple[str, ...] | None) -> LakeTable:
        return PgClass(self.connection).register(schema, name, uri, key)

    def save(self, table: LakeTable) -> None:
        if table.oid not in self._made:
            raise _not_made("tables")
        self._made[table.oid] = table

    def keep_former(self, before: LakeTable, version: int, lsn: Lsn | None = None) -> None:
        """Keep nothing: nobody else has seen the table as it was."""

    def delete(self, oid: int) -> None:
        if self._made.pop(oid, None) is None:
            raise _not_made("tables")


class _SequenceRows(PgSequence):
    def __init__(self, connection: Connection, made: dict[int, Sequence]) -> None:
        super().__init__(connection)
        self._made = made

    def all(self) -> tuple[Sequence, ...]:
        found = [*super().all(), *self._made.values()]
        return tuple(sorted(found, key=lambda sequence: sequence.oid))

    def of_table(self, table: int) -> tuple[Sequence, ...]:
        mine = (sequence for sequence in self._made.values() if sequence.table == table)
        return (*super().of_table(table), *mine)

    def find_oid(self, oid: int) -> Sequence | None:
        return self._made.get(oid) or super().find_oid(oid)

    def create(
        self, name: str, table: int, column: str, identity: str, parameters: SequenceParameters
    ) -> Sequence:
        oid = pg_control.new_oid(self.connection)
        sequence = Sequence.of(oid, name, table, column, identity, parameters)
        self._made[oid] = sequence
        return sequence

    def save(self, sequence: Sequence) -> None:
        if sequence.oid not in self._made:
            raise _not_made("sequences")
        self._made[sequence.oid] = sequence

    def delete_of(self, table: int, column: str | None = None) -> None:
        for sequence in [one for one in self._made.values() if one.table == table]:
            if column in (None, sequence.column):
                del self._made[sequence.oid]


class _SequenceValues(Sequences):
    """Sequences as one session sees them: the block's are here, all others are the node's."""

    def __init__(
        self, sequences: Sequences, made: dict[int, Sequence], values: SequenceValues
    ) -> None:
        self._all = sequences
        self._made = made
        self._values = values

    def take(self, oid: int, count: int, session: SessionSequences) -> abc.Sequence[int]:
        row = self._made.get(oid)
        if row is None:
            return self._all.take(oid, count, session)
        values = values_after(self._now(row), count)
        self._values[oid] = values[-1], True
        session.got(oid, values[-1])
        return values

    def set(self, oid: int, value: int, session: SessionSequences, *, is_called: bool) -> int:
        row = self._made.get(oid)
        if row is None:
            return self._all.set(oid, value, session, is_called=is_called)
        if not row.minimum <= value <= row.maximum:
            raise NumericValueOutOfRange(
                f'setval: value {value} is out of bounds for sequence "{row.name}" '
                f"({row.minimum}..{row.maximum})"
            )
        self._values[oid] = value, is_called
        if is_called:
            session.values[oid] = value
        return value

    def restart(self, oid: int) -> None:
        if oid not in self._made:
            self._all.restart(oid)
        self._values.pop(oid, None)

    def current(self, oid: int, session: SessionSequences) -> int:
        row = self._made.get(oid)
        if row is None:
            return self._all.current(oid, session)
        if oid not in session.values:
            raise NotInPrerequisiteState(
                f'currval of sequence "{row.name}" is not yet defined in this session'
            )
        return session.values[oid]

    def last(self, session: SessionSequences) -> int:
        if session.last in self._made:
            return session.values[session.last]
        return self._all.last(session)

    def state(self, oid: int) -> tuple[int, bool]:
        row = self._made.get(oid)
        if row is None:
            return self._all.state(oid)
        now = self._now(row)
        return now.last_value, now.is_called

    def close(self) -> None:
        """Do nothing: no values are reserved ahead."""

    def _now(self, row: Sequence) -> Sequence:
        last_value, is_called = self._values.get(row.oid, (row.last_value, row.is_called))
        return replace(row, last_value=last_value, is_called=is_called)
