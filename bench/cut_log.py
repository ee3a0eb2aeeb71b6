"""What a reader sees of a node: the cuts table, followed by its log, never by asking the node.

In: where the warehouse is. Out: the LSN of the newest cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow import fs


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a file system or of an object store. It can be sent to another process."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def local(cls, folder: Path) -> Place:
        return cls(fs.LocalFileSystem(), str(folder))

    def at(self, *names: str) -> Place:
        return Place(self.filesystem, "/".join((self.path, *names)))

    def names(self) -> list[str]:
        """Names of the files in the folder; none if there is no folder."""
        selector = fs.FileSelector(self.path, allow_not_found=True)
        return [info.base_name for info in self.filesystem.get_file_info(selector)]

    def read(self, name: str) -> str | None:
        """The text of a file; None if there is none."""
        try:
            with self.filesystem.open_input_file(f"{self.path}/{name}") as file:
                return str(file.read(), "utf-8")
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        if self.filesystem.get_file_info(self.path).type != fs.FileType.NotFound:
            self.filesystem.delete_dir(self.path)


class CutLog:
    """The cuts table as a reader follows it: one small log entry a cut, read when it appears.

    The entry's statistics hold the highest LSN of the rows that it adds, so that the data file
    need not be opened.
    """

    def __init__(self, warehouse: Place, subscription: str) -> None:
        self._log = warehouse.at("_penstock", "cuts", "_delta_log")
        self._subscription = subscription
        # Old entries are removed behind checkpoints.
        entries = (PurePosixPath(name) for name in self._log.names())
        self._next = min((int(each.stem) for each in entries if each.suffix == ".json"), default=0)
        self._newest: int | None = None

    def __call__(self) -> int | None:
        return self.newest()

    def newest(self) -> int | None:
        """LSN of the newest cut of the subscription, None without one."""
        while (entry := self._log.read(f"{self._next:020}.json")) is not None:
            self._next += 1
            lsn = _lsn_of(entry, self._subscription)
            if lsn is not None:
                self._newest = lsn
        return self._newest

    def forget(self) -> None:
        """Cuts of a subscription that has been dropped do not count for its successor."""
        self.newest()
        self._newest = None


def _lsn_of(entry: str, subscription: str) -> int | None:
    """LSN of a cut; None for upkeep of the cuts table and for other subscriptions."""
    found: Mapping[str, Any] = {}
    for line in entry.splitlines():
        found = {**found, **json.loads(line)}
    if found.get("commitInfo", {}).get("operation") != "CUT":
        return None
    newest = json.loads(found["add"]["stats"])["maxValues"]
    return int(newest["lsn"]) if newest["subscription"] == subscription else None
