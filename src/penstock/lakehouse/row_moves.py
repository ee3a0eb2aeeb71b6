"""Moves of rows between tables, by two commits that take effect together.

In: files in the folder of the rows' new table that no log entry names yet. Out: the mark of the
commit that removes the rows from their old table. It names those files, so that anybody who finds
it can finish the move if its writer did not. The commit to the new table only adds files, so no
commit of others can prevent it. The sequencer decides when to look for unfinished moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse import actions as log_actions
from penstock.lakehouse.actions import group_mark, group_of, user_metadata
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.xact import Commit, TableLog

_OPERATION: Final = "WRITE"
"""commitInfo.operation of arrivals: subscribers see an INSERT, even if an UPDATE moved the rows.
"""
_ARRIVALS: Final = "penstock.arrivals"
_ARRIVED: Final = "penstock.arrived"


@dataclass(frozen=True)
class Arrivals:
    """Rows that must come to a table. ``group``: the transaction's. ``relation``: the table's oid.
    ``version``: the table lacks the rows up to this one. ``adds``: bodies of add actions."""

    group: str
    relation: int
    version: int
    adds: tuple[Mapping[str, Any], ...]

    @classmethod
    def of_written(
        cls, group: str, relation: int, version: int, files: Iterable[WrittenFile]
    ) -> Arrivals:
        """Return the arrivals of files just written in the table's folder."""
        now = log_actions.now_ms()
        new = [DataFile.of_written(file, now) for file in files]
        adds = (log_actions.add(file, None, data_change=True)["add"] for file in new)
        return cls(group, relation, version, tuple(adds))


def departure_mark(group: str, arrivals: Iterable[Arrivals]) -> Mapping[str, object]:
    """Return the user metadata of the commit that removes the rows from their old table."""
    described = [[a.relation, a.version, list(a.adds)] for a in arrivals]
    return {**group_mark(group), _ARRIVALS: described}


def arrivals_of(actions: Sequence[Mapping[str, Any]]) -> tuple[Arrivals, ...]:
    """Return the rows that a commit has moved out of its table, by the table to which they go."""
    found, group = user_metadata(actions).get(_ARRIVALS), group_of(actions)
    if not isinstance(found, list) or group is None:
        return ()
    return tuple(
        Arrivals(group, item[0], item[1], tuple(item[2])) for item in found if _is_described(item)
    )


def by_table(arrivals: Iterable[Arrivals]) -> list[Arrivals]:
    """Return the arrivals of one transaction, combined by table."""
    found: dict[int, Arrivals] = {}
    for item in arrivals:
        known = found.get(item.relation)
        adds = item.adds if known is None else (*known.adds, *item.adds)
        version = item.version if known is None else min(known.version, item.version)
        found[item.relation] = Arrivals(item.group, item.relation, version, adds)
    return list(found.values())


def pending(
    storage: Storage, sequenced: Mapping[int, int], tables: Mapping[int, tuple[str, int]]
) -> Arrivals | None:
    """Return rows that have left one table and are missing in another; None if there are none.

    ``tables``: URI and version of each table to look at, by oid; ``sequenced``: the version up to
    which the sequencer has read each, by oid. It does not pass a commit that waits for another.
    """
    for oid, (uri, newest) in tables.items():
        for version in range(sequenced.get(oid, newest) + 1, newest + 1):
            for arrivals in arrivals_of(read_entry(storage, uri, version) or ()):
                target = tables.get(arrivals.relation)
                if target is not None and _missing(storage, *target, arrivals):
                    return arrivals
    return None


def _missing(storage: Storage, uri: str, newest: int, arrivals: Arrivals) -> set[str]:
    """Return the paths of the files that have not arrived up to a table's version."""
    paths = {str(body["path"]) for body in arrivals.adds}
    for version in range(arrivals.version + 1, newest + 1):
        paths.difference_update(
            _arrived_paths(read_entry(storage, uri, version) or (), arrivals.group)
        )
    return paths


def arrive(log: TableLog, arrivals: Arrivals) -> bool:
    """Put the commit that adds rows to a table; return False if all have arrived already. Rows from
    several tables may have arrived in part: files are compared by path.

    Durable on return. Raises StorageError.
    """
    storage, table_uri = log.storage, log.uri
    looked_at = arrivals.version
    missing = {str(body["path"]): body for body in arrivals.adds}
    while True:
        listing = list_log(storage, table_uri)
        newest = max((*listing.entries, *listing.checkpoints), default=None)
        if newest is None:
            raise StorageError(f'there is no Delta table at "{table_uri}"', sqlstate="58P01")
        for version in range(looked_at + 1, newest + 1):
            for path in _arrived_paths(
                read_entry(storage, table_uri, version) or (), arrivals.group
            ):
                missing.pop(path, None)
        if not missing:
            return False
        looked_at = newest
        commit = Commit(
            _OPERATION,
            [{"add": dict(body)} for body in missing.values()],
            {**group_mark(arrivals.group), _ARRIVED: True},
            blind_append=True,
        )
        try:
            log.put(newest, commit)
        except CommitConflict:
            continue  # with an entry of others, or our own, if a put only seemed to fail
        return True


def _arrived_paths(actions: Sequence[Mapping[str, Any]], group: str) -> list[str]:
    """Return the paths of files that a commit has added for a group."""
    if group_of(actions) != group or user_metadata(actions).get(_ARRIVED) is not True:
        return []
    return [str(action["add"]["path"]) for action in actions if "add" in action]


def _is_described(item: object) -> bool:
    """Tell whether the mark is well-formed: others may write it, too."""
    if not (isinstance(item, list) and len(item) == 3):
        return False
    relation, version, adds = item
    return (
        isinstance(relation, int)
        and isinstance(version, int)
        and isinstance(adds, list)
        and all(isinstance(body, dict) and "path" in body for body in adds)
    )
