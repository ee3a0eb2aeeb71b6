"""The state of a table at a version, replayed from its Delta log (protocol: "Action
Reconciliation").

A ``TableState`` is built from a checkpoint, classic or V2, and later log entries. We replay the log
ourselves because no library gives everything. delta-rs hides the deletion vectors' descriptors,
which a remove action must repeat; Delta's snapshot needs the JVM and half a second. ``protocol``
checks whether we may read or write a table.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import StorageError, VersionGone
from penstock.lakehouse import deletion_vectors, statistics
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.log import (
    LogListing,
    check_checkpoint,
    damaged_checkpoint,
    damaged_entry,
    list_log,
    read_entry,
)
from penstock.lakehouse.storage import Storage, is_local, resolve, storage_call, storage_errors
from penstock.lakehouse.table_layout import TableLayout, layout_of

log = logging.getLogger(__name__)

_CHECKPOINT_COLUMNS: Final = [
    "txn.appId",
    "txn.version",
    "add.path",
    "add.size",
    "add.modificationTime",
    "add.stats",
    "add.tags",
    "add.deletionVector",
    "add.partitionValues",
    "add.clusteringProvider",
    "domainMetadata",
    "metaData",
    "protocol",
    "sidecar.path",
]
_kept: Final[OrderedDict[object, TableState]] = OrderedDict()
"""States of checkpoints, by their files with inodes, sizes and times. They are never changed."""
_lock: Final = Lock()
_MAX_KEPT: Final = 64
_MAX_KEPT_FILES: Final = 2000
"""The most files of a table whose checkpoint is kept in memory. A larger checkpoint is read again
each time."""
_MALFORMED: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What Python raises where an action is not of the form that the protocol asks for."""
_READERS: Final = 8
"""The number of deletion vectors that are read at the same time: object stores answer slowly."""


