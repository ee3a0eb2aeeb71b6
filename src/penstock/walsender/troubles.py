"""Tables that cannot be followed or shown at the moment, each by itself.

In: what went wrong with a table, and that it is well again. Out: one line in the log for each
reason, and a list for ``pg_stat_lake_tables`` and metrics. What stops because of it is left to
others.
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
    """``name``: schema.table. ``since``: seconds since the Unix epoch."""

    name: str
    reason: str
    since: float


class Troubles:
    """For several threads. ``what``: the work that failed; a table is well when all of it goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], Trouble] = {}

    def all(self) -> tuple[Trouble, ...]:
        """One for each table, sorted."""
        with self._lock:
            found = dict(self._found)
        return tuple({name: found[name, what] for name, what in sorted(found)}.values())

    def of(self, what: str) -> frozenset[str]:
        """The names of those with which that work failed."""
        with self._lock:
            return frozenset(name for name, failed in self._found if failed == what)

    @contextmanager
    def kept(self, what: str, name: str) -> Iterator[None]:
        """Run the block for one table: what it raises is the trouble of this table alone."""
        try:
            yield
        except Exception as error:
            self._failed(what, name, error)
        else:
            self.over(what, name)

    def over(self, what: str, name: str) -> None:
        """A table is well, or no longer there."""
        with self._lock:
            found = self._found.pop((name, what), None)
        if found is not None:
            log.info('table "%s" is read again', found.name)

    def forget(self, there: set[str]) -> None:
        """All but these are gone."""
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
