"""The cuts table: {table -> version} at which a subscription's tables hold exactly one LSN (law 3).

Each cut is one commit. It is durable when ``append`` returns, before the publisher gets feedback
about it (law 1). Any process can read the last cut, which is always whole.

There is one row per table and cut. ``cut_time`` grows strictly within a subscription, so the last
cut of subscription s is the rows with the greatest cut_time where subscription = s. This module
tells subscriptions apart by id, so cuts of a dropped subscription never pass for those of a later
subscription with its name. They are removed when the later one gets the name. No worker removes
them: its node may have been restored to an older state, in which the dropped one still exists.

The table is a plain Delta table (reader version 1) that any reader understands. Only we write it,
so old rows, log entries and files are removed here, without VACUUM.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CommitConflict, StorageError
from penstock.lakehouse import actions, statistics
from penstock.lakehouse.actions import Action, first_entry
from penstock.lakehouse.change import Staging
from penstock.lakehouse.checkpoint import interval_seconds
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import FileWriter, WrittenFile, open_parquet
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import TIMESTAMP, delta_type
from penstock.lakehouse.state import TableState, load, refresh
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.xact import Commit, Elapsed, TableLog
from penstock.lsn import Lsn
from penstock.relation import TableName

__all__ = ["Cut", "CutOwner", "CutTable", "Cuts"]

log = logging.getLogger(__name__)

RETENTION: Final = "interval 10 minutes"
"""Removed files and old log entries are kept for this time, for readers that have just loaded the
table."""
_TRIES: Final = 100
"""The number of races that one commit may lose: all subscriptions put their cuts into this table.
"""
_TICK: Final = timedelta(microseconds=1)
"""The time from one cut to the next if the clock stands still or has gone back."""

_Change = tuple[list[DataFile], list[WrittenFile]]
"""Files that a commit removes, and files that it adds."""


class Cuts:
    """The cuts table of a warehouse, created with the first cut. Safe for use by several threads.

    Several processes may append; each cut is one commit, retried when another cut came first.
    """

    def __init__(
        self,
        storage: Storage,
        store: LogStore,
        uri: str,
        check_there: Callable[[], None] = lambda: None,
    ) -> None:
        """``check_there`` raises an error if the table must not be created."""
        self._check_there = check_there
        self.uri: Final = uri
        self._storage = storage
        self._log = TableLog(storage, store, uri)
        self._lock = threading.Lock()
        self._state: TableState | None = None
        self._loaded = Elapsed()
        self._newest: dict[str, datetime] = {}
        self._seen = False

    def append(
        self,
        owner: CutOwner,
        lsn: Lsn,
        commit_time_us: int | None,
        tables: Mapping[TableName, CutTable],
    ) -> int:
        """Record a cut, durable on return; return the cuts table's version. Raises StorageError.

        ``commit_time_us``: the publisher's time of the last transaction's commit, in microseconds
        since the Unix epoch.
        """
        with self._lock:
            self._current_state()
            cut_time = self._next_time(owner)
            rows = rows_of(owner, lsn, commit_time_us, cut_time, tables)
            (file,) = self._write(rows)
            self._commit("CUT", lambda state: ([], [file]))
            self._newest[owner.id] = cut_time
            return self._current_state().version

    def last(self, owner: CutOwner) -> Cut | None:
        """Return the newest cut of a subscription, by any writer; None if there is none."""
        state = load(self._storage, self.uri)
        return None if state is None else self._last(state, owner)

    def all(self, owner: CutOwner) -> tuple[Cut, ...]:
        """Return all cuts of a subscription that are kept, the oldest first."""
        state = load(self._storage, self.uri)
        return () if state is None else all_cuts(of_owner(self._all_rows(state), owner))

    def names(self) -> set[str]:
        """Return the names of the subscriptions that have cuts."""
        state = load(self._storage, self.uri)
        found = [] if state is None else self._all_rows(state)["subscription"].to_pylist()
        return set(found)

    def as_of(self, owner: CutOwner, wanted: Lsn | datetime) -> Cut | None:
        """Return the newest cut at or before an LSN, or the newest whose last transaction had
        committed by a time; None if there is none, or it was pruned."""
        state = load(self._storage, self.uri)
        if state is None:
            return None
        rows = of_owner(self._all_rows(state), owner)
        if isinstance(wanted, datetime):
            # A cut without a transaction counts from the time when it was made.
            at = pc.coalesce(rows["commit_time"], rows["cut_time"])
            return last_cut(rows.filter(pc.less_equal(at, pa.scalar(wanted, TIMESTAMP))))
        return last_cut(rows.filter(pc.less_equal(rows["lsn"], int(wanted))))

    def before(self, owner: CutOwner, cut: Cut) -> Cut | None:
        """Return the cut before another one; None if there was none or it was pruned."""
        state = load(self._storage, self.uri)
        if state is None:
            return None
        rows = of_owner(self._all_rows(state), owner)
        return last_cut(rows.filter(pc.less(rows["cut_time"], pa.scalar(cut.cut_time, TIMESTAMP))))

    def last_with(self, owner: CutOwner, table: TableName) -> Cut | None:
        """Return a subscription's newest cut that contains a table; None if there is none."""
        if (state := load(self._storage, self.uri)) is None:
            return None
        rows = self._all_rows(state)
        by_name = not _has(state, _OWNER_ID)
        owned = of_owner(with_owners(rows, [owner]) if by_name else rows, owner)
        times = owned.filter(names_table(owned, table))["cut_time"]
        newest = pc.max(times)
        return last_cut(owned.filter(pc.fill_null(pc.equal(owned["cut_time"], newest), False)))

    def prune(self, keep: int, keep_for: float = 0.0) -> None:
        """Move the newest ``keep`` cuts of each subscription, and those younger than ``keep_for``
        seconds, into new files. Remove all other cuts, and files that no reader needs."""
        since = datetime.now(UTC) - timedelta(seconds=keep_for)
        if load(self._storage, self.uri) is None:
            return
        with self._lock:
            then = self._current_state().copy()
        # Work without the lock: no cut has to wait, and the files of ``then`` do not change.
        self._remove_unreferenced(then)
        rows = self._all_rows(then)
        written = self._write(rows.filter(newest_cuts(rows, keep, since)))

        def replace(state: TableState) -> _Change | None:
            """Return None if another process has pruned the cuts meanwhile."""
            there = then.files.keys() <= state.files.keys()
            return (list(then.files.values()), written) if there else None

        with self._lock:
            done = self._commit("PRUNE CUTS", replace)
            properties = self._current_state().properties
        for file in () if done else written:
            self._storage.remove(f"{self.uri}/{file.path}")
        self._log.checkpoint(properties)

    def forget_others(self, owner: CutOwner, living: Sequence[CutOwner] = ()) -> None:
        """Remove the cuts of other subscriptions under the owner's name. The owner calls this when
        it gets the name: then readers who select cuts by name see only its own.

        ``living``: the existing subscriptions. Their cuts are not removed but get the present name
        of their subscription: a worker may add a last cut after its subscription was renamed, and a
        renaming may be interrupted between the cuts and the catalog.
        """
        state = load(self._storage, self.uri)
        if state is None:
            return
        rows = self._all_rows(state)
        if not pc.all(not_of_others(rows, owner), min_count=0).as_py():
            self._rewrite("FORGET CUTS", lambda rows: without_others(rows, owner, living))

    def rename(self, owner: CutOwner) -> None:
        """Give a subscription's cuts its present name, for readers who select them by name."""
        state = load(self._storage, self.uri)
        if state is not None and _has(state, _OWNER_ID):
            self._rewrite("RENAME CUTS", lambda rows: rename_owner(rows, owner))

    def adopt(self, owners: Sequence[CutOwner]) -> None:
        """Give cuts without ids, which older versions wrote, to the subscriptions of their names.

        This happens once in the life of a table: afterwards it has the columns for ids.
        """
        state = load(self._storage, self.uri)
        if state is not None and not _has(state, _OWNER_ID):
            self._rewrite("ADOPT CUTS", lambda rows: with_owners(rows, owners))

    def _rewrite(self, operation: str, change: Callable[[pa.Table], pa.Table]) -> None:
        with self._lock:
            if load(self._storage, self.uri) is None:
                return

            def replace(state: TableState) -> _Change:
                return list(state.files.values()), self._write(change(self._all_rows(state)))

            # Done before the commit: the files that the commit replaces may still have readers, and
            # are removed by the next call.
            self._remove_unreferenced(self._current_state())
            if self._current_state().files:
                self._commit(operation, replace)
            properties = self._current_state().properties
            self._log.checkpoint(properties)

    def _commit(self, operation: str, change: Callable[[TableState], _Change | None]) -> bool:
        """Put the next entry; if another process was first, read its entry and try again. Return
        False if there is nothing to change."""
        for _ in range(_TRIES):
            state = self._current_state()
            if (changed := change(state)) is None:
                return False
            try:
                entry = self._log.put(state.version, _change_of(operation, state, *changed))
            except CommitConflict:
                # call ``change`` again with the state that the other writer has left
                refresh(self._storage, self.uri, state)
                continue
            except BaseException:
                self._state = None  # it is unknown whether the entry was put
                raise
            state.apply(state.version + 1, entry)
            self._loaded = Elapsed()
            return True
        raise CommitConflict(f'other writers keep committing to the cuts table "{self.uri}"')

    def _current_state(self) -> TableState:
        # Another process may have removed entries that this state has not seen. We must not miss
        # them, nor put entries under their names again. So load the state anew if it has seen no
        # commit for a while.
        if self._state is None or self._loaded.seconds > interval_seconds(RETENTION) / 2:
            self._state = load(self._storage, self.uri) or self._create()
            self._seen = True
            self._loaded = Elapsed()
            self._newest.clear()
        return self._state

    def _create(self) -> TableState:
        self._check_there()
        if self._seen:
            raise StorageError(
                f'the cuts table "{self.uri}" is gone', hint="Put the warehouse back as it was."
            )
        try:
            self._log.create(actions.lines(_first_entry()))
        except CommitConflict:
            log.debug("another process has created %s", self.uri)
        state = load(self._storage, self.uri)
        assert state is not None
        return state

    def _next_time(self, owner: CutOwner) -> datetime:
        state = self._current_state()
        if owner.id not in self._newest:
            last = self._last(state, owner)
            self._newest[owner.id] = last.cut_time if last else datetime.min.replace(tzinfo=UTC)
        return max(datetime.now(UTC), self._newest[owner.id] + _TICK)

    def _last(self, state: TableState, owner: CutOwner) -> Cut | None:
        by_name = not _has(state, _OWNER_ID)  # only older versions, without ids, have written here
        found: Cut | None = None
        for newest, file in _by_time(state, owner):
            if found is not None and newest < found.cut_time:
                break
            rows = self._read(file.path)
            cut = last_cut(of_owner(with_owners(rows, [owner]) if by_name else rows, owner))
            if cut is not None and (found is None or cut.cut_time > found.cut_time):
                found = cut
        return found

    def _all_rows(self, state: TableState) -> pa.Table:
        files = state.files.values()
        return pa.concat_tables([SCHEMA.empty_table(), *(self._read(file.path) for file in files)])

    def _write(self, rows: pa.Table) -> list[WrittenFile]:
        return FileWriter(self._storage, self.uri, SCHEMA).write([rows])

    def _read(self, path: str) -> pa.Table:
        with open_parquet(self.uri, path) as parquet:
            return whole_rows(parquet.read())

    def _remove_unreferenced(self, state: TableState) -> None:
        """Remove data files that no reader can still need."""
        horizon = datetime.now(UTC) - timedelta(seconds=interval_seconds(RETENTION))
        files = state.files
        for info in self._storage.list(self.uri):
            old = info.is_file and info.mtime is not None and info.mtime < horizon
            if old and info.base_name.endswith(".parquet") and info.base_name not in files:
                self._storage.remove(f"{self.uri}/{info.base_name}")


