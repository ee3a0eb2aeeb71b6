"""Rows that prepared transactions change: nobody else on the node may change them until they end.

In: prepared transactions of the catalog, statements and blocks that are about to commit. Out: error
40001 for whoever would change one of those rows. PostgreSQL keeps such rows locked and lets others
wait. Here nobody waits; still no other session of the node can change the rows of a COMMIT
PREPARED. Writers outside of the node know nothing of this.
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
"""Seconds between two looks of a waiting session whether it was cancelled."""


@dataclass(frozen=True, slots=True)
class Held:
    """Changes of prepared transactions, each with its transaction's name."""

    changes: tuple[tuple[str, StagedChange], ...]

    @classmethod
    def read(cls, t: CatalogTransaction, relations: Collection[int]) -> Held:
        """Read what prepared transactions change in these tables."""
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
        """Raise SerializationFailure if any row is held. This is for statements of which nobody
        knows beforehand which rows they will change."""
        for gid, change in self.changes:
            if change.gone:
                raise held_error(gid, change)

    def check_emptied(self) -> None:
        """Raise SerializationFailure if anything is held. This is for statements that remove all
        rows: prepared rows would come after them, and subscribers that have prepared the same
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
        """Run a statement that finds its rows and commits inside; yield what is held. A PREPARE
        TRANSACTION that begins from now on waits for its end (``wait_for_statements``).
        ``new_rows``: new rows of others concern it, too, as it removes all rows or looks for
        keys."""
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
        """Return what is held of these tables now."""
        with self._catalog.read() as t:
            return Held.read(t, relations)

    def wait_for_statements(self, changes: Iterable[StagedChange], interrupts: Interrupts) -> None:
        """Wait for the running statements that began before the transaction was written down, and
        so may not know of it. Raises PenstockError (57014)."""
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
    """Return the error for a statement that would change a row, or bring a key, of a prepared
    transaction."""
    return SerializationFailure(
        "could not serialize access due to concurrent update",
        detail=f'The prepared transaction "{gid}" changes rows of table "{change.name}".',
        hint="Run the transaction again when that one is committed or rolled back.",
    )
