"""The Delta log of one table: names, listings and entries (protocol: "File Types").

The functions list versions and checkpoints, read an entry's actions, and find the version before
one of our commits. ``log_store`` writes entries, ``state`` and ``actions`` interpret actions.

The version before a commit is needed for the leaves of a partitioned table: several tables hold one
relation's rows, and some may have a batch that others lack. The missing changes are computed from
the last state that all leaves had in common.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import StateMismatch, StorageError
from penstock.lakehouse.checksums import CheckpointSum, contradicts, is_damaged, sum_in_name
from penstock.lakehouse.storage import Storage, is_local, local_path, storage_errors
from penstock.lsn import INVALID, Lsn

_ENTRY: Final = re.compile(r"^(\d{20})\.json$")
_V2_CHECKPOINT: Final = re.compile(r"^(\d{20})\.checkpoint\.[0-9A-Fa-f-]{36}\.(?:json|parquet)$")
_CHECKPOINT: Final = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")


@dataclass(frozen=True)
class LogListing:
    """The content of a log folder: versions of entries, and checkpoints with their parts' URIs.
    ``sums``: of the parts that have any, by URI.

    A V2 checkpoint is one part, which names further files (``state``).
    """

    entries: tuple[int, ...]
    checkpoints: dict[int, tuple[str, ...]]
    sums: Mapping[str, tuple[CheckpointSum, ...]] = field(default_factory=dict)

    @property
    def newest(self) -> int | None:
        """The newest version, None if there is no table."""
        return max((*self.entries, *self.checkpoints), default=None)


def log_folder(table_uri: str) -> str:
    """Return the folder of a table's log."""
    return f"{table_uri}/_delta_log"


def entry_uri(table_uri: str, version: int) -> str:
    """Return the URI of a version's log entry."""
    return f"{log_folder(table_uri)}/{version:020d}.json"


def list_log(storage: Storage, table_uri: str) -> LogListing:
    """List a log; the listing is empty if there is no table."""
    entries: list[int] = []
    parts: dict[tuple[int, int], list[str]] = {}
    second: dict[int, tuple[str, ...]] = {}
    sums: dict[str, tuple[CheckpointSum, ...]] = {}
    for name in _names(storage, log_folder(table_uri)):
        if found := _ENTRY.match(name):
            entries.append(int(found[1]))
        elif found := _CHECKPOINT.match(name):
            uri = f"{log_folder(table_uri)}/{name}"
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(uri)
        elif found := _V2_CHECKPOINT.match(name):
            second[int(found[1])] = (f"{log_folder(table_uri)}/{name}",)
        elif of := sum_in_name(name):
            uri = f"{log_folder(table_uri)}/{of[0]}"
            sums[uri] = (*sums.get(uri, ()), of[1])
    whole = {
        version: tuple(sorted(uris))
        for (version, count), uris in sorted(parts.items())
        if len(uris) == count
    }
    return LogListing(tuple(sorted(entries)), {**second, **whole}, sums)


def read_entry(storage: Storage, table_uri: str, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of one version, or None if there is no such entry.

    Raises StorageError (XX001) for an entry that is damaged. An entry of another writer may have
    actions of any names: those that we do not know are for newer readers.
    """
    content = storage.read_if_there(entry_uri(table_uri, version))
    if content is None:
        return None
    check_entry(table_uri, version, content)
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError as error:
        raise damaged_entry(table_uri, version, str(error)) from None
    if not all(isinstance(action, dict) for action in actions):
        raise damaged_entry(table_uri, version, "a line is not a JSON object")
    return actions


def check_entry(table_uri: str, version: int, content: bytes) -> None:
    """Raise StorageError (XX001) if an entry is empty, or not as its checksum says."""
    if not content.strip():
        raise damaged_entry(table_uri, version, "it is empty")
    if is_damaged(content):
        raise damaged_entry(table_uri, version, "its checksum is wrong")


def damaged_entry(table_uri: str, version: int, reason: str) -> StorageError:
    """Return the error for an entry that cannot be read."""
    return StorageError(
        f'could not read log entry "{entry_uri(table_uri, version)}": {reason}',
        detail=f'Table "{table_uri}" cannot be read from version {version} on.',
        hint="Put the file back as it was, or restore the table from a copy.",
        sqlstate="XX001",
    )


def check_checkpoint(uri: str, content: bytes, listing: LogListing) -> None:
    """Raise StorageError (XX001) if a checkpoint's file is not as its sums tell."""
    if contradicts(content, listing.sums.get(uri, ())):
        raise damaged_checkpoint(uri, "its checksum is wrong")


def damaged_checkpoint(uri: str, reason: str) -> StorageError:
    """Return the error for a checkpoint that cannot be read."""
    return StorageError(
        f'could not read checkpoint "{uri}": {reason}',
        hint="Put the file back as it was. If the log has all entries before it, the file may be "
        "removed.",
        sqlstate="XX001",
    )


def _names(storage: Storage, folder: str) -> Iterator[str]:
    for uri in storage.held:
        if uri.startswith(f"{folder}/"):
            yield uri.rpartition("/")[2]
    if not is_local(folder):
        yield from (info.base_name for info in storage.list(folder))
        return
    # a log may have a hundred thousand entries: read the names only, without stat(2) for each
    with (
        storage_errors("read directory", folder),
        contextlib.suppress(FileNotFoundError),
        os.scandir(local_path(folder)) as found,
    ):
        yield from (entry.name for entry in found)


def common_point(marker: int | None, last_cut: Lsn | None) -> Lsn:
    """Return the LSN up to which all leaves are complete: the root's marker or the last cut with
    the root, whichever is later."""
    return Lsn(max(marker or INVALID, last_cut or INVALID))


def version_before(storage: Storage, uri: str, newest: int, app_id: str, marker: int) -> int:
    """Return the version before the first commit with the marker. Raises StorageError;
    StateMismatch if the log does not reach back to that commit."""
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


def remove_unnamed(storage: Storage, table_uri: str, mark: str, since: int) -> int:
    """Remove data files with ``mark`` in their names that no entry after version ``since`` names;
    return how many. Remove none if the log no longer reaches back to ``since``. Raises
    StorageError."""
    marked = {i.base_name for i in storage.list(table_uri) if i.is_file and mark in i.base_name}
    if not marked:
        return 0
    listing = list_log(storage, table_uri)
    for version in range(since + 1, 1 + (since if listing.newest is None else listing.newest)):
        entry = read_entry(storage, table_uri, version)
        if entry is None:
            return 0
        marked -= {action["add"]["path"] for action in entry if "add" in action}
    for name in marked:
        storage.remove(f"{table_uri}/{name}")
    return len(marked)
