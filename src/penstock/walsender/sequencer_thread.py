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
_GLANCES: Final = 5
"""Between two steps, where it costs some system calls to see whether there is something new."""
_SHORTEST_S: Final = 0.005
"""Between two glances."""
_SHARE: Final = 0.02
"""Of a core, that steps which find nothing take at most: they come less often then."""
_LONGEST_S: Final = 0.25
"""But that often."""


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
        last, kept_up, due = "", 0.0, 0.0
        while not self._stopping.wait(self._pause()):
            try:
                if time.monotonic() < due and not self._sequencer.has_news():
                    continue
                due = time.monotonic() + self.interval_s
                due += self._step()
                if time.monotonic() - kept_up >= _UPKEEP_INTERVAL_S:
                    self._upkeep()
                    kept_up = time.monotonic()
                last = ""
            except Exception as error:
                text = error.report() if isinstance(error, PenstockError) else repr(error)
                if text != last:
                    log.warning("could not look for commits: %s", text)
                last = text

    def _pause(self) -> float:
        if not self._sequencer.watches:
            return self.interval_s
        return max(self.interval_s / _GLANCES, min(self.interval_s, _SHORTEST_S))

    def _step(self) -> float:
        """Seconds that the next one waits longer than usual."""
        end, began = self._sequencer.end, time.thread_time()
        self._sequencer.step()
        if self._sequencer.end > end:
            return 0.0
        cost = (time.thread_time() - began) / _SHARE
        return max(0.0, min(cost, _LONGEST_S) - self.interval_s)