def _has(state: TableState, *columns: str) -> bool:
    """Return whether the cuts table has columns that those of older versions lack."""
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return {field["name"] for field in fields}.issuperset(columns)


def _by_time(state: TableState, owner: CutOwner) -> list[tuple[datetime, DataFile]]:
    """Return (newest cut_time, file) of files that may hold a subscription's cuts, newest first."""
    found = []
    for file in state.files.values():
        ids = statistics.bounds(file.stats, "subscription_id", pa.string())
        if ids is not None and not ids[0] <= owner.id <= ids[1]:
            continue
        times = statistics.bounds(file.stats, "cut_time", TIMESTAMP)
        found.append((times[1] if times else datetime.max.replace(tzinfo=UTC), file))
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def _change_of(
    operation: str, state: TableState, removed: list[DataFile], written: list[WrittenFile]
) -> Commit:
    staging = Staging("cuts", dict(state.files))
    staging.put(dict.fromkeys(file.path for file in removed))
    for new in written:
        staging.add(DataFile.of_written(new, actions.now_ms()))
    wider = (
        []
        if _has(state, *SCHEMA.names)
        else [{"metaData": {**_metadata_of(state), "schemaString": _schema()}}]
    )
    return Commit(operation, [*wider, *staging.actions({})], blind_append=staging.appends_only)


