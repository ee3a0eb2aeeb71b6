"""What a unit of the initial copy does, in an executor or in the node: publisher to Parquet by
Arrow.

In: a ``CopyTask``, a frozen value that crosses to executors. Out: data files that no log entry
names, or the error that stopped it, as a value. Each task opens its own connection through the ADBC
driver (COPY BINARY to Arrow in C), imports the exported snapshot and streams batch by batch: memory
is one batch, and one row group of the file.

ADBC hangs in a process that was forked after it was used: no process of ours forks without
starting another program.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_postgresql import StatementOptions

import penstock.pgtypes as pgtypes
from penstock.errors import (
    ConnectionFailure,
    FeatureNotSupported,
    PenstockError,
    PublisherError,
    StorageError,
    ValueNotRepresentable,
)
from penstock.identifiers import quote_literal
from penstock.lakehouse.conversion import converted
from penstock.lakehouse.defaults import Draw, draws, filled
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.history_table import COMMIT_LSN
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import Storage, resolve, storage_errors
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.out_of_range import ERROR, OutOfRange
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.routed_writer import RoutedWriter
from penstock.pipeline.routing import Level
from penstock.pipeline.snapshot_connection import connect
from penstock.pipeline.write import Destination
from penstock.relation import Attribute
from penstock.walreceiver.libpq_errors import connect_failure, hint_for, is_connection_sqlstate
from penstock.walreceiver.session_settings import SESSION_SETTINGS
from penstock.walreceiver.snapshot_holder import lost_snapshot

_BATCH_BYTES: Final = StatementOptions.BATCH_SIZE_HINT_BYTES.value

_NOT_FOR_EVER: Final = "SET lock_timeout = '5s'"
"""The driver's session has locked the table (``walreceiver.table_locks``), but a session that waits
to change the table stands before us in the queue, and waits for that session, which waits for
us."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_LET_IT_PASS: Final = (
    "A session on the publisher waits to change the table. It goes first, and the copy begins "
    "again by itself."
)

_END_WITH_ME: Final = "SET client_connection_check_interval = '1s'"
"""A query that sends nothing for long must end when its task is killed. Not every platform can."""


@dataclass(frozen=True)
class CopyTask:
    """``number``: of the unit in its round; ``columns``: in the order of ``schema``, which has one
    for each of ``targets``; those that are not published get their default, or are ``generated``.
    ``point``: what the snapshot holds.

    ``destinations``: what the rows go to, by ``routing`` the leaves of a partitioned table; where
    there are none, ``storage`` and ``table_uri`` say where they go.

    ``conninfo`` holds the password and is never printed. ``doing``: for errors. ``batch_bytes``: of
    PostgreSQL's binary format, read at once. ``target_file_bytes``: where a file ends and the next
    begins. ``out_of_range``: what becomes of values that are, but for those of the ``key``.
    ``drawn``: values of sequences for the rows, as ``with_values`` sets them. ``round``: units of
    one, at one snapshot, share what the driver knows of the server's types; '' with none.
    """

    number: int
    table: str
    conninfo: str = field(repr=False)
    snapshot_name: str
    queries: tuple[str, ...]
    columns: tuple[Attribute, ...]
    schema: pa.Schema
    targets: tuple[Column, ...]
    generated: GeneratedColumns
    storage: Storage
    table_uri: str
    batch_bytes: int
    target_file_bytes: int
    routing: Level | None = None
    destinations: tuple[Destination, ...] = ()
    doing: str = "start initial contents copy for"
    point: Lsn = INVALID
    out_of_range: str = ERROR
    key: frozenset[str] = frozenset()
    round: str = ""
    drawn: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def drawing(self) -> tuple[str, ...]:
        """Columns that take their values from sequences, for ``drawn``."""
        published = {attribute.name for attribute in self.columns}
        return tuple(c.source for c in self.targets if draws(c) and c.source not in published)


@dataclass(frozen=True)
class CopiedFile:
    """A file, and which of the table's leaves it is for; 0 where it has none."""

    part: int
    file: WrittenFile


@dataclass(frozen=True)
class Copied:
    """Files of a unit, durable, not yet in the table."""

    number: int
    files: tuple[CopiedFile, ...]


@dataclass(frozen=True)
class CopyFailed:
    """A unit's error; its own files are gone."""

    number: int
    error: PenstockError


Result = Copied | CopyFailed


