"""A table as it was before a commit of ours.

In: a table's log, an app id and the marker that its newest commit brought. Out: the version before
that commit. Used for the leaves of a partitioned table, where several tables hold one relation's
rows, and some have a batch that others have not yet: what the others lack is worked out from the
state that they had in common.
"""

from __future__ import annotations

from penstock.errors import StateMismatch
from penstock.lakehouse.log import read_entry
from penstock.lakehouse.storage import Storage
from penstock.lsn import INVALID, Lsn


def common_point(marker: int | None, last_cut: Lsn | None) -> Lsn:
    """Up to where all leaves are the same: the root's own LSN, and the last cut that it is in."""
    return Lsn(max(marker or INVALID, last_cut or INVALID))


def version_before(storage: Storage, uri: str, newest: int, app_id: str, marker: int) -> int:
    """The version before the first commit with the marker. Raises StateMismatch where the log does
    not reach back to it, StorageError."""
    found = None
    for version in range(newest, -1, -1):
        entry = read_entry(storage, uri, version)
        if entry is None:
            break
        ours = {int(a["txn"]["version"]) for a in entry if a.get("txn", {}).get("appId") == app_id}
        if marker in ours:
            found = version - 1
        elif ours or found is not None:
            break
    if found is None or found < 0:
        raise StateMismatch(
            f'the log of table "{uri}" does not reach back to the last batch',
            detail=f"The commit of {app_id} at {marker} is not in it any more, and other "
            "partitions have not got that batch.",
            alter="REFRESH PUBLICATION",
        )
    return found