def _metadata_of(state: TableState) -> dict[str, Any]:
    return {name: value for name, value in state.metadata.items() if value is not None}


def _schema() -> str:
    fields = [
        {"name": f.name, "type": delta_type(f.type), "nullable": True, "metadata": {}}
        for f in SCHEMA
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _first_entry() -> list[Action]:
    properties = {
        "delta.logRetentionDuration": RETENTION,
        "delta.deletedFileRetentionDuration": RETENTION,
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return first_entry(_schema(), protocol, properties)


# Cuts as values and as rows of the cuts table. The functions below turn an LSN with tables and
# versions into rows to append, and rows that were read into Cut values. ``Cuts`` reads and commits.

SCHEMA: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("lsn", pa.int64()),
        ("lsn_text", pa.string()),
        ("commit_time", TIMESTAMP),
        ("cut_time", TIMESTAMP),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("uri", pa.string()),
        ("version", pa.int64()),
        ("subscription_id", pa.string()),
        ("table_id", pa.string()),
        ("relid", pa.int64()),
        ("partition", pa.bool_()),
    ]
)
"""The columns of the cuts table. Tables of older versions lack the last ones, and get them with
their next commit."""
_OWNER_ID: Final = "subscription_id"


@dataclass(frozen=True, slots=True)
class CutOwner:
    """The subscription that owns cuts: its name, for readers, and its app id, which is never
    reused."""

    name: str
    id: str


