"""The reverse of commits of ours: a batch that some tables have, and others cannot get.

In: the log of a table, an app id, and the marker up to which its commits stay. Out: the files as
they are to be, and the marker to go back to, for one more commit. Rows that went are back, rows
that came are gone, and what others have committed since stays. Where others have copied rows that
came into files of their own there is no reverse: nobody knows which of them to take away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyroaring import BitMap

from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import file_uri
from penstock.lakehouse.foreign import empties
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.state import TableState, load_at, load_vectors
from penstock.lakehouse.storage import Storage

REVERSAL: Final = "ROLLBACK"
"""commitInfo.operation."""

Entry = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reversal:
    """``versions``: of the commits. ``marker``: the app id's before them; 0: it had none.
    ``files``: by path, as they are to be; None: the file goes."""

    versions: tuple[int, ...]
    marker: int
    files: Mapping[str, DataFile | None]


@dataclass
class _Walk:
    """From the newest entry down. ``moved``: files whose rows others may have copied. ``emptied``:
    others have taken all rows later, and would have taken those that come back."""

    storage: Storage
    uri: str
    newest: TableState
    files: dict[str, DataFile | None] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    emptied: bool = False

    def pass_by(self, version: int, entry: Entry) -> None:
        """A commit that stays."""
        added, removed = _paths(entry, "add"), _paths(entry, "remove")
        if added - removed:
            self.moved |= removed
        if removed and not self.emptied:
            before = load_at(self.storage, self.uri, version - 1)
            self.emptied = empties(entry, before.files.keys())

    def reverse(self, version: int, entry: Entry) -> None:
        """A commit that is taken back. Raises NotInPrerequisiteState."""
        if self.emptied:
            return
        paths = _paths(entry, "add") | _paths(entry, "remove")
        before = load_at(self.storage, self.uri, version - 1)
        after = before.copy()
        after.apply(version, entry)
        for state in (before, after):
            load_vectors(self.storage, self.uri, state, paths)
        for path in sorted(paths):
            self._reverse_file(path, before.files.get(path), after.files.get(path))

    def _reverse_file(self, path: str, old: DataFile | None, new: DataFile | None) -> None:
        now = self.files[path] if path in self.files else self.newest.files.get(path)
        if old is None:
            if path in self.moved:
                raise _irreversible(self.uri, "others have rewritten files with rows of it")
            self.files[path] = None
            return
        gone = _all(old) if new is None else new.positions_deleted()
        deleted = _all(old) if now is None else now.positions_deleted()
        back = gone - old.positions_deleted()
        self.files[path] = (now or old).with_deleted(deleted - back)

    def check_files(self) -> None:
        """Raises NotInPrerequisiteState where VACUUM has taken a file that is to come back."""
        back = (path for path, file in self.files.items() if file and path not in self.newest.files)
        if not all(self.storage.exists(file_uri(self.uri, path)) for path in back):
            raise _irreversible(self.uri, "files that it has replaced were removed since")


def reversal(
    storage: Storage, uri: str, state: TableState, app_id: str, since: int, operation: str
) -> Reversal | None:
    """How to take back what ``app_id`` has committed with ``operation`` and markers after
    ``since``; None where there is nothing. ``state``: the newest version, with its vectors.

    Raises NotInPrerequisiteState where it cannot be taken back, VersionGone, StorageError.
    """
    walk, versions, marker = _Walk(storage, uri, state), [], 0
    for version in range(state.version, -1, -1):
        entry = read_entry(storage, uri, version)
        if entry is None:
            raise _irreversible(uri, f"there is no entry for version {version} in its log any more")
        found = _marker(entry, app_id)
        wrote = any(body.get("dataChange", True) for body in _bodies(entry))
        mine = _operation(entry) == operation
        if found is None or (found > since and not mine and not wrote):
            walk.pass_by(version, entry)
        elif found <= since or not mine:
            marker = found
            break
        else:
            walk.reverse(version, entry)
            versions.append(version)
    walk.check_files()
    return Reversal(tuple(versions), marker, walk.files) if versions else None


def _marker(entry: Entry, app_id: str) -> int | None:
    found = (a["txn"] for a in entry if "txn" in a)
    return next((int(each["version"]) for each in found if each["appId"] == app_id), None)


def _operation(entry: Entry) -> object:
    return next((a["commitInfo"].get("operation") for a in entry if "commitInfo" in a), None)


def _bodies(entry: Entry) -> Sequence[Mapping[str, Any]]:
    return [body for a in entry if (body := a.get("add") or a.get("remove"))]


def _paths(entry: Entry, kind: str) -> set[str]:
    return {str(action[kind]["path"]) for action in entry if kind in action}


def _all(file: DataFile) -> BitMap:
    return BitMap(range(file.rows))


def _irreversible(uri: str, why: str) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(f'cannot take back the last batch of table "{uri}": {why}')
