"""What other writers did to a table since a version that is known to be right.

In: the log, the version that we wrote or saw last. Out: nothing, or an error. Others may write and
delete rows, as PostgreSQL allows on a subscriber: what follows from it shows as conflicts. RESTORE
is different. It takes commits of ours away and leaves our LSN in place (the markers of a log only
grow), so that what was applied is lost and never applied again. It is allowed where it takes
nothing of ours: back to a version since our last commit, or back from a RESTORE that did.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.errors import StateMismatch, VersionGone
from penstock.lakehouse.actions import ENGINE
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.state import TableState, load_at
from penstock.lakehouse.storage import Storage

log = logging.getLogger(__name__)

RESTORE: Final = "RESTORE"
"""commitInfo.operation of Spark's RESTORE and of delta-rs'."""

Rows = frozenset[tuple[str, str]]
"""Files with their deletion vectors: two versions with the same have the same rows."""


def check_restored(storage: Storage, uri: str, name: str, since: int, until: int) -> None:
    """Raises StateMismatch when a RESTORE after ``since`` has taken commits of ours away.

    Reads each entry after ``since``: none where nobody else writes. ``since`` -1: the whole log.
    """
    operations = [_operation(storage, uri, version) for version in range(since + 1, until + 1)]
    for version, operation in enumerate(operations, since + 1):
        if operation is None:
            log.warning('table "%s": what version %d did is not in its log', name, version)
    if RESTORE not in operations:
        return
    try:
        taken = _taken(storage, uri, since, until)
    except VersionGone as gone:
        taken = since + 1 + operations.index(RESTORE)
        log.warning("%s", gone.message)
    if taken is not None:
        raise StateMismatch(
            f'table "{name}" was restored to an older state in version {taken}',
            detail="Rows that were replicated are gone from it, and the publisher does not send "
            f'them again. The table lies at "{uri}".',
            hint=f"Take it back with RESTORE TABLE delta.`{uri}` TO VERSION AS OF {taken - 1}, "
            "then ALTER SUBSCRIPTION ... ENABLE.",
        )


def _taken(storage: Storage, uri: str, since: int, until: int) -> int | None:
    """The version of the RESTORE that took commits of ours away, if they are still away."""
    state = TableState() if since < 0 else load_at(storage, uri, since)
    right: set[Rows] = {_rows(state)}
    taken: int | None = None
    for version in range(since + 1, until + 1):
        actions = read_entry(storage, uri, version)
        if actions is None:
            raise VersionGone(f'version {version} of table "{uri}" is not in its log any more')
        state.apply(version, actions)
        rows, info = _rows(state), _commit_info(actions)
        if info.get("operation") == RESTORE:
            if rows in right:
                taken = None
            elif taken is None:
                taken = version
        elif taken is None:
            if info.get("engineInfo") == ENGINE and _changes_data(actions):
                right.clear()
            right.add(rows)
    return taken


def _operation(storage: Storage, uri: str, version: int) -> str | None:
    actions = read_entry(storage, uri, version)
    if actions is None:
        return None
    info = _commit_info(actions)
    operation = str(info.get("operation") or "an unknown operation")
    removes = any(a["remove"].get("dataChange", True) for a in actions if "remove" in a)
    if removes and info.get("engineInfo") != ENGINE:
        log.warning('another writer has removed or changed rows: %s of "%s"', operation, uri)
    return operation


def _commit_info(actions: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if "commitInfo" in a), {})


def _changes_data(actions: Iterable[Mapping[str, Any]]) -> bool:
    bodies = (a.get("add") or a.get("remove") for a in actions)
    return any(body.get("dataChange", True) for body in bodies if body)


def _rows(state: TableState) -> Rows:
    return frozenset(
        (path, json.dumps(file.descriptor, sort_keys=True)) for path, file in state.files.items()
    )
