"""Requested cuts: LSNs at which the apply worker has to end a batch.

This module reads the catalog's requests and returns the LSN that no batch may pass, if there is
one. A requester learns its LSN only later, from a slot that the publisher then creates. So it first
requests the present LSN, and then moves the request forward. A request that has held up the worker
for ``LONGEST_HOLD_S`` is dropped: the requester may have been killed, and the publisher keeps WAL
meanwhile.

The catalog's change counter is read for each batch, and four times a second without batches; the
requests are read only after it has moved. Times are passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.catalog.pg_subscription import CutRequest
from penstock.lsn import Lsn

log = logging.getLogger(__name__)

LONGEST_HOLD_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.25


class RequestedCuts:
    """The requests for cuts of one subscription, for all sessions of a worker."""

    def __init__(
        self,
        generation: Callable[[], int],
        requests: Callable[[], Sequence[CutRequest]],
        forget: Callable[[str], object],
    ) -> None:
        self._generation = generation
        self._requests = requests
        self._forget = forget
        self._known: Sequence[CutRequest] = ()
        self._looked_at: int | None = None
        self._looked_s: float | None = None
        self._reached: dict[CutRequest, float] = {}
        """The time at which the worker stopped at each request that it has reached."""

    def limit(self, now: float) -> Lsn | None:
        """Return the lowest requested LSN, None without requests. Raises StorageError.

        A transaction that arrived before this call never ends beyond an LSN that is requested after
        the call. ``now``: a monotonic time in seconds.
        """
        self._looked_s = now
        generation = self._generation()
        if generation != self._looked_at:
            self._known = self._requests()
            self._reached = {r: at for r, at in self._reached.items() if r in self._known}
            self._looked_at = generation
        for request in [r for r, at in self._reached.items() if now - at > LONGEST_HOLD_S]:
            log.warning("a cut at %s is held no longer: nobody has come for it", request.lsn)
            self._forget(request.id)
            self._known = [known for known in self._known if known != request]
            del self._reached[request]
        return min((request.lsn for request in self._known), default=None)

    def due(self, now: float) -> bool:
        """Return whether to call ``limit`` even without a batch: always while a cut is requested,
        otherwise every ``_LOOK_INTERVAL_S``."""
        recent = self._looked_s is not None and now - self._looked_s < _LOOK_INTERVAL_S
        return bool(self._known) or not recent

    def reached(self, lsn: Lsn, now: float) -> None:
        """Note that all changes up to ``lsn`` are applied, and in a cut if one is possible. The
        worker waits at the requests up to ``lsn`` from now on."""
        for request in self._known:
            if request.lsn <= lsn:
                self._reached.setdefault(request, now)
