"""What the next version of a table changes in its files, gathered by one or many stages.

In: files written, positions deleted, removals, in their order. Out: the view of files with all of
it, and in the end remove and add actions with one vector file. A file that was staged and loses
rows by a later stage is added with a vector; a file that loses rows in several stages gets one
vector of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from pyroaring import BitMap

from penstock.errors import CommitConflict, PenstockError, RelationChanged
from penstock.lakehouse import actions
from penstock.lakehouse.actions import Action
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import VectorFile


class Staging:
    """The files of a table: those of the current version, changed in place, with the way back."""

    def __init__(
        self, table: str, files: dict[str, DataFile], partition_by: Sequence[str] = ()
    ) -> None:
        self._table = table
        self._partition_by = tuple(partition_by)
        self._files = files
        self._before: dict[str, DataFile | None] = {}
        self._emptied = False

    @property
    def files(self) -> Mapping[str, DataFile]:
        """path -> file, staged changes included."""
        return MappingProxyType(self._files)

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Files that the current version has not."""
        new = (path for path, before in self._before.items() if before is None)
        return tuple(self._files[path] for path in new if path in self._files)

    @property
    def changed(self) -> bool:
        """True when the next version differs in its files."""
        return bool(self._before)

    @property
    def appends_only(self) -> bool:
        """True when no file of the current version is touched."""
        return all(before is None for before in self._before.values())

    @property
    def emptied(self) -> bool:
        """True when a TRUNCATE took every row of the current version."""
        return self._emptied

    def add(self, file: DataFile) -> None:
        """Stage a new file. Raises PenstockError when its path is there already, RelationChanged
        when it was written for a table partitioned otherwise."""
        if tuple(file.partition_values or ()) != self._partition_by:
            raise RelationChanged(
                f'table "{self._table}" was partitioned otherwise when file "{file.path}" was '
                "written"
            )
        if file.path in self._files:
            raise PenstockError(f'file "{file.path}" is staged twice')
        self._put(file.path, file)

    def replace(self, path: str, file: DataFile) -> None:
        """Stage a file that takes the place of another. Raises CommitConflict: that is gone."""
        if path not in self._files:
            raise _no_file(self._table, path)
        self._put(path, None)
        self.add(file)

    def remove_all(self, *, truncate: bool = True) -> None:
        """Stage the removal of all files, those staged before included."""
        self._emptied = truncate
        for path in list(self._files):
            self._put(path, None)

    def put(self, files: Mapping[str, DataFile | None]) -> None:
        """Stage files as they are to be; None: the file goes."""
        for path, file in files.items():
            self._put(path, file)

    def delete(self, path: str, positions: BitMap) -> None:
        """Stage deletions in a file, in addition to what is deleted; without rows left it goes.

        Raises CommitConflict when there is no such file.
        """
        file = self._files.get(path)
        if file is None:
            raise _no_file(self._table, path)
        gone = file.positions_deleted() | positions
        if gone and gone.max() >= file.rows:
            raise PenstockError(f'file "{path}" has {file.rows} rows, row {gone.max()} was deleted')
        if len(gone) == file.rows:
            self._put(path, None)
        elif len(gone) > file.deleted:
            self._put(path, file.with_deleted(gone))

    def discard(self) -> list[str]:
        """Go back to the current version; the paths of staged files, which nobody needs now."""
        staged = [path for path, before in self._before.items() if before is None]
        for path, before in self._before.items():
            self._set(path, before)
        self._before = {}
        self._emptied = False
        return staged

    def describe(self, vectors: VectorFile) -> dict[str, DataFile]:
        """Add all new vectors to a file; the files that they belong to, with descriptors."""
        described = {}
        for path in self._before:
            file = self._files.get(path)
            if file is not None and file.deleted and file.descriptor is None:
                described[path] = file.with_descriptor(vectors.add(file.positions_deleted()))
        return described

    def actions(
        self, described: Mapping[str, DataFile], *, now: int, data_change: bool
    ) -> Iterable[Action]:
        """Remove and add actions. ``described``: the result of ``describe``."""
        removes: list[Action] = []
        adds: list[Action] = []
        for path, before in self._before.items():
            file = described.get(path) or self._files.get(path)
            if before is not None:
                removes.append(actions.remove(before, now=now, data_change=data_change))
            if file is not None:
                adds.append(actions.add(file, file.descriptor, data_change=data_change))
        return removes + adds

    def committed(self, described: Mapping[str, DataFile]) -> list[str]:
        """What was staged is the current version; the paths of files staged and then removed."""
        self._files.update(described)
        dropped = [p for p, before in self._before.items() if not before and p not in self._files]
        self._before = {}
        self._emptied = False
        return dropped

    def _put(self, path: str, file: DataFile | None) -> None:
        self._before.setdefault(path, self._files.get(path))
        self._set(path, file)

    def _set(self, path: str, file: DataFile | None) -> None:
        if file is None:
            self._files.pop(path, None)
        else:
            self._files[path] = file


def _no_file(table: str, path: str) -> CommitConflict:
    return CommitConflict(
        f'table "{table}" has no file "{path}" any more', hint="Load the table again and retry."
    )
