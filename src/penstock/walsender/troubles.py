"""Tables that cannot be followed or shown at the moment.

Each new error of a table is logged once, and kept until the work succeeds.
``pg_stat_lake_tables`` and metrics show the list. One table's error does not stop the others;
callers decide what waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.errors import PenstockError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The error of a table; ``name`` is schema.table, ``since`` in seconds since the Unix epoch."""

    name: str
    reason: str
    since: float


class Troubles:
    """The errors of tables. For several threads. ``what`` names the task that failed; a table has
    no error once all its tasks succeed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Trouble] = {}

    def all(self) -> tuple[Trouble, ...]:
        """Return one error for each table, sorted by name."""
        with self._lock:
            found = dict(self._found)
        return tuple({name: found[name, what] for name, what in sorted(found)}.values())

    def of(self, what: str) -> frozenset[str]:
        """Return the names of the tables for which a task failed."""
        with self._lock:
            return frozenset(name for name, failed in self._found if failed == what)

    @contextmanager
    def kept(self, what: str, name: str) -> Iterator[None]:
        """Run the ``with`` block for one table; note its error instead of raising it."""
        try:
            yield
        except Exception as error:
            self._failed(what, name, error)
        else:
            self.over(what, name)

    def over(self, what: str, name: str) -> None:
        """Remove the error of a task that has succeeded, or whose table is gone."""
        with self._lock:
            found = self._found.pop((name, what), None)
        if found is not None:
            log.info('table "%s" is read again', found.name)

    def forget(self, there: set[str]) -> None:
        """Remove the errors of tables that no longer exist; ``there`` are the existing ones."""
        with self._lock:
            for key in [key for key in self._found if key[0] not in there]:
                del self._found[key]

    def _failed(self, what: str, name: str, error: Exception) -> None:
        reason = error.message if isinstance(error, PenstockError) else repr(error)
        with self._lock:
            before = self._found.get((name, what))
            since = time.time() if before is None else before.since
            self._found[name, what] = Trouble(name, reason, since)
        if before is None or before.reason != reason:
            log.warning(
                'table "%s" cannot be read: %s; its changes wait, other tables go on', name, reason
            )
        elif not isinstance(error, PenstockError):
            log.debug('table "%s"', name, exc_info=error)
