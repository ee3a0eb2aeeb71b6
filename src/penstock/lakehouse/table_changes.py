"""Changes between two versions of a table, as files and parts of files.

The Delta log gives files with removed rows and files with added rows. If the writer has left files
of pairs, they map new rows to old rows. A row that was only moved (OPTIMIZE, REORG: actions without
data change) is neither removed nor added. A row that was copied from a rewritten file, or was added
and deleted in between, is both removed and added, with the same values. Such rows cancel each other
when they are read. ``pipeline`` reads the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import VersionGone
from penstock.lakehouse.actions import emptied_with, is_truncate, reversed_by
from penstock.lakehouse.change import UPDATE as STAGED_UPDATE
from penstock.lakehouse.change import StagedChange
from penstock.lakehouse.data_file import REWRITTEN, DataFile
from penstock.lakehouse.deletion_vectors import inline, unique_id
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.row_pairs import PairFile, pair_files, pairs_folder
from penstock.lakehouse.state import TableState, load_at
from penstock.lakehouse.storage import Storage

_UPDATE: Final = "UPDATE"
"""commitInfo.operation of Spark's and delta-rs' UPDATE."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a data file's rows: the positions in ``only`` (None: all) except those in ``gone``.
    Both are descriptors of deletion vectors.
    """

    file: DataFile
    gone: Mapping[str, Any] | None = None
    only: Mapping[str, Any] | None = None

    @property
    def size(self) -> int:
        """The most bytes to read."""
        return self.file.size


@dataclass(frozen=True)
class TableChanges:
    """The changes from one version to another, and the states of both.

    ``truncated``: a TRUNCATE has removed all rows of ``before``, which are not in ``removed``;
    ``emptied_with``: oids of all relations that the TRUNCATE has emptied. ``updates_only``: all
    changes are by UPDATE. ``pairs``: files that map new rows to old rows.
    """

    before: TableState
    after: TableState
    removed: tuple[FilePart, ...]
    added: tuple[FilePart, ...]
    truncated: bool = False
    emptied_with: frozenset[int] = frozenset()
    updates_only: bool = False
    pairs: tuple[PairFile, ...] = ()


@dataclass
class _Walk:
    """The net changes so far. ``added``: parts that the range of commits has added, by path;
    ``copied``: more added parts, which later commits do not change."""

    removed: list[FilePart] = field(default_factory=list)
    added: dict[str, FilePart] = field(default_factory=dict)
    copied: list[FilePart] = field(default_factory=list)
    truncated: bool = False
    emptied_with: frozenset[int] = frozenset()
    operations: set[str] = field(default_factory=set)
    pairs: list[PairFile] = field(default_factory=list)


def table_changes(
    storage: Storage,
    table_uri: str,
    from_version: int,
    to_version: int,
    known: TableState | None = None,
    *,
    by_rows: bool = False,
) -> TableChanges:
    """Return the changes after ``from_version`` up to ``to_version``. ``from_version`` is -1 if the
    table was not there. ``known``: a version that is loaded already. ``by_rows``: the rows that a
    TRUNCATE has removed are ``removed``.

    Raises VersionGone, StorageError.
    """
    if known is not None and known.version == from_version:
        before = known
    elif from_version < 0:
        before = TableState()
    else:
        before = load_at(storage, table_uri, from_version)
    state = before.copy()
    walk = _Walk()
    for version in range(from_version + 1, to_version + 1):
        actions = _entry(storage, table_uri, version)
        # A TRUNCATE that was taken back does not count: its removed rows were restored, so both
        # cancel each other.
        truncates = is_truncate(actions) and not (
            by_rows
            or any(
                version in reversed_by(_entry(storage, table_uri, later))
                for later in range(version + 1, to_version + 1)
            )
        )
        _commit(walk, state, version, actions, truncates=truncates)
        walk.pairs += pair_files(table_uri, actions)
    added = (*walk.added.values(), *walk.copied)
    return TableChanges(
        before,
        state,
        tuple(walk.removed),
        added,
        walk.truncated,
        walk.emptied_with,
        updates_only=walk.operations == {_UPDATE},
        pairs=tuple(walk.pairs),
    )


def _entry(storage: Storage, table_uri: str, version: int) -> Sequence[Mapping[str, Any]]:
    actions = read_entry(storage, table_uri, version)
    if actions is None:
        raise VersionGone(f'version {version} of table "{table_uri}" is not in its log any more')
    return actions


def staged_changes(storage: Storage, change: StagedChange, version: int) -> TableChanges:
    """Return the changes of a prepared transaction to a table. ``version``: the table's version on
    which it was checked. Raises VersionGone, StorageError."""
    state = load_at(storage, change.uri, version)
    folder = pairs_folder(change.uri)
    return TableChanges(
        state,
        state,
        tuple(FilePart(loss.file, only=inline(loss.positions)) for loss in change.gone.values()),
        tuple(FilePart(file, gone=file.descriptor) for file in change.added.values()),
        updates_only=change.kinds == {STAGED_UPDATE},
        pairs=tuple(PairFile(f"{folder}/{file.path}", file.size) for file in change.pairs),
    )


def _commit(
    walk: _Walk,
    state: TableState,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    *,
    truncates: bool,
) -> None:
    """Add a commit to the walk. ``truncates``: it counts as a TRUNCATE."""
    old = dict(state.files)
    state.apply(version, actions)
    bodies = [(kind, a[kind]) for a in actions for kind in ("add", "remove") if a.get(kind)]
    if not truncates and not any(body.get("dataChange", True) for _, body in bodies):
        _rewritten(walk, [state.files[body["path"]] for kind, body in bodies if kind == "add"])
        _mark_copied(walk, {body["path"] for kind, body in bodies if kind == "remove"})
        return
    walk.operations.add(_operation(actions))
    if truncates and not old.keys() & state.files.keys():
        walk.removed.clear()
        walk.added = {path: FilePart(f, gone=f.descriptor) for path, f in state.files.items()}
        walk.copied.clear()
        walk.pairs.clear()
        walk.truncated = True
        walk.emptied_with |= emptied_with(actions)
        return
    for path in dict.fromkeys(body["path"] for _, body in bodies):  # in the entry's order
        _file(walk, old.get(path), state.files.get(path))


def _operation(actions: Sequence[Mapping[str, Any]]) -> str:
    """Return the operation that the writer names; "" if it names none."""
    told = (str((a.get("commitInfo") or {}).get("operation") or "") for a in actions)
    return next((operation for operation in told if operation), "")


def _rewritten(walk: _Walk, files: Sequence[DataFile]) -> None:
    """Replace added files that were rewritten one by one for other columns. Their rows are then
    sent with the new columns."""
    for file in files:
        if walk.added.pop((file.tags or {}).get(REWRITTEN, ""), None) is not None:
            walk.added[file.path] = FilePart(file, gone=file.descriptor)


def _mark_copied(walk: _Walk, paths: set[str]) -> None:
    """Keep added files whose rows a commit has moved to other files. If such a row is removed
    later, it must still cancel its addition."""
    for path in paths & set(walk.added):
        walk.copied.append(walk.added.pop(path))


def _file(walk: _Walk, old: DataFile | None, new: DataFile | None) -> None:
    """Add a commit's change of one file to the walk."""
    path = (new or old or DataFile("", 0, 0, {})).path
    if old is None and new is not None:
        walk.added[path] = FilePart(new, gone=new.descriptor)
    elif old is not None and new is None:
        if walk.added.pop(path, None) is None:
            walk.removed.append(FilePart(old, gone=old.descriptor))
    elif old is not None and new is not None:
        if unique_id(old.descriptor) == unique_id(new.descriptor):
            return
        if path in walk.added:
            walk.added[path] = FilePart(new, gone=new.descriptor)
            return
        if new.descriptor is not None:
            walk.removed.append(FilePart(old, gone=old.descriptor, only=new.descriptor))
        if old.descriptor is not None:
            walk.copied.append(FilePart(new, gone=new.descriptor, only=old.descriptor))
