"""Commits in the log of a table.

In: a table. Out: the commits behind a version, with what the sequencer has to know of them. Which
rows they changed is left to ``pipeline``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.storage import Storage

_BYTES_OF_AN_ACTION: Final = 64


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit. ``time``: microseconds since the Unix epoch. ``size``: bytes of WAL that it
    stands for. ``changes``: False for OPTIMIZE, VACUUM and the like, and for metadata alone.
    """

    version: int
    time: int
    size: int
    changes: bool


def newest_version(storage: Storage, uri: str) -> int | None:
    """The newest version of a table, None when there is none."""
    listing = list_log(storage, uri)
    return max((*listing.entries, *listing.checkpoints), default=None)


def commits_behind(storage: Storage, uri: str, version: int) -> Iterator[TableCommit]:
    """The commits from ``version + 1`` on, in order, as far as there are entries."""
    while (actions := read_entry(storage, uri, version + 1)) is not None:
        version += 1
        yield _commit(version, actions)


def _commit(version: int, actions: Sequence[Mapping[str, Any]]) -> TableCommit:
    size, changes, time = _BYTES_OF_AN_ACTION, False, 0
    removed = {body["path"] for action in actions if (body := action.get("remove"))}
    for action in actions:
        if info := action.get("commitInfo"):
            time = int(info.get("inCommitTimestamp") or info.get("timestamp") or 0) * 1000
        for kind in ("add", "remove"):
            body = action.get(kind)
            if body is None:
                continue
            changes = changes or bool(body.get("dataChange", True))
            size += _BYTES_OF_AN_ACTION
            if kind == "add" and body["path"] not in removed:
                size += int(body.get("size") or 0)
    return TableCommit(version, time, size, changes)
