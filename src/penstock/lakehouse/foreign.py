"""What other writers did to a table since a version that is known to be right.

In: the log, the version that we wrote or saw last. Out: nothing, or an error. Others may write and
delete rows, as PostgreSQL allows on a subscriber: what follows from it shows as conflicts. RESTORE
is different. It takes commits of ours away and leaves our LSN in place (the markers of a log only
grow), so that what was applied is lost and never applied again. It is allowed where it takes
nothing of ours: before our first commit, back to a version since our last one, or back from a
RESTORE that did. A copy of ours takes the place of all rows: nothing from before it counts. Another
subscription's copy may not: where several fill one table, none copies it again (``filled_by``).

A writer that replaces files must know that they are still there. The compaction of delta-rs 1.6
does not see that another one was first: it removes files that are gone, and brings their rows in a
second time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import StateMismatch, VersionGone
from penstock.lakehouse.actions import ENGINE, is_truncate
from penstock.lakehouse.deletion_vectors import unique_id
from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.state import TableState, load_at
from penstock.lakehouse.storage import Storage

log = logging.getLogger(__name__)

RESTORE: Final = "RESTORE"
"""commitInfo.operation of Spark's RESTORE and of delta-rs'."""

COPY: Final = "COPY"
"""commitInfo.operation of our copies, which leave no row that was there before them."""
ADDING_COPY: Final = "COPY APPEND"
RENAME_VALUE: Final = "RENAME VALUE"
"""A subscription's own change of rows, where the publisher has renamed a label of an enum."""
"""The same of those that leave all of them."""

Rows = frozenset[tuple[str, str]]
"""Files with their deletion vectors: two versions with the same have the same rows."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """``operation``: None where the entry is gone; ``ours``: we have changed rows; ``copy``: and
    none are left that were there before; ``replaces``: others have put files in place of files;
    ``copied``: another subscription's copy has;
    ``markers``: app ids in it."""

    version: int
    operation: str | None
    ours: bool = False
    copy: bool = False
    replaces: bool = False
    copied: bool = False
    markers: frozenset[str] = frozenset()

    @property
    def suspect(self) -> bool:
        """Whether it may have done harm; the files before it and after it tell."""
        return self.operation == RESTORE or self.replaces or self.copied


@dataclass(frozen=True, slots=True)
class _Harm:
    """The version that did it; ``outdated``: it is no RESTORE, but replaces what was gone;
    ``copied``: but another subscription's copy, in place of all rows."""

    version: int
    outdated: bool = False
    copied: bool = False


def check_restored(
    storage: Storage, uri: str, name: str, since: int, until: int, app_id: str | None = None
) -> None:
    """Raises StateMismatch when a RESTORE after ``since`` has taken commits of ours away, or when
    another writer has replaced files that were gone.

    Reads each entry after ``since``: none where nobody else writes. ``since`` -1: the whole log.
    ``app_id``: whose first commit may come after ``since``; nothing from before it counts, nor
    before its last copy, and another's is harm.
    """
    commits = [_commit(storage, uri, version, app_id) for version in range(since + 1, until + 1)]
    for commit in commits:
        if commit.operation is None:
            log.warning('table "%s": what version %d did is not in its log', name, commit.version)
    if not any(commit.suspect for commit in commits):
        return
    since = _begin(storage, uri, commits, since, app_id)
    commits = [commit for commit in commits if commit.version > since]
    if not any(commit.suspect for commit in commits):
        return
    harm = _harm(storage, uri, since, until, app_id)
    if harm is not None:
        raise _error(uri, name, harm, _way_back(uri, harm.version, commits))


def _error(uri: str, name: str, harm: _Harm, hint: str | None) -> StateMismatch:
    version, where = harm.version, f'The table lies at "{uri}".'
    if harm.copied:
        return StateMismatch(
            f'table "{name}" was copied again by another subscription in version {version}',
            detail="The copy took the place of all rows; those that were replicated are in version "
            f'{version - 1}. The table lies at "{uri}".',
        )
    if hint is None:
        where += " No version of it holds the right rows."
    if harm.outdated:
        return StateMismatch(
            f'table "{name}" was rewritten from an older state in version {version}',
            detail=f"Another writer has replaced files that version {version - 1} has no more: "
            f"rows are in the table twice, or are back. {where}",
            hint=hint,
        )
    return StateMismatch(
        f'table "{name}" was restored to an older state in version {version}',
        detail="Rows that were replicated are gone from it, and the publisher does not send "
        f"them again. {where}",
        hint=hint,
    )