@dataclass
class TableState:
    """A version of a table. ``files``: by path; ``transactions``: app id -> marker; ``domains``:
    name -> configuration; ``last_app_id``: the newest commit's app id, None without a marker."""

    version: int = -1
    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    last_app_id: str | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def layout(self) -> TableLayout:
        """The layout of the table's rows in files."""
        return layout_of(self.metadata, self.domains)

    def copy(self) -> TableState:
        """Return a copy; ``apply`` on it does not change this state."""
        return replace(
            self,
            files=dict(self.files),
            transactions=dict(self.transactions),
            domains=dict(self.domains),
        )

    def apply(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of the next version. ``load_vectors`` reads their deletion vectors."""
        added: list[DataFile] = []
        self.last_app_id = None
        for action in actions:
            if body := action.get("add"):
                added.append(data_file(body))
            elif body := action.get("remove"):
                self.files.pop(body["path"], None)
            elif body := action.get("txn"):
                self.transactions[body["appId"]] = int(body["version"])
                if self.last_app_id is None:
                    self.last_app_id = body["appId"]
            elif body := action.get("metaData"):
                self.metadata = dict(body)
            elif body := action.get("protocol"):
                self.protocol = dict(body)
            elif body := action.get("domainMetadata"):
                self.domains[body["domain"]] = body.get("configuration") or ""
                if body.get("removed"):
                    del self.domains[body["domain"]]
        for file in added:
            self.files[file.path] = file
        self.version = version


def load(storage: Storage, table_uri: str) -> TableState | None:
    """Return the newest version, without deletion vectors; None if there is no table.

    Raises StorageError (XX001) if entries are damaged or missing in between, or if a checkpoint is
    damaged and the entries before it are no longer there.
    """
    listing = list_log(storage, table_uri)
    if not listing.entries and not listing.checkpoints:
        return None
    state, failure = _from_checkpoint(listing)
    for version in (v for v in listing.entries if v > state.version):
        actions = read_entry(storage, table_uri, version)
        if version != state.version + 1 or actions is None:
            raise _gap(table_uri, state.version + 1, failure)
        _apply(table_uri, state, version, actions)
    if state.version < max(listing.checkpoints, default=-1):
        raise _gap(table_uri, state.version + 1, failure)
    if state.version in listing.checkpoints and state.last_app_id is None:
        state.last_app_id = _last_app_id(read_entry(storage, table_uri, state.version) or ())
    return state


def load_at(storage: Storage, table_uri: str, version: int) -> TableState:
    """Return a version, without deletion vectors.

    Raises VersionGone if the log does not reach back to it, or does not have it yet; StorageError
    (XX001) if a checkpoint is damaged and the entries before it are no longer there.
    """
    listing = list_log(storage, table_uri)
    checkpoints = {v: parts for v, parts in listing.checkpoints.items() if v <= version}
    state, failure = _from_checkpoint(replace(listing, checkpoints=checkpoints))
    refresh(storage, table_uri, state, upto=version)
    if failure is not None and state.version < max(checkpoints):
        raise _gap(table_uri, state.version + 1, failure)
    follow_to(storage, table_uri, state, version)
    return state


def follow_to(storage: Storage, table_uri: str, state: TableState, version: int) -> None:
    """Apply newer entries up to a version. Raises VersionGone if an entry is missing."""
    refresh(storage, table_uri, state, upto=version)
    if state.version < version:
        raise VersionGone(
            f'version {version} of table "{table_uri}" is not in its log any more',
            detail=f"There is no entry for version {state.version + 1}.",
        )


def refresh(storage: Storage, table_uri: str, state: TableState, upto: int | None = None) -> bool:
    """Apply newer entries, up to a version; return True if there were any."""
    before = state.version
    while (upto is None or state.version < upto) and (
        actions := read_entry(storage, table_uri, state.version + 1)
    ) is not None:
        _apply(table_uri, state, state.version + 1, actions)
    return state.version != before


def _apply(
    table_uri: str, state: TableState, version: int, actions: Iterable[Mapping[str, Any]]
) -> None:
    """Apply an entry. Raises StorageError (XX001) if an action lacks what the protocol asks for."""
    try:
        state.apply(version, actions)
    except _MALFORMED as error:
        raise damaged_entry(table_uri, version, f"an action is malformed: {error!r}") from None


def _gap(table_uri: str, version: int, failure: StorageError | None) -> StorageError:
    """Return the error for an entry that is missing. ``failure``: of a checkpoint that would have
    made it needless."""
    told = f'log of table "{table_uri}" has no entry for version {version}'
    if failure is None:
        return StorageError(told, sqlstate="XX001")
    return StorageError(
        failure.message,
        detail=f"The table cannot be read without it: the {told}.",
        hint="Put the file back as it was, or restore the table from a copy.",
        sqlstate=failure.sqlstate,
    )


def load_vectors(
    storage: Storage, table_uri: str, state: TableState, paths: Collection[str] | None = None
) -> None:
    """Read the deletion vectors of all files, or of some, and row counts that statistics lack."""
    files = state.files.values()
    chosen = files if paths is None else (file for file in files if file.path in paths)
    todo = [f for f in chosen if f.rows < 0 or (f.descriptor and not f.deleted)]

    def complete(file: DataFile) -> DataFile:
        if file.rows < 0:
            with open_parquet(table_uri, file.path) as parquet:
                file = replace(file, rows=parquet.metadata.num_rows)
        if file.descriptor:
            positions = deletion_vectors.read(storage, table_uri, file.descriptor)
            file = replace(file, deletion_vector=positions.serialize(), deleted=len(positions))
        return file

    if is_local(table_uri) or len(todo) < 2:
        done = [complete(file) for file in todo]
    else:
        with ThreadPoolExecutor(_READERS) as pool:
            done = list(pool.map(complete, todo))
    for file in done:
        state.files[file.path] = file


def _from_checkpoint(listing: LogListing) -> tuple[TableState, StorageError | None]:
    """Return the state of the newest readable checkpoint, an empty state if there is none; and the
    first error of those that are there and cannot be read."""
    failure: StorageError | None = None
    for version in sorted(listing.checkpoints, reverse=True):
        try:
            return _read_checkpoint(version, listing), failure
        except StorageError as error:
            # a power failure may have torn it; older checkpoints and the entries have everything
            log.warning("checkpoint of version %d cannot be read: %s", version, error.message)
            if error.sqlstate != "58P01":  # the retention has removed it since it was listed
                failure = failure or error
    return TableState(), failure


def _read_checkpoint(version: int, listing: LogListing) -> TableState:
    """Return the state of a checkpoint. A local checkpoint is read again only if its files have
    changed."""
    parts = listing.checkpoints[version]
    if not all(map(is_local, parts)):
        return _read_all(version, listing)
    with storage_errors("read file", parts[0]):
        found = [Path(resolve(part)[1]).stat() for part in parts]
    same = (version, *((each.st_ino, each.st_size, each.st_mtime_ns) for each in found))
    with _lock:
        kept = _kept.get((parts, same))
    if kept is None:
        kept = _read_all(version, listing)
        if len(kept.files) <= _MAX_KEPT_FILES:
            with _lock:
                _kept[parts, same] = kept
                while len(_kept) > _MAX_KEPT:
                    _kept.popitem(last=False)
    return kept.copy()


def _read_all(version: int, listing: LogListing) -> TableState:
    state = TableState()
    parts = listing.checkpoints[version]
    try:
        for part in parts:
            actions = _checkpoint_actions(part, listing)
            state.apply(version, actions)
            folder = part.rpartition("/")[0]
            for name in (action["sidecar"]["path"] for action in actions if action.get("sidecar")):
                uri = name if "/" in name else f"{folder}/_sidecars/{name}"
                state.apply(version, _checkpoint_actions(uri, listing))
    except _MALFORMED as error:
        raise damaged_checkpoint(part, f"an action is malformed: {error!r}") from None
    if not state.protocol or not state.metadata:
        raise damaged_checkpoint(parts[0], "it has no protocol or no metadata")
    state.last_app_id = None
    return state


def _checkpoint_actions(uri: str, listing: LogListing) -> list[dict[str, Any]]:
    with storage_call("read file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_input_file(path) as source:
            if uri.endswith(".json"):
                return [json.loads(line) for line in source.read().splitlines() if line.strip()]
            if uri in listing.sums:
                content = bytes(source.read())
                check_checkpoint(uri, content, listing)
                source = pa.BufferReader(content)
            # Spark's checkpoints have checksums of their own
            with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
                return list(_actions(parquet.read(columns=_CHECKPOINT_COLUMNS)))


def _actions(table: pa.Table) -> Iterable[dict[str, Any]]:
    for kind in table.column_names:
        rows = table.column(kind)
        for body in rows.filter(rows.is_valid()).to_pylist():
            # in some writers' files a struct that is all NULL means "no such action"
            if any(value is not None for value in body.values()):
                yield {kind: _with_maps(body)}


def _with_maps(body: dict[str, Any]) -> dict[str, Any]:
    """Turn maps into dicts: Arrow returns them as lists of pairs."""
    for key in ("tags", "configuration", "options", "partitionValues"):
        if key in body and not isinstance(body[key], str):  # a domainMetadata's is a string
            body[key] = dict(body[key] or ())
    if isinstance(body.get("format"), dict):
        body["format"] = _with_maps(body["format"])
    return body


def data_file(body: Mapping[str, Any]) -> DataFile:
    """Return the file of an add action, without reading its vector."""
    stats = statistics.from_json(body.get("stats"))
    return DataFile(
        path=body["path"],
        size=int(body["size"]),
        rows=int(stats.get("numRecords", -1)),
        stats=stats,
        modification_time=int(body.get("modificationTime") or 0),
        descriptor=body.get("deletionVector") or None,
        tags=body.get("tags") or None,
        partition_values=body.get("partitionValues") or None,
        clustering_provider=body.get("clusteringProvider"),
    )


def _last_app_id(actions: Iterable[Mapping[str, Any]]) -> str | None:
    return next((str(a["txn"]["appId"]) for a in actions if "txn" in a), None)
