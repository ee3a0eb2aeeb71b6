"""What a reader sees of a node: the cuts table, followed by its log, never by asking the node.

In: the warehouse. Out: the LSN of the newest cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CutLog:
    """The cuts table as a reader follows it: one small log entry a cut, read when it appears.

    The entry's statistics hold the highest LSN of the rows that it adds, so that the data file
    need not be opened.
    """

    def __init__(self, warehouse: Path, subscription: str) -> None:
        self._folder = warehouse / "_penstock" / "cuts" / "_delta_log"
        self._subscription = subscription
        # Old entries are removed behind checkpoints.
        self._next = min((int(entry.stem) for entry in self._folder.glob("*.json")), default=0)
        self._newest: int | None = None

    def __call__(self) -> int | None:
        return self.newest()

    def newest(self) -> int | None:
        """LSN of the newest cut of the subscription, None without one."""
        while (entry := self._entry()) is not None:
            self._next += 1
            lsn = _lsn_of(entry, self._subscription)
            if lsn is not None:
                self._newest = lsn
        return self._newest

    def forget(self) -> None:
        """Cuts of a subscription that has been dropped do not count for its successor."""
        self.newest()
        self._newest = None

    def _entry(self) -> str | None:
        try:
            return (self._folder / f"{self._next:020}.json").read_text("utf-8")
        except FileNotFoundError:
            return None


def _lsn_of(entry: str, subscription: str) -> int | None:
    """LSN of a cut; None for upkeep of the cuts table and for other subscriptions."""
    found: Mapping[str, Any] = {}
    for line in entry.splitlines():
        found = {**found, **json.loads(line)}
    if found.get("commitInfo", {}).get("operation") != "CUT":
        return None
    newest = json.loads(found["add"]["stats"])["maxValues"]
    return int(newest["lsn"]) if newest["subscription"] == subscription else None
