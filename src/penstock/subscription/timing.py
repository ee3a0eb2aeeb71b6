"""Where the time of a batch goes: one DEBUG line per batch, for benchmarks and questions.

In: named phases. Out: ``batch rows=... decode=... job=... commit=... cut=... total=...``, seconds,
on the logger ``penstock.subscription.timing``. Nothing is decided upon them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Phases:
    """Seconds by phase; a phase that comes again adds up."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside to ``name``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began

    def report(self, what: str, **counts: object) -> None:
        """Write the line."""
        if not log.isEnabledFor(logging.DEBUG):
            return
        fields = [f"{name}={value}" for name, value in counts.items()]
        fields += [f"{name}={seconds:.3f}" for name, seconds in self._seconds.items()]
        fields.append(f"total={time.perf_counter() - self._began:.3f}")
        log.debug("%s %s", what, " ".join(fields))
