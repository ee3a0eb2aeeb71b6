"""A side: somebody who subscribes to a subject, of whom there are two in each comparison."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from subject import Checksum


@dataclass
class Side(ABC):
    """``name``: whose figures these are. ``slot``: on the publisher. ``look_pause``: seconds
    between the looks of a reader, who shall cost next to nothing."""

    name: str
    slot: str
    look_pause: float

    @abstractmethod
    def copy(self) -> float:
        """CREATE SUBSCRIPTION until a reader has the copied rows; seconds."""

    @abstractmethod
    def drop(self) -> None:
        """So that ``copy`` can come again."""

    @abstractmethod
    def disable(self) -> None:
        """Until the publisher knows it."""

    @abstractmethod
    def enable(self) -> None: ...

    @abstractmethod
    def wait_behind(self, lsn: int) -> None:
        """Wait until a reader sees a transaction that ended behind ``lsn``."""

    @abstractmethod
    def checksum(self) -> Checksum:
        """Rows and sums of what a reader sees."""

    @abstractmethod
    def make_look(self) -> Callable[[], Callable[[], int | None]]:
        """For a reader in another process: up to which LSN it sees."""

    @abstractmethod
    def cpu_seconds(self) -> Mapping[int, float]:
        """Of this side's processes so far, by process; of a server under one number."""

    def log_size(self) -> int:
        """Bytes of a log that tells phases."""
        return 0

    def where_time_goes(self, since: int, seconds: float, what: str, *, idle: bool = False) -> str:
        """Phases of the work logged behind byte ``since``; nothing where nothing is told.
        ``idle``: there was not always something to do."""
        return ""

    def catch_up(self, lsn: int) -> float:
        """Enable it until it is behind ``lsn``; seconds. It is disabled again."""
        began = time.monotonic()
        self.enable()
        self.wait_behind(lsn)
        taken = time.monotonic() - began
        self.disable()
        return taken