def changed_by_others(storage: Storage, uri: str, version: int, app_id: str) -> bool:
    """Whether others have changed rows since the last commit of ``app_id``, up to ``version``; also
    where the log does not tell any more. Reads entries from the newest on, mostly one."""
    for entry in range(version, -1, -1):
        actions = read_entry(storage, uri, entry)
        if actions is None:
            return True
        if app_id in _markers(actions):
            return False
        renamed = _by_us(actions) and _commit_info(actions).get("operation") == RENAME_VALUE
        if _changes_rows(actions) and not renamed:
            return True
    return True


def filled_by(
    storage: Storage, uri: str, version: int, app_id: str, others: Collection[str]
) -> frozenset[str]:
    """Which of ``others`` (app ids) have committed since the last copy of ``app_id``, or ever where
    it has made none, up to ``version``; all where the log does not tell any more."""
    found: frozenset[str] = frozenset()
    for entry in range(version, -1, -1):
        actions = read_entry(storage, uri, entry)
        if actions is None:
            return frozenset(others)
        markers = _markers(actions)
        if app_id in markers and _commit_info(actions).get("operation") == COPY:
            break
        found |= markers.intersection(others)
    return found


def _begin(
    storage: Storage, uri: str, commits: Sequence[_Commit], since: int, app_id: str | None
) -> int:
    """The version to look from: the newest copy of ours, or our first commit."""
    copies = [commit.version for commit in commits if commit.copy]
    if copies:
        return copies[-1]
    first = next((commit.version for commit in commits if app_id in commit.markers), None)
    if first is None or first == 0:
        return since
    try:
        before = load_at(storage, uri, first - 1)
    except VersionGone:
        return since
    return since if app_id in before.transactions else first


def _way_back(uri: str, harmed: int, commits: Iterable[_Commit]) -> str | None:
    """To the version before; unless that lacks what we have committed since."""
    if any(commit.ours for commit in commits if commit.version > harmed):
        return None
    return f"Take it back with RESTORE TABLE delta.`{uri}` TO VERSION AS OF {harmed - 1}."


def _harm(storage: Storage, uri: str, since: int, until: int, app_id: str | None) -> _Harm | None:
    """The commit that took commits of ours away, or replaced what was gone; unless a RESTORE has
    put it right since.

    Where the log does not reach back to ``since``, what its entries say of each other still counts,
    and each checkpoint tells all files again; a RESTORE to what nobody knows is harm.
    """
    checkpoints = list_log(storage, uri).checkpoints
    known = _state_at(storage, uri, since)
    gone: Rows = frozenset()
    right: set[Rows] = set() if known is None else {_rows(known)}
    harm: _Harm | None = None
    for version in range(since + 1, until + 1):
        actions = read_entry(storage, uri, version)
        if actions is None:
            known = _state_at(storage, uri, version) if version in checkpoints else None
            gone = frozenset()
            right = set() if known is None else {_rows(known)}
            continue
        removed = _removed_rows(actions)
        outdated = _replaces(actions) and (
            bool(removed & gone) or (known is not None and not removed <= _rows(known))
        )
        gone = (gone | removed) - _added_rows(actions)
        if known is not None:
            known.apply(version, actions)
        elif version in checkpoints:
            known = _state_at(storage, uri, version)
        rows = None if known is None else _rows(known)
        if _changes_rows_by_us(actions):
            right.clear()  # also after harm: what leads back to before it takes this away
        if _commit_info(actions).get("operation") == RESTORE:
            if rows in right:
                harm = None
            elif harm is None:
                harm = _Harm(version)
        elif harm is None and outdated:
            harm = _Harm(version, outdated=True)
        elif harm is None and _copied_by_another(actions, app_id):
            harm = _Harm(version, copied=True)
        elif harm is None and rows is not None:
            right.add(rows)
    return harm


