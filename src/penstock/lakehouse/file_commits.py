"""The commits that wrote the rows of data files, as far as the Delta log still has them.

``FileCommits`` finds the commit that added a file. It finds none if the file is not in the log yet
or its entry is gone, or if the commit only moved rows to the file (OPTIMIZE). It also finds none if
another writer's commit replaced files, since the new file may hold rows that this writer did not
change. The search begins at the file's write time, so a long log takes only a few reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.lakehouse.actions import ENGINE
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.storage import Storage

_READ: Final = 50
"""The number of entries that are searched after a file's write time; a file that was committed much
later is not found. As many are searched before that time, since clocks differ.
"""


@dataclass(frozen=True, slots=True)
class FileCommit:
    """A commit. ``time``: in ms since 1970; ``app_id``: its marker's, None without a marker."""

    version: int
    time: int
    app_id: str | None


class FileCommits:
    """The commits of one table's files. Results, and the entries that we commit, are remembered.
    Another thread may ask while this one commits."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self._storage, self._uri = storage, uri
        self._found: dict[str, FileCommit | None] = {}

    def committed(self, version: int, entry: Sequence[Mapping[str, Any]]) -> None:
        """Remember an entry that was put."""
        removed = {action["remove"]["path"] for action in entry if "remove" in action}
        added = [action["add"] for action in entry if "add" in action]
        for path in removed.difference(body["path"] for body in added):
            self._found.pop(path, None)
        for body in added:
            if body["path"] not in removed:
                self._found[body["path"]] = _commit(version, entry, body)

    def of(self, file: DataFile, newest: int) -> FileCommit | None:
        """Return the commit up to version ``newest`` that wrote a file, None if it is not known.
        Raises StorageError."""
        found = self._found
        if file.path in found:
            return found.get(file.path)
        if file.modification_time > _time(self._entry(newest)):
            return None  # the file is only staged
        by = found[file.path] = self._search(file, newest)
        return by

    def by_others(self, file: DataFile, newest: int, own: str) -> bool:
        """Return whether a file is known to be written by an app other than ``own``, or by none."""
        by = self.of(file, newest)
        return by is not None and by.app_id != own

    def _search(self, file: DataFile, newest: int) -> FileCommit | None:
        versions, since = range(newest + 1), file.modification_time
        first = bisect_left(versions, since, key=lambda version: _time(self._entry(version)))
        after, before = versions[first : first + _READ], versions[max(0, first - _READ) : first]
        for version in (*after, *reversed(before)):
            entry = self._entry(version)
            bodies = [action["add"] for action in entry if "add" in action]
            added = next((body for body in bodies if body["path"] == file.path), None)
            if added is not None:
                return _commit(version, entry, added)
        return None

    def _entry(self, version: int) -> Sequence[Mapping[str, Any]]:
        return read_entry(self._storage, self._uri, version) or ()


def _commit(
    version: int, entry: Sequence[Mapping[str, Any]], added: Mapping[str, Any]
) -> FileCommit | None:
    marker = next((str(a["txn"]["appId"]) for a in entry if "txn" in a), None)
    return FileCommit(version, _time(entry), marker) if _wrote(entry, added) else None


def _time(entry: Sequence[Mapping[str, Any]]) -> int:
    """Return an entry's time; 0, before all others, if the entry is gone or has no time."""
    return int(_info(entry).get("timestamp") or 0)


def _info(entry: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in entry if "commitInfo" in action), {})


def _wrote(entry: Sequence[Mapping[str, Any]], added: Mapping[str, Any]) -> bool:
    """Return whether a commit wrote all rows of a file that it adds. Our own commits never put
    unchanged rows into new files."""
    kept = {action["add"]["path"] for action in entry if "add" in action}
    removed = {action["remove"]["path"] for action in entry if "remove" in action}
    ours = _info(entry).get("engineInfo") == ENGINE
    moved = not added.get("dataChange", True) or added["path"] in removed
    return not moved and (ours or removed <= kept)
