"""The snapshot of a round of copies: how far and how long it holds back the publisher.

Every few seconds this module asks the publisher for the xmin that VACUUM does not pass and for the
WAL that the temporary slot retains. It reports both, and since when the snapshot has been held.
After copy_snapshot_timeout no further table is begun at this snapshot. Copies that have begun are
finished, because another round would not be faster; the other tables are copied in the next round.
So a single table may hold a snapshot for longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.pipeline.table_copy import CopyProgress
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)

_ASK_S: Final = 5.0
"""Seconds between two queries to the publisher."""


@dataclass(frozen=True, slots=True)
class SnapshotHorizon:
    """The xmin and WAL that a snapshot holds back. ``since``: seconds since 1970. ``xmin``: None if
    the publisher does not report it; ``retained_bytes``: WAL that it keeps for the slot."""

    since: float
    xmin: int | None
    retained_bytes: int | None


class HeldSnapshot:
    """The snapshot of one round, watched from its beginning. ``tell`` is called with the horizon,
    and with None at the end."""

    def __init__(
        self,
        publisher: Publisher,
        slot: str,
        pid: int,
        *,
        subscription: str,
        timeout: Callable[[], float],
        tell: Callable[[SnapshotHorizon | None], None],
    ) -> None:
        """``pid``: the process of the session that holds the snapshot. ``timeout``: returns the
        current copy_snapshot_timeout in seconds, 0 for none."""
        self._publisher, self._slot, self._pid = publisher, slot, pid
        self._subscription, self._timeout, self._tell = subscription, timeout, tell
        self._since, self._began = time.time(), time.monotonic()
        self._asked = -_ASK_S
        self._begun: set[str] = set()
        self._over = self._told = False

    def __enter__(self) -> HeldSnapshot:
        self._tell(SnapshotHorizon(self._since, None, None))
        return self

    def __exit__(self, *_: object) -> None:
        self._tell(None)

    def progress(self, copy: CopyProgress) -> None:
        """Note the progress of a table's copy."""
        if copy.units:
            self._begun.add(copy.table)

    def look(self) -> None:
        """Report the horizon if that is due, and check the timeout. The copying round calls it
        repeatedly. Raises ConnectionFailure."""
        now = time.monotonic()
        if now - self._asked >= _ASK_S:
            self._asked = now
            slot = self._publisher.slot_state(self._slot)
            retained = None if slot is None else slot.retained_bytes
            self._tell(
                SnapshotHorizon(self._since, self._publisher.backend_xmin(self._pid), retained)
            )
        timeout = self._timeout()
        if timeout and now - self._began >= timeout and self._begun:
            self._over = True

    def waits_for(self, table: str) -> bool:
        """Return whether a table may still be copied at this snapshot."""
        if not self._over or table in self._begun:
            return True
        if not self._told:
            self._told = True
            log.info(
                'subscription "%s": the snapshot of a copy is held for longer than '
                "copy_snapshot_timeout; tables that are not begun are copied at another one",
                self._subscription,
            )
        return False
