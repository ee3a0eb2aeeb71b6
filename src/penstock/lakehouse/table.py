"""One Delta table as the driver keeps it between batches; commits by compare-and-swap.

In: files that tasks wrote, positions that they found. Out: versions of the table, each with its
transaction marker (law 2), durable when ``commit`` returns (law 1). The state is valid while nobody
else commits; the one that loses the race gets CommitConflict and loads again. Which rows change is
left to ``pipeline``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyroaring import BitMap

from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    PenstockError,
    RelationChanged,
    StateMismatch,
    UndefinedObject,
)
from penstock.lakehouse import actions, protocol
from penstock.lakehouse.actions import MARK, Action, change_metadata, first_entry, reversal_mark
from penstock.lakehouse.checkpoint import RETENTIONS, longer_retentions
from penstock.lakehouse.data_file import REWRITTEN, DataFile
from penstock.lakehouse.deletion_vectors import VectorFile
from penstock.lakehouse.elapsed import Elapsed
from penstock.lakehouse.file_commits import FileCommits
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.foreign import changed_by_others, check_restored, filled_by
from penstock.lakehouse.log import entry_uri, list_log, log_folder, read_entry, version_before
from penstock.lakehouse.log_store import LogStore, may_be_there
from penstock.lakehouse.reversal import REVERSAL, Reversal, reversal
from penstock.lakehouse.schema import DROPPED, KEY, SOURCE, UNFILLED, Column, TableSchema
from penstock.lakehouse.state import TableState, load, load_at, load_vectors
from penstock.lakehouse.statistics import INDEXED_COLUMNS
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout, check_layout, check_new_layout

_TRUSTED_SECONDS: Final = 3600.0
"""How long a loaded state is taken for complete without a look at the log's names; far less than
any log retention, after which a later entry could have come and gone."""


class DeltaTable:
    """A table with what is staged for its next version. Not safe for use by several threads.

    ``files`` and ``schema`` show the current version with everything staged.
    """

    def __init__(
        self, storage: Storage, store: LogStore, uri: str, name: str, state: TableState
    ) -> None:
        self.uri: Final = uri
        self.name: Final = name
        self.storage: Final = storage
        self.commits: Final = FileCommits(storage, uri)
        self._store = store
        self._take(state)

    @classmethod
    def load(cls, storage: Storage, store: LogStore, uri: str, name: str) -> DeltaTable | None:
        """Open the newest version; None when there is no table.

        Raises FeatureNotSupported for tables that commits by files would damage.
        """
        state = load(storage, uri)
        return None if state is None else cls(storage, store, uri, name, state)

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
        """Create version 0 without rows. Raises DuplicateObject when there is a table,
        FeatureNotSupported where it cannot be laid out so."""
        entry = new_table_entry(name, schema, layout)
        storage.create_folder(log_folder(uri))
        try:
            store.put(uri, 0, actions.lines(entry))
        except CommitConflict:
            raise DuplicateObject(f'table "{uri}" already exists') from None
        state = TableState()
        state.apply(0, entry)
        return cls(storage, store, uri, name, state)

    def before(self, app_id: str, marker: int) -> DeltaTable:
        """The table before the newest commit of an app id, which brought that marker; not to be
        committed to. Raises StateMismatch, VersionGone: too long ago."""
        version = version_before(self.storage, self.uri, self.version, app_id, marker)
        state = load_at(self.storage, self.uri, version)
        return DeltaTable(self.storage, self._store, self.uri, self.name, state)

    def _take(self, state: TableState) -> None:
        protocol.check_writable(self.name, state.protocol, state.metadata)
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
        self._unknown = False
        self._seen = Elapsed()

    @property
    def state(self) -> TableState:
        """What was loaded or committed last; not to be changed."""
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
        """path -> file, staged changes included."""
        return self._staging.files

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Files that are staged."""
        return self._staging.added

    @property
    def kept(self) -> tuple[DataFile, ...]:
        """Files with rows that are there before what is staged, and stay."""
        new = {file.path for file in self.added}
        return tuple(f for path, f in self.files.items() if path not in new and f.live_rows)

    @property
    def rows(self) -> int:
        """Rows that readers of the next version will see."""
        return sum(file.live_rows for file in self.files.values())

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self._state.properties

    @property
    def last_app_id(self) -> str | None:
        """The app id of the newest commit; tells whether somebody else committed last."""
        return self._state.last_app_id

    @property
    def has_staged(self) -> bool:
        """True when the next commit changes files or columns."""
        altered = self._staged_schema is not None or bool(self._staged_properties)
        return self._staging.changed or altered

    def transaction_version(self, app_id: str) -> int | None:
        """The marker of an app id: the LSN up to which its changes are in this version."""
        return self._state.transactions.get(app_id)

    def stage(
        self,
        *,
        written: Sequence[WrittenFile] = (),
        deleted: Mapping[str, BitMap] | None = None,
        remove_all: bool = False,
        rewritten: Mapping[str, WrittenFile] | None = None,
    ) -> None:
        """Add to the next version: first ``remove_all``, then ``deleted``, then ``written``.

        ``deleted``: path -> positions that go, in addition to those that are gone already; paths of
        files staged earlier count too. A file without rows left is removed. ``rewritten``: path ->
        the file with the same rows that takes its place.
        """
        if remove_all:
            self._staging.remove_all()
        for path, positions in (deleted or {}).items():
            self._staging.delete(path, positions)
        now = actions.now_ms()
        for file in written:
            self._staging.add(DataFile.of_written(file, now))
        for path, file in (rewritten or {}).items():
            self._staging.replace(path, DataFile.of_written(file, now, {REWRITTEN: path}))

    def drop_columns(self, names: Collection[str]) -> None:
        """Stage that columns (Delta names) go. What files hold in them stays there until they are
        rewritten: a column of the same name would show it. Raises FeatureNotSupported."""
        left = self.schema.without(names)
        check_layout(self.name, self.layout, left.arrow())
        self._staged_dropped |= {c.name for c in self._schema.columns if c.name in names}
        self._staged_unfilled = tuple(name for name in self.unfilled if name not in names)
        self._staged_schema = left

    def add_columns(self, columns: Sequence[Column], unfilled: Collection[str] = ()) -> None:
        """Stage added columns; rows from before hold NULL.

        ``unfilled``: those whose rows from before have other values at their source.
        """
        if columns:
            self._staged_schema = self.schema.with_columns(columns)
            self._staged_unfilled = (*self.unfilled, *unfilled)

    def keep_versions(self, seconds: int) -> None:
        """Stage that its versions can be read for so long, where its properties say less."""
        self._staged_properties = longer_retentions(self.properties, seconds)

    def mark(self, schema: TableSchema) -> None:
        """Stage a schema with the same columns, marked otherwise: published, of the PRIMARY KEY."""
        if schema != self.schema:
            self._staged_schema = schema

    @property
    def unfilled(self) -> tuple[str, ...]:
        """Columns in which rows from before they were added lack the values that they have at their
        source, staged ones included; they are in the table's log until it is replaced."""
        if self._staged_unfilled is not None:
            return self._staged_unfilled
        return tuple(json.loads(self.properties.get(UNFILLED, "[]")))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Columns (PostgreSQL's names) that DROP COLUMN has taken away, staged changes included."""
        known = json.loads(self.properties.get(DROPPED, "[]"))
        gone = [c.source for c in self._schema.columns if c.name in self._staged_dropped]
        names = () if self._replaced else dict.fromkeys([*known, *gone])
        return tuple(name for name in names if name not in self.schema.by_source)

    def replace(self, schema: TableSchema) -> None:
        """Stage another table in place of this one: no rows, and the columns and key of ``schema``.
        It is no TRUNCATE, so the commit is not marked as one. Raises FeatureNotSupported."""
        check_new_layout(self.name, self.layout, schema.arrow())
        self._staging.remove_all(truncate=False)
        if schema != self.schema or self.unfilled or self.dropped:
            self._staged_schema, self._replaced = schema, True
            self._staged_unfilled = ()

    def discard(self) -> None:
        """Forget what is staged. Its data files are removed unless a commit may have named them."""
        self._forget_staged_schema()
        for path in self._staging.discard():
            if not self._unknown:
                self.storage.remove(f"{self.uri}/{path}")

    def _forget_staged_schema(self) -> None:
        self._staged_schema, self._replaced, self._staged_unfilled = None, False, None
        self._staged_dropped: frozenset[str] = frozenset()
        self._staged_properties = {}

    def is_behind(self) -> bool:
        """Whether somebody has put a version after the one that is loaded."""
        return self.storage.exists(entry_uri(self.uri, self.version + 1))

    def reload(self) -> None:
        """Load the newest version; what is staged is forgotten, its files are left to VACUUM.

        Raises UndefinedObject, StateMismatch: it is another table, or commits of ours are gone.
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
        if state.transactions:  # else nothing of ours was ever in it
            check_restored(self.storage, self.uri, self.name, self.version, state.version)
        self._take(state)

    def check_restored(self, since: int, app_id: str | None = None) -> None:
        """Raises StateMismatch when a RESTORE after ``since`` has taken commits of ours away.

        ``app_id``: whose first commit may come after ``since``.
        """
        check_restored(self.storage, self.uri, self.name, since, self.version, app_id)

    def reload_below(self) -> None:
        """Load the newest version, and stage on it what was staged, which only adds rows and
        columns. Raises CommitConflict where it has other columns by now, and as ``reload``."""
        added, known = self.added, (self.id, self._state.metadata["schemaString"])
        staged = self._staged_schema, self._staged_unfilled, self._staged_properties
        self.reload()
        for file in added:
            self._staging.add(file)
        if known != (self.id, self._state.metadata["schemaString"]):
            raise CommitConflict(f'table "{self.name}" was altered')
        self._staged_schema, self._staged_unfilled, self._staged_properties = staged

    def changed_by_others(self, app_id: str) -> bool:
        """Whether others have changed rows since the last commit of an app id."""
        return changed_by_others(self.storage, self.uri, self.version, app_id)

    def columns_before_others(self, app_id: str) -> frozenset[str]:
        """Columns, by PostgreSQL's names, that were published when ``app_id`` committed last, where
        others have committed since; empty where nobody has, or the log does not tell any more.
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
        """Of all that have ever left a marker in it."""
        return frozenset(self._state.transactions)

    def filled_by(self, app_id: str, others: Collection[str]) -> frozenset[str]:
        """Which of other app ids have committed since the last copy of an app id."""
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
        """Put the next version with everything staged and the marker; returns its number.

        ``version_marker``: an LSN; by default the version, as a marker of an app must only grow.

        Durable on return. Raises CommitConflict when another writer was first (load again), and
        StorageError. ``data_change=False``: rows were only moved (compaction).
        """
        if self._unknown:
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
        described = self._staging.describe(vectors)
        if not vectors.empty:
            self.storage.write(f"{self.uri}/{vectors.name}", bytes(vectors.content))
        entry = [
            actions.commit_info(
                operation,
                now=now,
                user_metadata={**(user_metadata or {}), **(MARK if emptied else {})},
                blind_append=self._staging.appends_only,
                read_version=self.version,
            ),
            *self._metadata_actions(),
            *(actions.txn(app, marker, now=now) for app, marker in markers.items()),
            *self._staging.actions(described, now=now, data_change=data_change),
        ]
        self._put_entry(entry, vectors)
        self._committed(entry, described, app_id, markers)
        return self.version

    def reversal(self, app_id: str, since: int, operation: str) -> Reversal | None:
        """How to take back commits, as ``reversal.reversal`` says it; the newest version is loaded
        for that, with nothing staged. Raises what that and ``reload`` raise."""
        self.discard()
        if self.is_behind():
            self.reload()
        return reversal(self.storage, self.uri, self._state, app_id, since, operation)

    def reverse(self, app_id: str, found: Reversal) -> None:
        """Commit it; raises what ``commit`` raises."""
        self._staging.put(found.files)
        self.commit(
            app_id=app_id,
            version_marker=found.marker,
            operation=REVERSAL,
            user_metadata=reversal_mark(found.versions),
        )

    def checkpoint(self) -> None:
        """Write one of the newest version, drop log entries past retention; in any thread."""
        self._store.checkpoint(self.uri, self.properties)

    def _check_current(self) -> None:
        """Refuse to take the name of an entry that was there, and was cleaned up since."""
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

    def _put_entry(self, entry: Sequence[Action], vectors: VectorFile) -> None:
        version = self.version + 1
        try:
            self._store.put(self.uri, version, actions.lines(entry))
        except BaseException as error:
            self._unknown = may_be_there(self.storage, self.uri, version, error)
            if not vectors.empty and not self._unknown:
                self.storage.remove(f"{self.uri}/{vectors.name}")
            raise

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


# What the next version of a table changes in its files, gathered by one or many stages.
#
# In: files written, positions deleted, removals, in their order. Out: the view of files with all
# of it, and in the end remove and add actions with one vector file. A file that was staged and
# loses rows by a later stage is added with a vector; a file that loses rows in several stages gets
# one vector of all.


class Staging:
    """The files of a table: those of the current version, changed in place, with the way back."""

    def __init__(
        self, table: str, files: dict[str, DataFile], partition_by: Sequence[str] = ()
    ) -> None:
        self._table = table
        self._partition_by = tuple(partition_by)
        self._files = files
        self._before: dict[str, DataFile | None] = {}
        self._emptied = False

    @property
    def files(self) -> Mapping[str, DataFile]:
        """path -> file, staged changes included."""
        return MappingProxyType(self._files)

    @property
    def added(self) -> tuple[DataFile, ...]:
        """Files that the current version has not."""
        new = (path for path, before in self._before.items() if before is None)
        return tuple(self._files[path] for path in new if path in self._files)

    @property
    def changed(self) -> bool:
        """True when the next version differs in its files."""
        return bool(self._before)

    @property
    def appends_only(self) -> bool:
        """True when no file of the current version is touched."""
        return all(before is None for before in self._before.values())

    @property
    def emptied(self) -> bool:
        """True when a TRUNCATE took every row of the current version."""
        return self._emptied

    def add(self, file: DataFile) -> None:
        """Stage a new file. Raises PenstockError when its path is there already, RelationChanged
        when it was written for a table partitioned otherwise."""
        if tuple(file.partition_values or ()) != self._partition_by:
            raise RelationChanged(
                f'table "{self._table}" was partitioned otherwise when file "{file.path}" was '
                "written"
            )
        if file.path in self._files:
            raise PenstockError(f'file "{file.path}" is staged twice')
        self._put(file.path, file)

    def replace(self, path: str, file: DataFile) -> None:
        """Stage a file that takes the place of another. Raises CommitConflict: that is gone."""
        if path not in self._files:
            raise _no_file(self._table, path)
        self._put(path, None)
        self.add(file)

    def remove_all(self, *, truncate: bool = True) -> None:
        """Stage the removal of all files, those staged before included."""
        self._emptied = truncate
        for path in list(self._files):
            self._put(path, None)

    def put(self, files: Mapping[str, DataFile | None]) -> None:
        """Stage files as they are to be; None: the file goes."""
        for path, file in files.items():
            self._put(path, file)

    def delete(self, path: str, positions: BitMap) -> None:
        """Stage deletions in a file, in addition to what is deleted; without rows left it goes.

        Raises CommitConflict when there is no such file.
        """
        file = self._files.get(path)
        if file is None:
            raise _no_file(self._table, path)
        gone = file.positions_deleted() | positions
        if gone and gone.max() >= file.rows:
            raise PenstockError(f'file "{path}" has {file.rows} rows, row {gone.max()} was deleted')
        if len(gone) == file.rows:
            self._put(path, None)
        elif len(gone) > file.deleted:
            self._put(path, file.with_deleted(gone))

    def discard(self) -> list[str]:
        """Go back to the current version; the paths of staged files, which nobody needs now."""
        staged = [path for path, before in self._before.items() if before is None]
        for path, before in self._before.items():
            self._set(path, before)
        self._before = {}
        self._emptied = False
        return staged

    def describe(self, vectors: VectorFile) -> dict[str, DataFile]:
        """Add all new vectors to a file; the files that they belong to, with descriptors."""
        described = {}
        for path in self._before:
            file = self._files.get(path)
            if file is not None and file.deleted and file.descriptor is None:
                described[path] = file.with_descriptor(vectors.add(file.positions_deleted()))
        return described

    def actions(
        self, described: Mapping[str, DataFile], *, now: int, data_change: bool
    ) -> Iterable[Action]:
        """Remove and add actions. ``described``: the result of ``describe``."""
        removes: list[Action] = []
        adds: list[Action] = []
        for path, before in self._before.items():
            file = described.get(path) or self._files.get(path)
            if before is not None:
                removes.append(actions.remove(before, now=now, data_change=data_change))
            if file is not None:
                adds.append(actions.add(file, file.descriptor, data_change=data_change))
        return removes + adds

    def committed(self, described: Mapping[str, DataFile]) -> list[str]:
        """What was staged is the current version; the paths of files staged and then removed."""
        self._files.update(described)
        dropped = [p for p, before in self._before.items() if not before and p not in self._files]
        self._before = {}
        self._emptied = False
        return dropped

    def _put(self, path: str, file: DataFile | None) -> None:
        self._before.setdefault(path, self._files.get(path))
        self._set(path, file)

    def _set(self, path: str, file: DataFile | None) -> None:
        if file is None:
            self._files.pop(path, None)
        else:
            self._files[path] = file


def _no_file(table: str, path: str) -> CommitConflict:
    return CommitConflict(
        f'table "{table}" has no file "{path}" any more', hint="Load the table again and retry."
    )


# The first log entry of a table that the node makes.
#
# In: columns, how rows are laid out. Out: actions of version 0, or a refusal of what Delta would
# not take.

RETENTION: Final = "interval 2 days"
"""How long old log entries and removed files of new tables serve readers of old cuts. A table with
several commits a second has hundreds of thousands of both in a week, Delta's default."""

_INDEXED: Final = "delta.dataSkippingNumIndexedCols"


def new_table_entry(name: str, schema: TableSchema, layout: TableLayout) -> list[Action]:
    """Raises FeatureNotSupported where it cannot be laid out so."""
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
    """Where Delta would keep no statistics of what it is to cluster by."""
    names = [column.name for column in schema.columns]
    count = max((names.index(name) + 1 for name in layout.cluster_by), default=0)
    return {_INDEXED: str(count)} if count > INDEXED_COLUMNS else {}
