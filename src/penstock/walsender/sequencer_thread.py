"""The sequencer's thread: steps again and again, and now and then what else is to be kept up.

In: a sequencer and an interval. Out: a thread from ``start`` to ``stop``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import PenstockError
from penstock.walsender.sequencer import Sequencer

log = logging.getLogger(__name__)

_UPKEEP_INTERVAL_S: Final = 30.0


class SequencerThread:
    """Steps again and again; an error is logged once and tried again. ``upkeep``: now and then."""

    def __init__(
        self, sequencer: Sequencer, interval_s: float, upkeep: Callable[[], None] = lambda: None
    ) -> None:
        self._sequencer = sequencer
        self.interval_s = interval_s
        """Another one holds from the next step on."""
        self._upkeep = upkeep
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sequencer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._sequencer.wake()
        self._thread.join()

    def _run(self) -> None:
        last, kept_up = "", 0.0
        while not self._stopping.wait(self.interval_s):
            try:
                self._sequencer.step()
                if time.monotonic() - kept_up >= _UPKEEP_INTERVAL_S:
                    self._upkeep()
                    kept_up = time.monotonic()
                last = ""
            except Exception as error:
                text = error.report() if isinstance(error, PenstockError) else repr(error)
                if text != last:
                    log.warning("could not look for commits: %s", text)
                last = text
