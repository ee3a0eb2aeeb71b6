"""The identity of the table at a URI: a folder may be removed, and another table made in it.

A table is identified by its id (``metaData.id``). The marks of entries show, without reading them,
that a Delta log is another one. ``CREATE OR REPLACE TABLE`` gives a table a new id, but the log
remains the same. The caller decides what to do about another log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from penstock.errors import StorageError, VersionGone
from penstock.lakehouse.log import (
    LogListing,
    check_checkpoint,
    check_entry,
    entry_uri,
    list_log,
)
from penstock.lakehouse.storage import Storage, resolve, storage_errors

_METADATA = b'"metaData"'


@dataclass(frozen=True, slots=True)
class EntryMark:
    """The size and time of a log entry in its store. Two logs have equal marks for a version only
    if both entries have the same size and were written in the same tick of the store's clock."""

    size: int
    modified: int | None


def entry_mark(table_uri: str, version: int) -> EntryMark | None:
    """Return the mark of a version's entry, None if there is none, by one request to the store."""
    uri = entry_uri(table_uri, version)
    with storage_errors("stat file", uri):
        filesystem, path = resolve(uri)
        info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        return None
    return EntryMark(info.size or 0, info.mtime_ns)


def table_id(storage: Storage, table_uri: str, version: int) -> str:
    """Return the table's id at a version, or the oldest id in the log if it no longer reaches back
    to that version. Only metadata is read.

    Raises StorageError (XX001) at a damaged file; VersionGone if the log ends before ``version``.
    """
    listing = list_log(storage, table_uri)
    known = {*listing.entries, *listing.checkpoints}
    if not known or max(known) < version:
        raise VersionGone(f'version {version} of table "{table_uri}" is not in its log')
    base = max((v for v in listing.checkpoints if v <= version), default=-1)
    found = _id_in_entries(storage, table_uri, (v for v in listing.entries if base < v <= version))
    if found is not None:
        return found
    for checkpoint in (base, *sorted(v for v in listing.checkpoints if v > version)):
        try:
            for part in listing.checkpoints.get(checkpoint, ()):
                found = _id_in_checkpoint(storage, part, listing)
                if found is not None:
                    return found
        except StorageError:  # the entries before it may still be there
            before = (v for v in listing.entries if v <= base)
            found = _id_in_entries(storage, table_uri, before)
            if found is None:
                raise
            return found
    raise StorageError(f'log of table "{table_uri}" has no metadata', sqlstate="XX001")


def newest_table_id(storage: Storage, table_uri: str) -> str | None:
    """Return the id at the newest version; None if there is no table. Raises as ``table_id``."""
    newest = list_log(storage, table_uri).newest
    return None if newest is None else table_id(storage, table_uri, newest)


def _id_in_entries(storage: Storage, table_uri: str, versions: Iterable[int]) -> str | None:
    """Return the id in the newest of some entries that has one."""
    ids = (_id_in_entry(storage, table_uri, v) for v in sorted(versions, reverse=True))
    return next((found for found in ids if found is not None), None)


def _id_in_entry(storage: Storage, table_uri: str, version: int) -> str | None:
    uri = entry_uri(table_uri, version)
    content = storage.read(uri)
    check_entry(table_uri, version, content)
    return _id_in_lines(content, uri)


def _id_in_lines(content: bytes, uri: str) -> str | None:
    for line in content.splitlines():
        if _METADATA in line:
            body = _parse(line, uri).get("metaData")
            if isinstance(body, dict) and body.get("id"):
                return str(body["id"])
    return None


def _parse(line: bytes, uri: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise StorageError(f'log file "{uri}" cannot be read: {error}', sqlstate="XX001") from None
    return found if isinstance(found, dict) else {}


def _id_in_checkpoint(storage: Storage, part: str, listing: LogListing) -> str | None:
    if part.endswith(".json"):
        return _id_in_lines(storage.read(part), part)
    if part in listing.sums:
        check_checkpoint(part, storage.read(part), listing)
    with storage_errors("read file", part):
        filesystem, path = resolve(part)
        with (
            filesystem.open_input_file(path) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group, columns=["metaData.id"])
                for row in rows.column("metaData").to_pylist():
                    if row is not None and row.get("id"):
                        return str(row["id"])
    return None