def copy_unit(task: CopyTask) -> Result:
    """Copy one unit. Raises nothing: an exception would cross to the driver as Java's text."""
    try:
        return Copied(task.number, tuple(_copy(task)))
    except PenstockError as error:
        return CopyFailed(task.number, error)
    except Exception as error:
        return CopyFailed(task.number, _unexpected_error(error, task))


def _copy(task: CopyTask) -> list[CopiedFile]:
    writer = RoutedWriter(_destinations(task), task.routing, task.target_file_bytes)
    sent = 0
    with writer, closing(read_unit(task)) as batches:
        for batch in batches:
            sent += batch.num_rows
            writer.add(batch)
    try:
        _check(writer.files, sent, task)
    except BaseException:
        writer.abort()
        raise
    return [CopiedFile(part, file) for part, file in writer.files]


def read_unit(task: CopyTask) -> Generator[pa.RecordBatch]:
    """The rows of a unit as its target has them, but for generated values; to be closed."""
    with _session(task) as cursor:
        sent = 0
        for query in task.queries:
            for batch in _read(cursor, query, task):
                yield _convert(batch, task, sent)
                sent += batch.num_rows


def with_values(task: CopyTask, draw: Draw) -> CopyTask:
    """With those of sequences, for which the publisher has to count the unit's rows first: a task
    asks nobody for more. Raises what ``draw`` raises, ConnectionFailure, PublisherError."""
    names = task.drawing
    count = _count_rows(task) if names else 0
    return replace(task, drawn={name: draw(name, count) if count else () for name in names})


def _count_rows(task: CopyTask) -> int:
    with _session(task) as cursor:
        return sum(
            batch.column(0)[0].as_py()
            for query in task.queries
            for batch in _read(cursor, f"SELECT count(*) FROM ({query}) AS rows", task)
        )


def _destinations(task: CopyTask) -> tuple[Destination, ...]:
    if task.destinations:
        return task.destinations
    columns = tuple(range(len(task.schema)))
    return (Destination(task.storage, task.table_uri, task.schema, columns, task.generated),)


def _check(files: Sequence[tuple[int, WrittenFile]], sent: int, task: CopyTask) -> None:
    """Every row that the server has sent is in a file, and every file is there as it was written.

    Costs a look at each file's length.
    """
    written = sum(file.rows for _, file in files)
    if written != sent:
        raise PenstockError(
            f'initial copy of table "{task.table}" wrote {written} rows of {sent} that were sent'
        )
    for part, file in files:
        uri = f"{_destinations(task)[part].table_uri}/{file.path}"
        with storage_errors("read file", uri):
            filesystem, where = resolve(uri)
            length = filesystem.get_file_info(where).size
        if length != file.size:
            raise StorageError(f'file "{uri}" has {length} bytes of {file.size} that were written')


@contextmanager
def _session(task: CopyTask) -> Iterator[Any]:
    """A cursor in a read-only transaction at the exported snapshot."""
    try:
        connection = connect(task.conninfo, task.round)
    except adbc_driver_manager.Error as error:
        raise _name_table(connect_failure(_libpq_text(error)), task) from None
    with closing(connection), closing(connection.cursor()) as cursor:
        with _server_errors(task):
            cursor.execute(SESSION_SETTINGS)
            cursor.fetchall()
        for setting in (_NOT_FOR_EVER, _END_WITH_ME):
            with suppress(adbc_driver_manager.Error):
                cursor.execute(setting)
        with _server_errors(task):
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(task.snapshot_name)}")
        except adbc_driver_manager.Error as error:
            # 22023 up to 16, 42704 later: no such file; 55000: its session has ended
            if error.sqlstate in ("22023", "42704", "55000"):
                raise lost_snapshot(_primary(error)) from None
            raise _server_error(error, task) from None
        cursor.adbc_statement.set_options(**{_BATCH_BYTES: str(task.batch_bytes)})
        yield cursor


def _read(cursor: Any, query: str, task: CopyTask) -> Iterator[pa.RecordBatch]:
    with _server_errors(task):
        cursor.execute(query)
    try:
        with cursor.fetch_record_batch() as reader:
            yield from reader
    except (OSError, pa.ArrowException) as error:
        raise _stream_error(error, cursor, task) from None


def _convert(batch: pa.RecordBatch, task: CopyTask, before: int) -> pa.RecordBatch:
    """ADBC's batch in the target's types and names, without generated values. ``before``: how many
    rows of the unit came before it."""
    published = {
        attribute.name: _column(batch.column(position), attribute, task)
        for position, attribute in enumerate(task.columns)
    }
    now = datetime.now(UTC)
    arrays = [
        converted(published[column.source], column, table=task.table)
        if column.source in published
        else _own_column(column, slice(before, before + batch.num_rows), now, task)
        for column in task.targets
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=task.schema)


