"""Rows that prepared transactions change: no other session of the node may change them.

A statement or block that would change such a row fails with 40001. PostgreSQL locks the rows, and
other sessions wait; here they fail at once. Writers outside of the node are not stopped.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from penstock.catalog import Catalog, CatalogTransaction
from penstock.lakehouse.change import StagedChange, changes_in
from penstock.pipeline.query import Interrupts
from penstock.precedence import PRECEDENCE
from penstock.sqlstate import SerializationFailure

_POLL_S: Final = 0.1
"""How often, in seconds, a waiting session checks whether it was cancelled."""


@dataclass(frozen=True, slots=True)
class Held:
    """Changes of prepared transactions, each with its transaction's gid."""

    changes: tuple[tuple[str, StagedChange], ...]

    @classmethod
    def read(cls, t: CatalogTransaction, relations: Collection[int]) -> Held:
        """Read the changes of prepared transactions to these tables."""
        found = (
            (block.gid, change)
            for block in t.prepared_blocks.holding(relations)
            for change in changes_in(block.content)
            if change.relation in relations
        )
        return cls(tuple(found))

    def check(self, relation: int, gone: Mapping[str, BitMap]) -> None:
        """Raise SerializationFailure if a prepared transaction changes one of the rows ``gone``
        (row numbers by file path)."""
        for gid, change in self.changes:
            if change.relation == relation and any(
                path in gone and gone[path] & loss.positions for path, loss in change.gone.items()
            ):
                raise held_error(gid, change)

    def check_changes(self, changes: Iterable[StagedChange]) -> None:
        """Raise SerializationFailure if ``changes`` concern rows of a prepared transaction."""
        for change in changes:
            self.check(
                change.relation, {path: loss.positions for path, loss in change.gone.items()}
            )

    def check_tables(self) -> None:
        """Raise SerializationFailure if any row is held. For statements whose rows are not known
        beforehand."""
        for gid, change in self.changes:
            if change.gone:
                raise held_error(gid, change)

    def check_emptied(self) -> None:
        """Raise SerializationFailure if anything is held. For statements that remove all rows: the
        prepared transaction would later add rows to the empty table, and a subscriber that has
        prepared it as well would wait for itself."""
        for gid, change in self.changes:
            raise held_error(gid, change)


class HeldRows:
    """Guards the rows of prepared transactions, for all sessions."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = itertools.count()
        self._running: dict[int, tuple[frozenset[int], bool]] = {}
        self._ended = threading.Condition()

    @contextmanager
    def changing(self, relations: Iterable[int], *, new_rows: bool = False) -> Iterator[Held]:
        """Yield the rows that are held. The statement must find its rows and commit inside the
        ``with`` block; a PREPARE TRANSACTION that begins during it waits for its end
        (``wait_for_statements``). ``new_rows``: prepared new rows matter as well, because the
        statement removes all rows or checks keys."""
        number, tables = next(self._numbers), frozenset(relations)
        with self._ended:
            self._running[number] = tables, new_rows
        try:
            yield self.now(tables)
        finally:
            with self._ended:
                del self._running[number]
                self._ended.notify_all()

    def now(self, relations: Collection[int]) -> Held:
        """Return the rows of these tables that are held at the moment."""
        with self._catalog.read() as t:
            return Held.read(t, relations)

    def wait_for_statements(self, changes: Iterable[StagedChange], interrupts: Interrupts) -> None:
        """Wait for running statements that began before the prepared transaction was recorded: they
        may not know that its rows are held. Raises PenstockError (57014)."""
        touched = {change.relation: bool(change.gone) for change in changes}
        with self._ended:
            before = {
                number
                for number, (tables, new_rows) in self._running.items()
                if any(touched[oid] or new_rows for oid in touched.keys() & tables)
            }
            while not before.isdisjoint(self._running):
                with PRECEDENCE.holding():
                    interrupts.check()
                self._ended.wait(_POLL_S)


def held_error(gid: str, change: StagedChange) -> SerializationFailure:
    """Return the error for a statement that would change a row of a prepared transaction, or insert
    a key that the transaction has inserted."""
    return SerializationFailure(
        "could not serialize access due to concurrent update",
        detail=f'The prepared transaction "{gid}" changes rows of table "{change.name}".',
        hint="Run the transaction again when that one is committed or rolled back.",
    )
