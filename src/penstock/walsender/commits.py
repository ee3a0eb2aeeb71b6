"""Commits in a table's Delta log.

``commits_after`` reads the commits after a version, with the facts that the sequencer needs.
``pipeline`` finds the rows that they changed.
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
from penstock.lakehouse.storage import Storage
from penstock.lsn import Lsn

_BYTES_OF_AN_ACTION: Final = 64
"""Bytes of WAL for each file of a commit, besides the bytes that the file adds, so that a lag in
bytes means something."""
_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999; a time that is later, or before 1970, is ignored."""
_TIMES: Final = ("inCommitTimestamp", "timestamp")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit of a table.

    - ``time``: microseconds since the Unix epoch, None if the commit states none.
    - ``size``: the bytes of WAL that it stands for.
    - ``changes``: False for OPTIMIZE, VACUUM and the like.
    - ``table_id``: the table's new id, None if the id stays.
    - ``applied``: appId and LSN of the subscription that wrote it, None for any other writer.
    - ``group``: the id shared by the commits of one transaction, None for a single commit.
    - ``block``: oids of the tables of its transaction block.
    - ``undone``: it takes back another commit of the block.
    """

    version: int
    time: int | None
    size: int
    changes: bool
    table_id: str | None = None
    applied: tuple[str, Lsn] | None = None
    group: str | None = None
    block: frozenset[int] = frozenset()
    undone: bool = False

    @property
    def blocks(self) -> frozenset[str]:
        """The id of the commit's transaction block, empty if it belongs to none."""
        of_block = self.block and self.group is not None and not self.undone
        return frozenset({self.group or ""} if of_block else ())


def newest_version(storage: Storage, uri: str) -> int | None:
    """Return the newest version of a table, None if there is none."""
    listing = list_log(storage, uri)
    return max((*listing.entries, *listing.checkpoints), default=None)


def commits_after(storage: Storage, uri: str, version: int) -> Iterator[TableCommit]:
    """Yield the commits from ``version + 1`` on, in order, up to the last entry.

    Raises StorageError (XX001) at an entry that cannot be read.
    """
    while True:
        version += 1
        try:
            actions = read_entry(storage, uri, version)
            if actions is None:
                return
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
    changes = is_truncate(actions)  # even of an empty table
    applied: tuple[str, Lsn] | None = None
    removed = {body["path"] for action in actions if (body := action.get("remove"))}
    for action in actions:
        if info := action.get("commitInfo"):
            time = _time(info)
        if metadata := action.get("metaData"):
            # Nothing is sent for it, but a stream checks whether it can go on with the new columns.
            table_id, changes = str(metadata["id"]), True
        # Other markers of a subscription, such as those of its copies, have a path after its appId.
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
    group, block, undone = group_of(actions), block_of(actions), is_undone(actions)
    return TableCommit(version, time, size, changes, table_id, applied, group, block, undone)


def _position(version: object) -> Lsn:
    """Return a marker's version as an LSN. Raises ValueError if it is no LSN that a state store can
    keep."""
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