def _state_at(storage: Storage, uri: str, version: int) -> TableState | None:
    """None where the log does not tell any more."""
    if version < 0:
        return TableState()
    try:
        return load_at(storage, uri, version)
    except VersionGone as gone:
        log.warning("%s", gone.message)
        return None


def _commit(storage: Storage, uri: str, version: int, app_id: str | None) -> _Commit:
    actions = read_entry(storage, uri, version)
    if actions is None:
        return _Commit(version, None)
    operation = str(_commit_info(actions).get("operation") or "an unknown operation")
    ours = _changes_rows_by_us(actions)
    markers = _markers(actions)
    own = app_id is None or app_id in markers
    copy = _by_us(actions) and operation == COPY and own  # of no rows to no rows too
    removes = any(a["remove"].get("dataChange", True) for a in actions if "remove" in a)
    if removes and not _by_us(actions):
        log.warning('another writer has removed or changed rows: %s of "%s"', operation, uri)
    copied = _copied_by_another(actions, app_id)
    return _Commit(version, operation, ours, copy, _replaces(actions), copied, markers)


def _copied_by_another(actions: Sequence[Mapping[str, Any]], app_id: str | None) -> bool:
    """Whether the copy of another subscription than ``app_id``'s has taken rows away."""
    if app_id is None or app_id in _markers(actions) or not _removed_rows(actions):
        return False
    return _by_us(actions) and _commit_info(actions).get("operation") == COPY


def _markers(actions: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(str(a["txn"]["appId"]) for a in actions if "txn" in a)


def _commit_info(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if "commitInfo" in a), {})


def _by_us(actions: Iterable[Mapping[str, Any]]) -> bool:
    return _commit_info(actions).get("engineInfo") == ENGINE


def _changes_rows_by_us(actions: Sequence[Mapping[str, Any]]) -> bool:
    return _by_us(actions) and _changes_rows(actions)


def _changes_rows(actions: Iterable[Mapping[str, Any]]) -> bool:
    """Whether rows were changed, not only moved."""
    bodies = (a.get("add") or a.get("remove") for a in actions)
    return any(body.get("dataChange", True) for body in bodies if body)


def _replaces(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it is others' and has put files in place of files."""
    return not _by_us(actions) and bool(_removed_rows(actions)) and any("add" in a for a in actions)


def _removed_rows(actions: Iterable[Mapping[str, Any]]) -> Rows:
    bodies = (action["remove"] for action in actions if "remove" in action)
    return frozenset((str(b["path"]), unique_id(b.get("deletionVector"))) for b in bodies)


def _added_rows(actions: Iterable[Mapping[str, Any]]) -> Rows:
    bodies = (action["add"] for action in actions if "add" in action)
    return frozenset((str(b["path"]), unique_id(b.get("deletionVector"))) for b in bodies)


def _rows(state: TableState) -> Rows:
    return frozenset((path, unique_id(file.descriptor)) for path, file in state.files.items())


# Which commits of others take every row of a table, whatever it holds.
#
# In: a commit's actions, the files before it. Out: whether no row that would have been there had
# been left by it. A condition says nothing of rows that were not there, so a commit with one does
# not count, though it may have removed all files.

_NO_CONDITION: Final = (None, "", "[]", "true", '["true"]')
"""operationParameters.predicate of Spark and delta-rs."""
_WRITE: Final = "WRITE"
_OVERWRITE: Final = "overwrite"
_EMPTIES: Final = ("TRUNCATE", "DELETE", _WRITE, "REPLACE TABLE", "CREATE OR REPLACE TABLE")
"""commitInfo.operation, or how it begins."""


def empties(actions: Sequence[Mapping[str, Any]], before: Collection[str]) -> bool:
    """``before``: paths of the files."""
    removed = {body["path"] for action in actions if (body := action.get("remove"))}
    if not removed.issuperset(before):
        return False
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    return is_truncate(actions) or any(map(_is_whole, infos))


def _is_whole(info: Mapping[str, Any]) -> bool:
    operation = str(info.get("operation", ""))
    parameters = info.get("operationParameters") or {}
    if not operation.startswith(_EMPTIES) or parameters.get("predicate") not in _NO_CONDITION:
        return False
    return operation != _WRITE or str(parameters.get("mode")).lower() == _OVERWRITE
