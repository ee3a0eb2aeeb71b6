"""The reverse of our own commits, for a batch that some tables have and others cannot get.

In: the log of a table, an app id, and the marker up to which its commits stay. Out: the files that
one more commit must put in place, and the marker to go back to. Deleted rows come back, added rows
go, and later commits of others stay. There is no reverse if others have copied added rows into
files of their own: nobody knows which rows to remove there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
    """A plan to take commits back. ``versions``: those of the commits. ``marker``: the app id's
    before them; 0 if it had none. ``files``: the files to put in place, by path; None removes one.
    """

    versions: tuple[int, ...]
    marker: int
    files: Mapping[str, DataFile | None]


@dataclass
class _Walk:
    """A walk from the newest entry down. ``moved``: files whose rows others may have copied.
    ``emptied``: others have removed all rows later, and would have removed rows that come back."""

    storage: Storage
    uri: str
    newest: TableState
    files: dict[str, DataFile | None] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    emptied: bool = False

    def pass_by(self, version: int, entry: Entry) -> None:
        """Take note of a commit that stays."""
        added, removed = _paths(entry, "add"), _paths(entry, "remove")
        if added - removed:
            self.moved |= removed
        if removed and not self.emptied:
            before = load_at(self.storage, self.uri, version - 1)
            self.emptied = empties(entry, before.files.keys())

    def reverse(self, version: int, entry: Entry) -> None:
        """Take a commit back. Raises NotInPrerequisiteState."""
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
        self.files[path] = old.restored(now, old.gone_in(new) - old.positions_deleted())

    def check_files(self) -> None:
        """Raise NotInPrerequisiteState if VACUUM has removed a file that must come back."""
        back = (path for path, file in self.files.items() if file and path not in self.newest.files)
        if not all(self.storage.exists(file_uri(self.uri, path)) for path in back):
            raise _irreversible(self.uri, "files that it has replaced were removed since")


def reversal(
    storage: Storage, uri: str, state: TableState, app_id: str, since: int, operation: str
) -> Reversal | None:
    """Return the plan to take back what ``app_id`` has committed with ``operation`` and markers
    after ``since``; None if there is nothing. ``state``: the newest version, with its vectors.

    Raises NotInPrerequisiteState if it cannot be taken back, VersionGone, StorageError.
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


def _irreversible(uri: str, why: str) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(f'cannot take back the last batch of table "{uri}": {why}')