def _own_column(column: Column, here: slice, now: datetime, task: CopyTask) -> pa.Array:
    if draws(column):
        return pa.array(task.drawn[column.source][here], column.type)
    rows = here.stop - here.start
    if column.stamp and column.name == COMMIT_LSN:
        return pa.repeat(pa.scalar(int(task.point), column.type), rows)
    return filled(column, rows, now)


def _column(array: pa.Array, attribute: Attribute, task: CopyTask) -> pa.Array:
    try:
        _refuse_opaque(array.type)
        find = pgtypes.find if attribute.name in task.key else OutOfRange(task.out_of_range).find
        return find(attribute.type_oid).copy_column(array, attribute.typmod)
    except PenstockError as error:
        error.detail = " ".join(
            filter(None, (f'Table "{task.table}", column "{attribute.name}".', error.detail))
        )
        raise
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ValueNotRepresentable(
            f"could not convert values of the initial copy: {error}",
            detail=f'Table "{task.table}", column "{attribute.name}".',
        ) from None


def _refuse_opaque(kind: pa.DataType) -> None:
    """The driver passes on the bytes of a type that it does not know; nobody may take them for
    text. (numeric is opaque as well, but comes as text.)"""
    if isinstance(kind, pa.OpaqueType):
        if not pa.types.is_string(kind.storage_type):
            raise FeatureNotSupported(
                f'values of type "{kind.type_name}" cannot be read by the initial copy',
                hint="Leave the column out by a column list of the publication.",
            )
    elif pa.types.is_list(kind):
        _refuse_opaque(kind.value_type)


@contextmanager
def _server_errors(task: CopyTask) -> Iterator[None]:
    try:
        yield
    except adbc_driver_manager.Error as error:
        raise _server_error(error, task) from None


def _server_error(error: Any, task: CopyTask) -> PenstockError:
    prefix = f'could not {task.doing} table "{task.table}": '
    sqlstate = error.sqlstate
    kind = ConnectionFailure if is_connection_sqlstate(sqlstate) else PublisherError
    return kind(
        prefix + _primary(error),
        detail=_field(error, "PG_DIAG_MESSAGE_DETAIL"),
        hint=_field(error, "PG_DIAG_MESSAGE_HINT")
        or (_LET_IT_PASS if sqlstate == _LOCK_NOT_AVAILABLE else hint_for(sqlstate)),
        sqlstate=sqlstate,
    )


def _stream_error(error: Exception, cursor: Any, task: CopyTask) -> PenstockError:
    """An Arrow stream reports text only: the connection tells whether the server said no or went.

    The reader closes its result when it is left, so the session takes a command again.
    """
    text = re.sub(r"^\[libpq\] [^:]*(failed|\[PGRES_\w+\]): (ERROR:  )?", "", str(error)).strip()
    message = f'could not read initial contents of table "{task.table}": {" ".join(text.split())}'
    try:
        cursor.execute("ROLLBACK")
    except adbc_driver_manager.Error:
        return ConnectionFailure(message)
    return PublisherError(message)


def _primary(error: Any) -> str:
    return _field(error, "PG_DIAG_MESSAGE_PRIMARY") or _libpq_text(error)


def _field(error: Any, name: str) -> str | None:
    for key, value in error.details or ():
        if (key.decode() if isinstance(key, bytes) else key) == name:
            return bytes(value).decode(errors="replace")
    return None


def _libpq_text(error: Any) -> str:
    """The message without the driver's own words and without the query."""
    text = re.sub(r"^[A-Z_]+: (\[libpq\] )?(Failed to connect: )?", "", str(error))
    return re.split(r"\s*(Query was:|\. SQLSTATE:)", text)[0].strip()


def _name_table(error: ConnectionFailure, task: CopyTask) -> ConnectionFailure:
    error.detail = f'Table "{task.table}".'
    return error


def _unexpected_error(error: Exception, task: CopyTask) -> PenstockError:
    return PenstockError(
        f'initial copy of table "{task.table}" failed: {type(error).__name__}: {error}'
    )


def copy_units(tasks: Iterable[CopyTask]) -> Iterator[Result]:
    """The units of a partition, one after the other."""
    for task in tasks:
        yield copy_unit(task)
