"""Rows that prepared transactions change: nobody else on the node may change them until they end.

A statement or block that would change one of those rows gets error 40001. PostgreSQL keeps such
rows locked and lets others wait; here nobody waits. But no other session of the node can change the
rows before COMMIT PREPARED. Writers outside of the node are not stopped.
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
from penstock.sqlstate import SerializationFailure

_POLL_S: Final = 0.1
"""Seconds after which a waiting session checks again whether it was cancelled."""


@dataclass(frozen=True, slots=True)
class Held:
    """Changes of prepared transactions, each with its transaction's name."""

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
        (positions by path)."""
        for gid, change in self.changes:
            if change.relation == relation and any(
                path in gone and gone[path] & loss.positions for path, loss in change.gone.items()
            ):
                raise held_error(gid, change)

    def check_changes(self, changes: Iterable[StagedChange]) -> None:
        """Check the rows that a block changes. Raises SerializationFailure."""
        for change in changes:
            self.check(
                change.relation, {path: loss.positions for path, loss in change.gone.items()}
            )

    def check_tables(self) -> None:
        """Raise SerializationFailure if any row is held. Called for statements whose rows are not
        known beforehand."""
        for gid, change in self.changes:
            if change.gone:
                raise held_error(gid, change)

    def check_emptied(self) -> None:
        """Raise SerializationFailure if anything is held. Called for statements that remove all
        rows: prepared rows would be added after them, and subscribers that have prepared the same
        transaction would wait for themselves."""
        for gid, change in self.changes:
            raise held_error(gid, change)


class HeldRows:
    """Guard the rows of prepared transactions, for all sessions."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = itertools.count()
        self._running: dict[int, tuple[frozenset[int], bool]] = {}
        self._ended = threading.Condition()

    @contextmanager
    def changing(self, relations: Iterable[int], *, new_rows: bool = False) -> Iterator[Held]:
        """Yield the held rows to a statement that finds its rows and commits inside. A PREPARE
        TRANSACTION that begins from now on waits for its end (``wait_for_statements``).
        ``new_rows``: new rows of others concern the statement, too, since it removes all rows or
        checks keys."""
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
        """Return the rows of these tables that are held now."""
        with self._catalog.read() as t:
            return Held.read(t, relations)

    def wait_for_statements(self, changes: Iterable[StagedChange], interrupts: Interrupts) -> None:
        """Wait for running statements that began before the transaction was recorded, and so may
        not have read its rows. Raises PenstockError (57014)."""
        touched = {change.relation: bool(change.gone) for change in changes}
        with self._ended:
            before = {
                number
                for number, (tables, new_rows) in self._running.items()
                if any(touched[oid] or new_rows for oid in touched.keys() & tables)
            }
            while not before.isdisjoint(self._running):
                interrupts.check()
                self._ended.wait(_POLL_S)


def held_error(gid: str, change: StagedChange) -> SerializationFailure:
    """Return the error for a statement that would change a row, or insert a key, of a prepared
    transaction."""
    return SerializationFailure(
        "could not serialize access due to concurrent update",
        detail=f'The prepared transaction "{gid}" changes rows of table "{change.name}".',
        hint="Run the transaction again when that one is committed or rolled back.",
    )
