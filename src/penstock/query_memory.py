"""Share one amount of memory among all statements of the process (``query_mem``).

A node is one process, so that without a common limit a few sessions could make the system end it.
Every DuckDB that runs a statement has ``OWN`` bytes; more than that is lent to it for as long as
the statement runs, never all that is left, so that the next statement gets some, too. Python's own
objects, such as trees and rows, are counted as they grow. A statement that needs more than it can
have ends with 53200; no other statement does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import duckdb

from penstock.errors import PenstockError
from penstock.guc import shown
from penstock.sqlstate import OutOfMemory

OWN: Final = 16 << 20
"""Bytes of a DuckDB that ``query_mem`` does not count: most statements need less."""
_SMALL: Final = 1 << 20
"""Bytes of Python's objects that are not counted."""
_OF_THE_REST: Final = 2
"""A DuckDB gets one of so many parts of what others leave."""
_RESERVED: Final = 4
"""One of so many parts is left to the key checks of changes: open queries cannot stop them."""
_OF_A_CHANGE: Final = 2
_OF_A_ROLE: Final = 2
"""The statements of a role get one of so many parts together, also while they wait for clients."""
_DETAIL: Final = 'The statement needs more than {}, its share of "query_mem" ({}).'
_HINT: Final = 'Increase "query_mem", or run fewer large queries at once.'


_OWNER: Final[ContextVar[int | None]] = ContextVar("owner", default=None)


def belongs_to(role: int | None) -> None:
    """Let what this thread takes from now on count as a role's; None: as nobody's, without a limit
    of its own."""
    _OWNER.set(role)


class QueryMemory:
    """The memory of a process's statements. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lent = 0
        self._owned: Counter[int] = Counter()
        self._lock = threading.RLock()  # the garbage collector may give memory back, too

    @property
    def lent(self) -> int:
        """The bytes that statements have now."""
        with self._lock:
            return self._lent

    @contextmanager
    def lend(self, duck: duckdb.DuckDBPyConnection, *, change: bool = False) -> Iterator[int]:
        """Lend memory to a DuckDB during the ``with`` block; return its limit in bytes. ``change``:
        it checks what a statement writes. Raises OutOfMemory (53200) if the DuckDB holds more
        already."""
        owner = _OWNER.get()
        with self._lock:
            if change:
                size = max(self.limit - self._lent, 0) // _OF_A_CHANGE
            else:
                size = self._for_queries(owner) // _OF_THE_REST
            self._count(size, owner)
        try:
            try:
                duck.execute(f"SET memory_limit = '{(OWN + size) >> 10} KiB'")
            except duckdb.OutOfMemoryException:
                raise self.error(OWN + size) from None
            yield OWN + size
        finally:
            self.give_back(size, owner)

    def _for_queries(self, owner: int | None) -> int:
        rest = self.limit - self.limit // _RESERVED - self._lent
        if owner is not None:
            rest = min(rest, self.limit // _OF_A_ROLE - self._owned[owner])
        return max(rest, 0)

    def _count(self, size: int, owner: int | None) -> None:
        self._lent += size
        if owner is not None:
            self._owned[owner] += size

    def grow(self, by: int, size: int, owner: int | None) -> None:
        """Lend ``by`` bytes to objects that have ``size`` with them; as much must be left for
        others. Raises OutOfMemory (53200)."""
        with self._lock:
            rest = self._for_queries(owner)
            fits = size <= rest - by
            if fits:
                self._count(by, owner)
        if not fits:
            raise self.error((rest + size - by) // 2)

    def give_back(self, size: int, owner: int | None) -> None:
        """Take back what ``grow`` has lent."""
        with self._lock:
            self._count(-size, owner)
            if owner is not None and not self._owned[owner]:
                del self._owned[owner]

    def error(self, had: int) -> PenstockError:
        """Return the error of a statement that had so many bytes and needs more."""
        return OutOfMemory(
            "out of memory", detail=_DETAIL.format(_text(had), _text(self.limit)), hint=_HINT
        )


class Held:
    """Counts Python's objects of one statement or session until ``release``, or in a ``with``
    block."""

    def __init__(self, memory: QueryMemory) -> None:
        self._memory, self._owner = memory, _OWNER.get()
        self.size = self._counted = 0

    def take(self, size: int) -> None:
        """Count more bytes. Raises OutOfMemory (53200)."""
        by = self.size + size - _SMALL - self._counted
        if by > 0:
            self._memory.grow(by, self._counted + by, self._owner)
            self._counted += by
        self.size += size

    def give(self, size: int) -> None:
        """Count bytes no longer."""
        self.size = max(self.size - size, 0)
        by = self._counted - max(self.size - _SMALL, 0)
        if by > 0:
            self._counted -= by
            self._memory.give_back(by, self._owner)

    def release(self) -> None:
        """Give the memory back."""
        counted, self.size, self._counted = self._counted, 0, 0
        self._memory.give_back(counted, self._owner)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _text(size: int) -> str:
    return shown(max(size, _SMALL) >> 20 << 10, "kB")


MEMORY: Final = QueryMemory(1 << 30)
"""The memory of this process's statements; the node sets its limit."""
