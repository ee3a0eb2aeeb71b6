"""Checks of other writers' commits, since the version that we wrote or read last.

A check raises an error if another writer has done harm, and returns nothing otherwise.

Others may write and delete rows, as PostgreSQL allows on a subscriber; the effects show as
conflicts. RESTORE is different. It undoes our commits but leaves our LSN in place (the markers of a
log only grow), so applied changes are lost and never applied again. A RESTORE is allowed if it
undoes none of our commits (it comes before the first, or restores a version after the last), or if
it repairs a RESTORE that did. Our own copy replaces all rows, so nothing before it counts. Another
subscription must not copy the table: if several fill one table, none copies it again
(``filled_by``).

A writer that replaces files must check that they still exist. The compaction of delta-rs 1.6 does
not: after another compaction, it removes files that are already gone, and adds their rows again.
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
"""commitInfo.operation of our copies that remove all existing rows."""
ADDING_COPY: Final = "COPY APPEND"
"""commitInfo.operation of our copies that keep existing rows."""
RENAME_VALUE: Final = "RENAME VALUE"
"""commitInfo.operation of a subscription's commit that follows a renamed enum label in the rows.
"""

Rows = frozenset[tuple[str, str]]
"""Files with their deletion vectors: if these are the same, two versions have the same rows."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """The facts about a commit that the checks need.

    ``operation``: None if the entry is gone; ``ours``: we have changed rows; ``copy``: our copy has
    removed all earlier rows; ``replaces``: another writer has replaced files; ``copied``: another
    subscription's copy has removed rows; ``markers``: app ids in the commit.
    """

    version: int
    operation: str | None
    ours: bool = False
    copy: bool = False
    replaces: bool = False
    copied: bool = False
    markers: frozenset[str] = frozenset()

    @property
    def suspect(self) -> bool:
        """Return whether a commit may have done harm: files before and after must be compared."""
        return self.operation == RESTORE or self.replaces or self.copied


@dataclass(frozen=True, slots=True)
class _Harm:
    """The version that did harm. ``outdated``: it replaces files that were gone; ``copied``: it is
    another subscription's copy, which replaces all rows. If neither, it is a RESTORE."""

    version: int
    outdated: bool = False
    copied: bool = False


def check_restored(
    storage: Storage, uri: str, name: str, since: int, until: int, app_id: str | None = None
) -> None:
    """Raise StateMismatch if a RESTORE after ``since`` has undone our commits, another writer has
    replaced files that were gone, or another subscription's copy has replaced all rows.

    Reads each entry after ``since``: none if nobody else writes, the whole log if ``since`` is -1.
    ``app_id``: the subscription's. Nothing before its first commit counts, nor before its last
    copy. Without ``app_id`` no copy counts as another subscription's.
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
    """Return whether others have changed rows since the last commit of ``app_id`` up to
    ``version``; True if the log no longer reaches back. Mostly reads only the newest entry."""
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
    """Return those of ``others`` (app ids) that have committed up to ``version`` since the last
    copy of ``app_id``, or at all if it has made no copy; all ``others`` if the log no longer
    reaches back."""
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
    """Return the version to check from: our newest copy, else our first commit if it comes after
    ``since``, else ``since``."""
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
    """Return the hint to restore the version before the harm; None if we have committed since, and
    a RESTORE would lose that commit."""
    if any(commit.ours for commit in commits if commit.version > harmed):
        return None
    return f"Take it back with RESTORE TABLE delta.`{uri}` TO VERSION AS OF {harmed - 1}."


def _harm(storage: Storage, uri: str, since: int, until: int, app_id: str | None) -> _Harm | None:
    """Return the commit that did harm (``check_restored``); None if there is none, or a RESTORE has
    repaired it since.

    If the log does not reach back to ``since``, its entries are still compared with each other, and
    each checkpoint lists all files again. A RESTORE to an unknown state counts as harm.
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
            right.clear()  # even after harm: a RESTORE to before it would lose this commit
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
    """Return the state of a version; None if the log no longer has it."""
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
    copy = _by_us(actions) and operation == COPY and own  # even if the copy is empty
    removes = any(a["remove"].get("dataChange", True) for a in actions if "remove" in a)
    if removes and not _by_us(actions):
        log.warning('another writer has removed or changed rows: %s of "%s"', operation, uri)
    copied = _copied_by_another(actions, app_id)
    return _Commit(version, operation, ours, copy, _replaces(actions), copied, markers)


def _copied_by_another(actions: Sequence[Mapping[str, Any]], app_id: str | None) -> bool:
    """Return whether a commit is another subscription's copy that has removed rows."""
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
    """Return whether rows were changed, not only moved."""
    bodies = (a.get("add") or a.get("remove") for a in actions)
    return any(body.get("dataChange", True) for body in bodies if body)


def _replaces(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether another writer's commit has replaced files with new ones."""
    return not _by_us(actions) and bool(_removed_rows(actions)) and any("add" in a for a in actions)


def _removed_rows(actions: Iterable[Mapping[str, Any]]) -> Rows:
    bodies = (action["remove"] for action in actions if "remove" in action)
    return frozenset((str(b["path"]), unique_id(b.get("deletionVector"))) for b in bodies)


def _added_rows(actions: Iterable[Mapping[str, Any]]) -> Rows:
    bodies = (action["add"] for action in actions if "add" in action)
    return frozenset((str(b["path"]), unique_id(b.get("deletionVector"))) for b in bodies)


def _rows(state: TableState) -> Rows:
    return frozenset((path, unique_id(file.descriptor)) for path, file in state.files.items())


# Some commits remove every row of a table unconditionally: they would also have removed rows that
# were missing then. A commit with a condition does not count, even if it has removed all files:
# nobody knows whether the condition holds for the missing rows.

_NO_CONDITION: Final = (None, "", "[]", "true", '["true"]')
"""operationParameters.predicate of Spark and delta-rs for a commit without a condition."""
_WRITE: Final = "WRITE"
_OVERWRITE: Final = "overwrite"
_EMPTIES: Final = ("TRUNCATE", "DELETE", _WRITE, "REPLACE TABLE", "CREATE OR REPLACE TABLE")
"""The beginnings of commitInfo.operation for commits that may remove every row."""


def empties(actions: Sequence[Mapping[str, Any]], before: Collection[str]) -> bool:
    """Return whether a commit removes every row. ``before``: paths of the files before it."""
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
