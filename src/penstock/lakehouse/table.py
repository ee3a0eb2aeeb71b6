"""A Delta table as the driver keeps it between batches; commits by compare-and-swap.

``DeltaTable`` stages written files and positions to delete, and commits them as a version with a
transaction marker (law 2), durable when ``commit`` returns (law 1). The state is valid while nobody
else commits. After a lost race the caller gets CommitConflict and loads the table again.
``pipeline`` decides which rows change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from pyroaring import BitMap

from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    StateMismatch,
    UndefinedObject,
)
from penstock.lakehouse import actions, protocol
from penstock.lakehouse.actions import MARK, Action, change_metadata, first_entry, reversal_mark
from penstock.lakehouse.change import ROLLBACK, Reversal, Staging, reversal
from penstock.lakehouse.checkpoint import RETENTIONS, longer_retentions
from penstock.lakehouse.data_file import REWRITTEN, DataFile
from penstock.lakehouse.deletion_vectors import VectorFile
from penstock.lakehouse.file_commits import FileCommits
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.foreign import changed_by_others, check_restored, filled_by
from penstock.lakehouse.log import entry_uri, list_log, read_entry, version_before
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import DROPPED, KEY, SOURCE, UNFILLED, Column, TableSchema
from penstock.lakehouse.state import TableState, load, load_at, load_vectors
from penstock.lakehouse.statistics import INDEXED_COLUMNS
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout, check_layout, check_new_layout
from penstock.lakehouse.xact import Commit, Elapsed, TableLog

_TRUSTED_SECONDS: Final = 3600.0
"""Seconds for which a loaded state is trusted without listing the log. That is far less than any
log retention, so no later entry can have been put and cleaned up meanwhile."""


class DeltaTable:
    """A table, and the changes staged for its next version. Not safe for use by several threads.

    ``files`` and ``schema`` show the current version with everything staged.
    """

    def __init__(
        self,
        storage: Storage,
        store: LogStore,
        uri: str,
        name: str,
        state: TableState,
        *,
        vectors: bool = True,
    ) -> None:
        self.uri: Final = uri
        self.name: Final = name
        self.storage: Final = storage
        self.commits: Final = FileCommits(storage, uri)
        self._store = store
        self._take(state, vectors=vectors)

    @classmethod
    def load(
        cls, storage: Storage, store: LogStore, uri: str, name: str, *, vectors: bool = True
    ) -> DeltaTable | None:
        """Open the newest version; return None if there is no table. Without ``vectors`` no
        deletion vector is read: only for tables whose rows are all replaced, or not looked at.

        Raises FeatureNotSupported for tables that our commits would damage.
        """
        state = load(storage, uri)
        return None if state is None else cls(storage, store, uri, name, state, vectors=vectors)

    @classmethod
    def create(
        cls,
        storage: Storage,
        store: LogStore,
        uri: str,
        name: str,
        schema: TableSchema,
        layout: TableLayout = NO_LAYOUT,
    ) -> DeltaTable:
        """Create version 0 without rows. Raises DuplicateObject if there is a table,
        FeatureNotSupported if the layout does not fit the columns."""
        entry = new_table_entry(name, schema, layout)
        try:
            TableLog(storage, store, uri).create(actions.lines(entry))
        except CommitConflict:
            raise DuplicateObject(f'table "{uri}" already exists') from None
        state = TableState()
        state.apply(0, entry)
        return cls(storage, store, uri, name, state)

    def before(self, app_id: str, marker: int) -> DeltaTable:
        """Return the table before an app id's newest commits, which have ``marker``. The result
        must not be committed to. Raises StateMismatch, VersionGone if that is too long ago."""
        version = version_before(self.storage, self.uri, self.version, app_id, marker)
        state = load_at(self.storage, self.uri, version)
        return DeltaTable(self.storage, self._store, self.uri, self.name, state)

    def _take(self, state: TableState, *, vectors: bool = True) -> None:
        protocol.check_writable(self.name, state.protocol, state.metadata)
        if vectors:
            load_vectors(self.storage, self.uri, state)
        self._state = state
        self._staging = Staging(self.name, state.files, state.layout.partition_by)
        self._staged_properties: Mapping[str, str] = {}
        self._staged_schema: TableSchema | None = None
        self._staged_unfilled: tuple[str, ...] | None = None
        self._forget_staged_schema()
        self._schema = TableSchema.of_delta(state.metadata["schemaString"], state.properties)
        self.layout = state.layout
        check_layout(self.name, self.layout, self._schema.arrow())
        self._log = TableLog(self.storage, self._store, self.uri)
        self._seen = Elapsed()

    @property
    def state(self) -> TableState:
        """The state that was loaded or committed last; callers must not change it."""
        return self._state

    @property
    def id(self) -> str:
        """The table's own id (metaData.id), which no other table has."""
        return str(self._state.metadata["id"])

    @property
    def version(self) -> int:
        """The version that is loaded or was committed last."""
        return self._state.version

    @property
    def schema(self) -> TableSchema:
        """Columns and key, staged columns included."""
        return self._staged_schema or self._schema

    @property
    def files(self) -> Mapping[str, DataFile]:
        """Files by path, staged changes included."""
        return self._staging.files

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Files that are staged."""
        return self._staging.added

    @property
    def kept(self) -> tuple[DataFile, ...]:
        """Files of the loaded version that still have rows after the staged changes."""
        new = {file.path for file in self.added}
        return tuple(f for path, f in self.files.items() if path not in new and f.live_rows)

    @property
    def rows(self) -> int:
        """The number of rows that readers of the next version will see."""
        return sum(file.live_rows for file in self.files.values())

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._state.properties

    @property
    def last_app_id(self) -> str | None:
        """The app id of the newest commit, None if it has no marker."""
        return self._state.last_app_id

    @property
    def has_staged(self) -> bool:
        """Return whether the next commit changes files, columns or properties."""
        altered = self._staged_schema is not None or bool(self._staged_properties)
        return self._staging.changed or altered

    def transaction_version(self, app_id: str) -> int | None:
        """Return the marker of an app id: the LSN up to which its changes are in this version."""
        return self._state.transactions.get(app_id)

    def stage(
        self,
        *,
        written: Sequence[WrittenFile] = (),
        deleted: Mapping[str, BitMap] | None = None,
        removed: Iterable[str] = (),
        remove_all: bool = False,
        rewritten: Mapping[str, WrittenFile] | None = None,
    ) -> None:
        """Stage changes: first ``remove_all``, then ``removed``, ``deleted``, ``written`` and
        ``rewritten``.

        ``removed``: paths of files to remove. ``deleted``: path -> more positions to delete; a file
        without rows left is removed. Both may name files staged earlier. ``rewritten``: path -> the
        file with the same rows that replaces it.
        """
        if remove_all:
            self._staging.remove_all()
        for path in removed:
            self._staging.remove(path)
        for path, positions in (deleted or {}).items():
            self._staging.delete(path, positions)
        now = actions.now_ms()
        for file in written:
            self._staging.add(DataFile.of_written(file, now))
        for path, file in (rewritten or {}).items():
            self._staging.replace(path, DataFile.of_written(file, now, {REWRITTEN: path}))

    def drop_columns(self, names: Collection[str]) -> None:
        """Stage the removal of columns (Delta names). Files keep the values until they are
        rewritten: a new column of the same name would show them. Raises FeatureNotSupported."""
        left = self.schema.without(names)
        check_layout(self.name, self.layout, left.arrow())
        self._staged_dropped |= {c.name for c in self._schema.columns if c.name in names}
        self._staged_unfilled = tuple(name for name in self.unfilled if name not in names)
        self._staged_schema = left

    def add_columns(self, columns: Sequence[Column], unfilled: Collection[str] = ()) -> None:
        """Stage added columns; existing rows hold NULL there.

        ``unfilled``: the added columns in which existing rows have other values at the publisher.
        """
        if columns:
            self._staged_schema = self.schema.with_columns(columns)
            self._staged_unfilled = (*self.unfilled, *unfilled)

    def keep_versions(self, seconds: int) -> None:
        """Stage longer retentions, if the properties keep versions for less than ``seconds``."""
        self._staged_properties = longer_retentions(self.properties, seconds)

    def mark(self, schema: TableSchema) -> None:
        """Stage a schema with the same columns but other marks (published, PRIMARY KEY)."""
        if schema != self.schema:
            self._staged_schema = schema

    @property
    def unfilled(self) -> tuple[str, ...]:
        """Columns, staged ones included, in which older rows lack the publisher's values. A
        property lists them until the table is replaced."""
        if self._staged_unfilled is not None:
            return self._staged_unfilled
        return tuple(json.loads(self.properties.get(UNFILLED, "[]")))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns (PostgreSQL's names) that DROP COLUMN has removed, staged changes included."""
        known = json.loads(self.properties.get(DROPPED, "[]"))
        gone = [c.source for c in self._schema.columns if c.name in self._staged_dropped]
        names = () if self._replaced else dict.fromkeys([*known, *gone])
        return tuple(name for name in names if name not in self.schema.by_source)

    def replace(self, schema: TableSchema) -> None:
        """Stage another table in place of this one: without rows, with the columns and key of
        ``schema``. The commit is not marked as a TRUNCATE. Raises FeatureNotSupported."""
        check_new_layout(self.name, self.layout, schema.arrow())
        self._staging.remove_all(truncate=False)
        if schema != self.schema or self.unfilled or self.dropped:
            self._staged_schema, self._replaced = schema, True
            self._staged_unfilled = ()

    def discard(self) -> None:
        """Forget staged changes; remove their data files unless a commit may have named them."""
        self._forget_staged_schema()
        for path in self._staging.discard():
            if not self._log.is_open:
                self.storage.remove(f"{self.uri}/{path}")

    def _forget_staged_schema(self) -> None:
        self._staged_schema, self._replaced, self._staged_unfilled = None, False, None
        self._staged_dropped: frozenset[str] = frozenset()
        self._staged_properties = {}

    def check_store(self) -> None:
        """Raise the error for which no commit would begin now, as ``LogStore.check``."""
        self._log.check()

    def is_behind(self) -> bool:
        """Return whether somebody has put a version after the loaded one."""
        return self.storage.exists(entry_uri(self.uri, self.version + 1))

    def reload(self) -> None:
        """Load the newest version; staged changes are forgotten, and VACUUM removes their files.

        Raises UndefinedObject if the table is gone, StateMismatch if it is another table or lacks
        our commits.
        """
        state = load(self.storage, self.uri)
        if state is None:
            raise UndefinedObject(f'table "{self.name}" does not exist at "{self.uri}" any more')
        if state.metadata.get("id") != self.id or state.version < self.version:
            raise StateMismatch(
                f'table "{self.name}" is another one, or went back to an older state',
                detail=f'At "{self.uri}" is version {state.version} of table '
                f"{state.metadata.get('id')}, there was version {self.version} of {self.id}.",
                hint="Put it back as it was.",
            )
        if state.transactions:  # otherwise it never had a commit of ours
            check_restored(self.storage, self.uri, self.name, self.version, state.version)
        self._take(state)

    def check_restored(self, since: int, app_id: str | None = None) -> None:
        """Raise StateMismatch if other writers have done harm after ``since``, for example by a
        RESTORE that has undone our commits. ``app_id``: the subscription's, whose first commit may
        come after ``since`` (``foreign.check_restored``).
        """
        check_restored(self.storage, self.uri, self.name, since, self.version, app_id)

    def reload_below(self) -> None:
        """Load the newest version, and stage the same changes on it. They must only add rows and
        columns. Raises as ``reload``; CommitConflict if the table was altered."""
        added, known = self.added, (self.id, self._state.metadata["schemaString"])
        staged = self._staged_schema, self._staged_unfilled, self._staged_properties
        self.reload()
        for file in added:
            self._staging.add(file)
        if known != (self.id, self._state.metadata["schemaString"]):
            raise CommitConflict(f'table "{self.name}" was altered')
        self._staged_schema, self._staged_unfilled, self._staged_properties = staged

    def changed_by_others(self, app_id: str) -> bool:
        """Return whether others have changed rows since the last commit of an app id."""
        return changed_by_others(self.storage, self.uri, self.version, app_id)

    def columns_before_others(self, app_id: str) -> frozenset[str]:
        """Return the columns (PostgreSQL's names) that were published when ``app_id`` committed
        last. Empty if nobody else has committed since, or the log no longer reaches back.
        """
        if self.last_app_id == app_id:
            return frozenset()
        for version in range(self.version, -1, -1):
            entry = read_entry(self.storage, self.uri, version)
            if entry is None:
                break
            if any(action.get("txn", {}).get("appId") == app_id for action in entry):
                then = load_at(self.storage, self.uri, version)
                had = TableSchema.of_delta(then.metadata["schemaString"], then.properties)
                return frozenset(c.source for c in had.columns if c.published or not c.local)
        return frozenset()

    @property
    def app_ids(self) -> frozenset[str]:
        """All app ids that have a marker in the table."""
        return frozenset(self._state.transactions)

    def filled_by(self, app_id: str, others: Collection[str]) -> frozenset[str]:
        """Return those of ``others`` that have committed since the last copy of ``app_id``."""
        return filled_by(self.storage, self.uri, self.version, app_id, others)

    def commit(
        self,
        *,
        app_id: str,
        version_marker: int | None = None,
        operation: str,
        extra_markers: Mapping[str, int] | None = None,
        user_metadata: Mapping[str, object] | None = None,
        data_change: bool = True,
    ) -> int:
        """Put the next version with all staged changes and the marker; return its number.

        ``version_marker``: an LSN; by default the version, since an app's marker must only grow.
        ``data_change=False``: rows were only moved (compaction).

        Durable on return. Raises StorageError; CommitConflict if another writer was first: the
        table must then be loaded again.
        """
        if self._log.is_open:
            raise CommitConflict(
                f'it is unknown whether the last commit to table "{self.name}" took place',
                hint="Load the table again.",
            )
        self._check_current()
        now = actions.now_ms()
        marker = self.version + 1 if version_marker is None else version_marker
        markers = {app_id: marker, **(extra_markers or {})}
        emptied = self._staging.emptied
        vectors = VectorFile()
        described = self._staging.describe(vectors.add)
        changes = [
            *self._metadata_actions(),
            *(actions.txn(app, marker, now=now) for app, marker in markers.items()),
            *self._staging.actions(described, data_change=data_change),
        ]
        metadata = {**(user_metadata or {}), **(MARK if emptied else {})}
        appends = self._staging.appends_only
        commit = Commit(operation, changes, metadata, blind_append=appends)
        entry = self._log.put(self.version, commit, vectors)
        self._committed(entry, described, app_id, markers)
        return self.version

    def reversal(self, app_id: str, since: int, operation: str) -> Reversal | None:
        """Return the plan to take commits back. Staged changes are discarded, and the newest
        version is loaded. Raises as ``change.reversal`` and ``reload``."""
        self.discard()
        if self.is_behind():
            self.reload()
        return reversal(self.storage, self.uri, self._state, app_id, since, operation)

    def reverse(self, app_id: str, found: Reversal) -> None:
        """Commit a plan of ``reversal``. Raises as ``commit``."""
        self._staging.put(found.files)
        self.commit(
            app_id=app_id,
            version_marker=found.marker,
            operation=ROLLBACK,
            user_metadata=reversal_mark(found.versions),
        )

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and remove log entries past their retention.
        Any thread may call this."""
        self._log.checkpoint(self.properties)

    def _check_current(self) -> None:
        """Raise CommitConflict if another version was put, even if its entry is gone again."""
        if self._seen.seconds < _TRUSTED_SECONDS:
            return
        listing = list_log(self.storage, self.uri)
        newest = max((*listing.entries, *listing.checkpoints), default=-1)
        if newest != self.version:
            raise CommitConflict(
                f'table "{self.name}" is at version {newest}, loaded was {self.version}',
                hint="Load the table again and retry.",
            )
        self._seen = Elapsed()

    def _committed(
        self,
        entry: Sequence[Action],
        described: Mapping[str, DataFile],
        app_id: str,
        markers: Mapping[str, int],
    ) -> None:
        for path in self._staging.committed(described):
            self.storage.remove(f"{self.uri}/{path}")
        self._state.version += 1
        self.commits.committed(self.version, entry)
        self._state.transactions.update(markers)
        self._state.last_app_id = app_id
        for action in entry:
            if "metaData" in action:
                self._state.metadata = dict(action["metaData"])
            elif "protocol" in action:
                self._state.protocol = dict(action["protocol"])
        self._schema = self.schema
        self._forget_staged_schema()
        self._seen = Elapsed()

    def _metadata_actions(self) -> list[Action]:
        if self._staged_schema is None and not self._staged_properties:
            return []
        dropped = self._staged_dropped
        kept = sum(column.name not in dropped for column in self._schema.columns)
        told = {UNFILLED: self.unfilled, DROPPED: self.dropped}
        before = None if self._replaced else kept
        return change_metadata(self._state, self.schema, told, before, self._staged_properties)


# The first log entry of a new table: the actions of version 0 for its columns and layout. A layout
# that Delta would not accept raises an error.

RETENTION: Final = "interval 2 days"
"""New tables keep old log entries and removed files for this time, for readers of old cuts. In a
week, Delta's default, a table with several commits a second gets hundreds of thousands of both."""

_INDEXED: Final = "delta.dataSkippingNumIndexedCols"


def new_table_entry(name: str, schema: TableSchema, layout: TableLayout) -> list[Action]:
    """Return the first entry. Raises FeatureNotSupported if the layout does not fit the columns."""
    check_new_layout(name, layout, schema.arrow())
    return first_entry(
        schema.delta_json(),
        protocol.for_new_table(
            timestamp_ntz=schema.needs_timestamp_ntz,
            clustered=bool(layout.cluster_by),
            variants=schema.has_variants,
        ),
        {
            protocol.ENABLE_VECTORS: "true",
            **dict.fromkeys(RETENTIONS, RETENTION),
            KEY: json.dumps(schema.key),
            SOURCE: name,
            **_more_indexed(schema, layout),
        },
        layout,
    )


def _more_indexed(schema: TableSchema, layout: TableLayout) -> dict[str, str]:
    """Return the property for statistics of clustering columns after the first 32 columns; empty if
    it is not needed."""
    names = [column.name for column in schema.columns]
    count = max((names.index(name) + 1 for name in layout.cluster_by), default=0)
    return {_INDEXED: str(count)} if count > INDEXED_COLUMNS else {}