@dataclass(frozen=True)
class CutTable:
    """A table of a cut: its URI, and the Delta version to read.

    ``id``: the Delta table's id (metaData.id); None in cuts of older versions. ``relid``: the OID
    of the publisher's relation; None for histories, and in cuts of older versions. ``partition``:
    it is a partition, made on the node, of the table that ``relid`` fills.
    """

    uri: str
    version: int
    id: str | None = None
    relid: int | None = None
    partition: bool = False


@dataclass(frozen=True)
class Cut:
    """All tables of a subscription at one LSN; ``tables`` by (schema, table)."""

    subscription: str
    lsn: Lsn
    commit_time: datetime | None
    tables: Mapping[TableName, CutTable]
    cut_time: datetime


def rows_of(
    owner: CutOwner,
    lsn: Lsn,
    commit_time_us: int | None,
    cut_time: datetime,
    tables: Mapping[TableName, CutTable],
) -> pa.Table:
    """Return the rows of a cut; one row without a table if no table is ready yet."""
    named: list[tuple[str | int | None, ...]] = [
        (*name, t.uri, t.version, t.id, t.relid, t.partition) for name, t in tables.items()
    ]
    cells = named or [(None,) * 7]
    count = len(cells)
    schemas, names, uris, versions, ids, relids, partition = zip(*cells, strict=True)
    commit_time = pa.scalar(commit_time_us, pa.int64()).cast(TIMESTAMP)
    same = {
        "subscription": owner.name,
        "lsn": int(lsn),
        "lsn_text": str(lsn),
        "commit_time": commit_time,
        "cut_time": cut_time,
        "subscription_id": owner.id,
    }
    each = {
        "table_schema": schemas,
        "table_name": names,
        "uri": uris,
        "version": versions,
        "table_id": ids,
        "relid": relids,
        "partition": partition,
    }
    arrays = [
        pa.repeat(pa.scalar(same[f.name], f.type), count)
        if f.name in same
        else pa.array(each[f.name], f.type)
        for f in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def whole_rows(rows: pa.Table) -> pa.Table:
    """Return a file's rows in SCHEMA, with NULL in the newer columns if it lacks them."""
    missing = [field for field in SCHEMA if field.name not in rows.column_names]
    for field in missing:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(SCHEMA.names)


def with_owners(rows: pa.Table, owners: Sequence[CutOwner]) -> pa.Table:
    """Return the rows; rows without an id get the id of the subscription of the same name."""
    ids = {owner.name: owner.id for owner in owners}
    named = [ids.get(name) for name in rows["subscription"].to_pylist()]
    filled = pc.coalesce(rows["subscription_id"], pa.array(named, pa.string()))
    return rows.set_column(SCHEMA.get_field_index("subscription_id"), "subscription_id", filled)


def of_owner(rows: pa.Table, owner: CutOwner) -> pa.Table:
    """Return the rows of one subscription, found by its id."""
    return rows.filter(pc.equal(rows["subscription_id"], owner.id))


def rename_owner(rows: pa.Table, owner: CutOwner) -> pa.Table:
    """Return the rows, with the owner's name set in the owner's rows."""
    own = pc.fill_null(pc.equal(rows["subscription_id"], owner.id), False)
    position = rows.schema.get_field_index("subscription")
    names = pc.if_else(own, pa.scalar(owner.name, pa.string()), rows["subscription"])
    return rows.set_column(position, rows.schema.field(position), names)


def not_of_others(rows: pa.Table, owner: CutOwner) -> pa.Array:
    """Return a mask that leaves out other subscriptions' rows under the owner's name."""
    another_name = pc.not_equal(rows["subscription"], owner.name)
    its_own = pc.fill_null(pc.equal(rows["subscription_id"], owner.id), False)
    return pc.or_(another_name, its_own)


def without_others(rows: pa.Table, owner: CutOwner, living: Sequence[CutOwner]) -> pa.Table:
    """Return the rows without those that other subscriptions still have under the owner's name. The
    rows of ``living`` get their present names."""
    for other in living:
        rows = rename_owner(rows, other)
    return rows.filter(not_of_others(rows, owner))


def last_cut(rows: pa.Table) -> Cut | None:
    """Return the newest cut among rows of one subscription."""
    if rows.num_rows == 0:
        return None
    rows = rows.filter(pc.equal(rows["cut_time"], pc.max(rows["cut_time"]))).to_pylist()
    first = rows[0]
    return Cut(
        subscription=first["subscription"],
        lsn=Lsn(first["lsn"]),
        commit_time=first["commit_time"],
        tables={
            (row["table_schema"], row["table_name"]): CutTable(
                row["uri"],
                row["version"],
                row["table_id"],
                row["relid"],
                partition=bool(row["partition"]),
            )
            for row in rows
            if row["uri"] is not None
        },
        cut_time=first["cut_time"],
    )


def all_cuts(rows: pa.Table) -> tuple[Cut, ...]:
    """Return the cuts among rows of one subscription, the oldest first."""
    found: list[Cut] = []
    while (cut := last_cut(rows)) is not None:
        found.append(cut)
        rows = rows.filter(pc.less(rows["cut_time"], pa.scalar(cut.cut_time, TIMESTAMP)))
    return tuple(reversed(found))


def names_table(rows: pa.Table, table: TableName) -> pa.Array:
    """Return a mask of the rows that name a table."""
    schema, name = table
    same = pc.and_(pc.equal(rows["table_schema"], schema), pc.equal(rows["table_name"], name))
    return pc.fill_null(same, False)


def newest_cuts(rows: pa.Table, keep: int, since: datetime) -> pa.Array:
    """Return a mask of the newest ``keep`` cuts of each subscription and all cuts ``since``."""
    owners = pc.coalesce(rows["subscription_id"], rows["subscription"])
    cuts = pa.table({"owner": owners, "cut_time": rows["cut_time"]})
    ordered = (
        cuts.group_by(["owner", "cut_time"])
        .aggregate([])
        .sort_by([("owner", "ascending"), ("cut_time", "descending")])
    )
    limits: dict[str, datetime] = {}
    seen: dict[str, int] = {}
    for cut in ordered.to_pylist():
        owner = cut["owner"]
        seen[owner] = seen.get(owner, 0) + 1
        if seen[owner] <= keep:
            limits[owner] = min(cut["cut_time"], since)
    known = pc.index_in(owners, pa.array(limits.keys(), pa.string()))
    oldest = pa.array(limits.values(), TIMESTAMP).take(known.combine_chunks())
    return pc.greater_equal(rows["cut_time"], oldest)
