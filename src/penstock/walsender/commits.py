"""Commits in the log of a table.

In: a table. Out: the commits after a version, with what the sequencer has to know of them. Which
rows they changed is left to ``pipeline``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.catalog.pg_subscription import is_app_id
from penstock.errors import StorageError
from penstock.lakehouse.actions import block_of, group_of, is_truncate, is_undone
from penstock.lakehouse.log import list_log, read_entry
from penstock.lakehouse.row_moves import Arrivals, arrivals_of
from penstock.lakehouse.storage import Storage
from penstock.lsn import Lsn

_BYTES_OF_AN_ACTION: Final = 64
"""Of WAL for each file of a commit, besides the bytes that it adds: lags in bytes mean
something."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999; what is later, or before 1970, is no time of a commit."""
_TIMES: Final = ("inCommitTimestamp", "timestamp")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit. ``time``: microseconds since the Unix epoch, None where it does not say one.
    ``size``: bytes of WAL that it stands for. ``changes``: False for OPTIMIZE, VACUUM and the like.
    ``table_id``: the id that it gives the table, None: the one before. ``applied``: the appId and
    LSN of the subscription that wrote it, None: somebody else did. ``group``: what commits of one
    transaction have in common, None for one by itself. ``arrivals``: rows that it took out of the
    table, and where they go.
    """

    version: int
    time: int | None
    size: int
    changes: bool
    table_id: str | None = None
    applied: tuple[str, Lsn] | None = None
    group: str | None = None
    arrivals: tuple[Arrivals, ...] = ()
    block: frozenset[int] = frozenset()
    undone: bool = False

    @property
    def blocks(self) -> frozenset[str]:
        """The id of the transaction block that it is a commit of, where it is of one."""
        of_block = self.block and self.group is not None and not self.undone
        return frozenset({self.group or ""} if of_block else ())


def newest_version(storage: Storage, uri: str) -> int | None:
    """The newest version of a table, None when there is none."""
    listing = list_log(storage, uri)
    return max((*listing.entries, *listing.checkpoints), default=None)


def commits_after(storage: Storage, uri: str, version: int) -> Iterator[TableCommit]:
    """The commits from ``version + 1`` on, in order, as far as there are entries.

    Raises StorageError at an entry that is no whole one. An empty one is not there yet: some stores
    show a file before its content.
    """
    while True:
        version += 1
        try:
            actions = read_entry(storage, uri, version)
            if actions is None:
                return
            if not actions:
                raise ValueError("it is empty")
            commit = _commit(version, actions)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StorageError(
                f'log entry {version} of table "{uri}" cannot be read: {error}', sqlstate="XX001"
            ) from None
        yield commit


def _commit(version: int, actions: Sequence[Mapping[str, Any]]) -> TableCommit:
    size = _BYTES_OF_AN_ACTION
    time: int | None = None
    table_id: str | None = None
    changes = is_truncate(actions)  # of an empty table, too
    applied: tuple[str, Lsn] | None = None
    removed = {body["path"] for action in actions if (body := action.get("remove"))}
    for action in actions:
        if info := action.get("commitInfo"):
            time = _time(info)
        if metadata := action.get("metaData"):
            # Nothing is sent for it, but a stream sees whether it can go on with such columns.
            table_id, changes = str(metadata["id"]), True
        # Further markers of a subscription, as of its copies, have a path after its appId.
        if (marker := action.get("txn")) and is_app_id(str(marker["appId"])):
            applied = str(marker["appId"]), _position(marker["version"])
        for kind in ("add", "remove"):
            body = action.get(kind)
            if body is None:
                continue
            changes = changes or bool(body.get("dataChange", True))
            size += _BYTES_OF_AN_ACTION
            if kind == "add" and body["path"] not in removed:
                size += int(body.get("size") or 0)
    group, arrivals = group_of(actions), arrivals_of(actions)
    block, undone = block_of(actions), is_undone(actions)
    return TableCommit(
        version, time, size, changes, table_id, applied, group, arrivals, block, undone
    )


def _position(version: object) -> Lsn:
    """A position that a publisher can have had and a state store can keep."""
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise ValueError(f"the marker of a subscription is no position: {version!r}")
    return Lsn(version)


def _time(info: Mapping[str, Any]) -> int | None:
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and 0 < value <= _LAST_MS:
            return int(value * 1000)
    return None
