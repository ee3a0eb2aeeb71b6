"""Rows that prepared transactions change: nobody else on the node does until they have ended.

In: prepared transactions of the catalog, statements and blocks that are about to commit. Out: 40001
for who would change one of those rows. PostgreSQL holds their locks, and lets others wait; here
nobody waits, but COMMIT PREPARED can rely on its rows all the same, as far as the node's own
sessions are concerned. Others who write the tables by themselves know nothing of it.
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
from penstock.lakehouse.staged_change import StagedChange, changes_in
from penstock.pipeline.query import Interrupts
from penstock.sqlstate import SerializationFailure

_POLL_S: Final = 0.1
"""How often one who waits looks whether it was cancelled."""


@dataclass(frozen=True, slots=True)
class Held:
    """``changes``: with the names of the prepared transactions that they are of."""

    changes: tuple[tuple[str, StagedChange], ...]

    @classmethod
    def read(cls, t: CatalogTransaction, relations: Collection[int]) -> Held:
        """Of these tables."""
        found = (
            (block.gid, change)
            for block in t.prepared_blocks.holding(relations)
            for change in changes_in(block.content)
            if change.relation in relations
        )
        return cls(tuple(found))

    def check(self, relation: int, gone: Mapping[str, BitMap]) -> None:
        """``gone``: positions by path. Raises SerializationFailure."""
        for gid, change in self.changes:
            if change.relation == relation and any(
                path in gone and gone[path] & loss.positions for path, loss in change.gone.items()
            ):
                raise held_error(gid, change)

    def check_changes(self, changes: Iterable[StagedChange]) -> None:
        """Of a block. Raises SerializationFailure."""
        for change in changes:
            self.check(
                change.relation, {path: loss.positions for path, loss in change.gone.items()}
            )

    def check_tables(self) -> None:
        """Where it is not known which rows will be changed. Raises SerializationFailure."""
        for gid, change in self.changes:
            if change.gone:
                raise held_error(gid, change)

    def check_emptied(self) -> None:
        """Where all rows go. Those that are prepared would come afterwards; and subscribers that
        have prepared them too would wait for themselves. Raises SerializationFailure."""
        for gid, change in self.changes:
            raise held_error(gid, change)


class HeldRows:
    """For every session."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = itertools.count()
        self._running: dict[int, tuple[frozenset[int], bool]] = {}
        self._ended = threading.Condition()

    @contextmanager
    def changing(self, relations: Iterable[int], *, new_rows: bool = False) -> Iterator[Held]:
        """A statement that finds its rows, and commits, inside. What is prepared from now on waits
        for its end (``wait_for_statements``). ``new_rows``: rows that come concern it, too, as it
        takes all of them, or looks whether keys are there."""
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
        """What is held of these tables."""
        with self._catalog.read() as t:
            return Held.read(t, relations)

    def wait_for_statements(self, changes: Iterable[StagedChange], interrupts: Interrupts) -> None:
        """Until those have ended that may not know yet what was written down before. Raises
        PenstockError (57014)."""
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
    """For who would change, or bring, what a prepared transaction does."""
    return SerializationFailure(
        "could not serialize access due to concurrent update",
        detail=f'The prepared transaction "{gid}" changes rows of table "{change.name}".',
        hint="Run the transaction again when that one is committed or rolled back.",
    )
