"""Which commit wrote the rows of a data file, as far as the log of the table still tells.

In: the log, files of a version. Out: the commit that added a file; nothing of a file that is not in
the log yet or no more, that rows were only moved to (OPTIMIZE), or that another writer has put in
the place of files, as rows that it did not change may be in it. Entries are looked for by when the
file was written, so a long log costs a few reads.
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
"""Entries after the time when a file was written, as what was committed much later is not found;
and so many before it, as clocks differ."""


@dataclass(frozen=True, slots=True)
class FileCommit:
    """``time``: in ms since 1970; ``app_id``: the marker that it bears, None where it has none."""

    version: int
    time: int
    app_id: str | None


class FileCommits:
    """Of one table; what was found is remembered, and what is committed from here. Another thread
    may ask while this one commits."""

    def __init__(self, storage: Storage, uri: str) -> None:
        self._storage, self._uri = storage, uri
        self._found: dict[str, FileCommit | None] = {}

    def committed(self, version: int, entry: Sequence[Mapping[str, Any]]) -> None:
        """An entry that was put."""
        removed = {action["remove"]["path"] for action in entry if "remove" in action}
        added = [action["add"] for action in entry if "add" in action]
        for path in removed.difference(body["path"] for body in added):
            self._found.pop(path, None)
        for body in added:
            if body["path"] not in removed:
                self._found[body["path"]] = _commit(version, entry, body)

    def of(self, file: DataFile, newest: int) -> FileCommit | None:
        """The commit that wrote it, up to version ``newest``. Raises StorageError."""
        found = self._found
        if file.path in found:
            return found.get(file.path)
        if file.modification_time > _time(self._entry(newest)):
            return None  # staged
        by = found[file.path] = self._search(file, newest)
        return by

    def by_others(self, file: DataFile, newest: int, own: str) -> bool:
        """Whether it is known that another one than the app id ``own`` wrote it."""
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
    """0, before all others: the entry is gone, or does not say so."""
    return int(_info(entry).get("timestamp") or 0)


def _info(entry: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in entry if "commitInfo" in action), {})


def _wrote(entry: Sequence[Mapping[str, Any]], added: Mapping[str, Any]) -> bool:
    """Whether a commit has written all rows of a file that it adds. Ours leave others alone."""
    kept = {action["add"]["path"] for action in entry if "add" in action}
    removed = {action["remove"]["path"] for action in entry if "remove" in action}
    ours = _info(entry).get("engineInfo") == ENGINE
    moved = not added.get("dataChange", True) or added["path"] in removed
    return not moved and (ours or removed <= kept)
