"""Rows that go from one table to another by two commits, of which there is never one only.

In: files that lie in the table to which rows go, and are in no log entry. Out: the mark of the
commit that takes the rows out of their table: it names those files, so that anybody who finds it
can finish what its writer did not. The commit that brings the rows in adds files only, so that
nothing that others commit can keep it from taking place. When to look is left to the sequencer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse import actions as log_actions
from penstock.lakehouse.actions import Action, group_mark, group_of, user_metadata
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.storage import Storage

_OPERATION: Final = "WRITE"
"""commitInfo.operation of what arrives: to subscribers it is INSERT, also where the rows have left
another table by UPDATE."""
_ARRIVALS: Final = "penstock.arrivals"
_ARRIVED: Final = "penstock.arrived"


@dataclass(frozen=True)
class Arrivals:
    """Rows that are to come to a table. ``group``: of the transaction. ``relation``: the table's
    oid. ``version``: it has not got them up to there. ``adds``: bodies of add actions."""

    group: str
    relation: int
    version: int
    adds: tuple[Mapping[str, Any], ...]

    @classmethod
    def of_written(
        cls, group: str, relation: int, version: int, files: Iterable[WrittenFile]
    ) -> Arrivals:
        """Files just written in the table's folder."""
        now = log_actions.now_ms()
        new = [DataFile.of_written(file, now) for file in files]
        adds = (log_actions.add(file, None, data_change=True)["add"] for file in new)
        return cls(group, relation, version, tuple(adds))


def departure_mark(group: str, arrivals: Iterable[Arrivals]) -> Mapping[str, object]:
    """User metadata of the commit that takes rows out of a table."""
    described = [[a.relation, a.version, list(a.adds)] for a in arrivals]
    return {**group_mark(group), _ARRIVALS: described}


def arrivals_of(actions: Sequence[Mapping[str, Any]]) -> tuple[Arrivals, ...]:
    """What a commit has taken out of its table, by where it goes."""
    found, group = user_metadata(actions).get(_ARRIVALS), group_of(actions)
    if not isinstance(found, list) or group is None:
        return ()
    return tuple(
        Arrivals(group, item[0], item[1], tuple(item[2])) for item in found if _is_described(item)
    )


def by_table(arrivals: Iterable[Arrivals]) -> list[Arrivals]:
    """Those of one transaction, with those of one table as one."""
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
    """Rows that have left one of some tables and have not come to another of them; None: no such.

    ``tables``: by oid, the URI and a version of each; ``sequenced``: the version up to which the
    sequencer has seen it, which passes no commit that waits for another.
    """
    for oid, (uri, newest) in tables.items():
        for version in range(sequenced.get(oid, newest) + 1, newest + 1):
            for arrivals in arrivals_of(read_entry(storage, uri, version) or ()):
                target = tables.get(arrivals.relation)
                if target is not None and _missing(storage, *target, arrivals):
                    return arrivals
    return None


def _missing(storage: Storage, uri: str, newest: int, arrivals: Arrivals) -> set[str]:
    """The paths of those files that are not in a table's version."""
    paths = {str(body["path"]) for body in arrivals.adds}
    for version in range(arrivals.version + 1, newest + 1):
        paths.difference_update(
            _arrived_paths(read_entry(storage, uri, version) or (), arrivals.group)
        )
    return paths


def arrive(storage: Storage, store: LogStore, table_uri: str, arrivals: Arrivals) -> bool:
    """Put the commit that brings rows to a table; False where all of them are there already. Of
    several tables that rows leave, some may have arrived: a file is known by its path.

    Durable on return. Raises StorageError.
    """
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
        entry = _entry(newest, arrivals.group, missing.values())
        try:
            store.put(table_uri, newest + 1, log_actions.lines(entry))
        except CommitConflict:
            continue  # of others, or our own: a put that seems to have failed
        return True


def _entry(read_version: int, group: str, adds: Iterable[Mapping[str, Any]]) -> list[Action]:
    info = log_actions.commit_info(
        _OPERATION,
        now=log_actions.now_ms(),
        user_metadata={**group_mark(group), _ARRIVED: True},
        blind_append=True,
        read_version=read_version,
    )
    return [info, *({"add": dict(body)} for body in adds)]


def _arrived_paths(actions: Sequence[Mapping[str, Any]], group: str) -> list[str]:
    """Paths of files that a commit has brought for a group."""
    if group_of(actions) != group or user_metadata(actions).get(_ARRIVED) is not True:
        return []
    return [str(action["add"]["path"]) for action in actions if "add" in action]


def _is_described(item: object) -> bool:
    """Others may write the mark, too."""
    if not (isinstance(item, list) and len(item) == 3):
        return False
    relation, version, adds = item
    return (
        isinstance(relation, int)
        and isinstance(version, int)
        and isinstance(adds, list)
        and all(isinstance(body, dict) and "path" in body for body in adds)
    )
