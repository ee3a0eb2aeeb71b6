"""Units of the initial copy: read from the publisher and written to Parquet, in an executor or in
the node.

A ``CopyTask`` is a frozen value that crosses to executors. The result is data files that the Delta
log does not name yet, or the error that stopped the task, as a value. Each task opens its own
connection, imports the exported snapshot and reads COPY's binary format block by block, with the
readers of the stream of changes. Memory holds one block (or one larger row) and one row group.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.attribute import Attribute
from penstock.cells import Cells
from penstock.enum_type import EnumType
from penstock.errors import (
    ConnectionFailure,
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
from penstock.pipeline.routed_writer import Destination, RoutedWriter
from penstock.pipeline.routing import Level
from penstock.protocol.copy_block import CopyBlock
from penstock.sql.builtin.enum_types import known_enums
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.copy_blocks import Prefixes, blocks_of, start_copy
from penstock.walreceiver.snapshot_holder import lost_snapshot

_NOT_FOR_EVER: Final = "SET lock_timeout = '5s'"
"""A lock timeout that ends a deadlock: a session that wants to change the table waits for the
node's lock (``walreceiver.table_locks``), this task waits behind that session in the lock queue,
and the node keeps its lock until the task has ended."""

_LOCK_NOT_AVAILABLE: Final = "55P03"
_LET_IT_PASS: Final = (
    "A session on the publisher waits to change the table. It goes first, and the copy begins "
    "again by itself."
)

_END_WITH_ME: Final = "SET client_connection_check_interval = '1s'"
"""A setting that ends a query when its task is killed, even if it sends nothing for long. Some
platforms do not support it."""

_SNAPSHOT_IS_GONE: Final = ("22023", "42704", "55000")
"""The SQLSTATEs of a lost snapshot: its file does not exist (22023 up to PostgreSQL 16, 42704 in
later versions), or its session has ended (55000)."""


@dataclass(frozen=True)
class CopyTask:
    """A unit of the initial copy.

    ``number``: the unit's number in its round; ``columns``: the published columns in the order of
    ``schema``, which has one column for each of ``targets``; targets that are not published get
    their default, or are ``generated``. ``point``: the snapshot holds everything up to this LSN.

    ``destinations``: the tables that get the rows: for a partitioned table, the leaves in the order
    of ``routing``. If there are none, the rows go to ``table_uri`` in ``storage``.

    ``application_name``: of its session. ``doing``: the words for the work in error messages.
    ``batch_bytes``: bytes of PostgreSQL's binary format that are read at once.
    ``target_file_bytes``: the size at which a new file begins. ``out_of_range``: the treatment of
    values out of range, except in columns of the ``key``. ``drawn``: sequence values for the rows,
    as ``with_values`` sets them. ``enums``: the node's types.
    """

    number: int
    table: str
    conninfo: ConnInfo
    application_name: str
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
    enums: tuple[EnumType, ...] = ()
    drawn: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def drawing(self) -> tuple[str, ...]:
        """The columns that take their values from sequences, for ``drawn``."""
        published = {attribute.name for attribute in self.columns}
        return tuple(c.source for c in self.targets if draws(c) and c.source not in published)


@dataclass(frozen=True)
class CopiedFile:
    """A file, and the number of the leaf that gets it; 0 if the table has no leaves."""

    part: int
    file: WrittenFile


@dataclass(frozen=True)
class Copied:
    """The files of a unit, durable, not yet in the table."""

    number: int
    files: tuple[CopiedFile, ...]


@dataclass(frozen=True)
class CopyFailed:
    """A unit's error. The unit's files have been removed."""

    number: int
    error: PenstockError


Result = Copied | CopyFailed


def copy_unit(task: CopyTask) -> Result:
    """Copy one unit. Errors are returned: an exception would cross to the driver as Java's text."""
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


def read_unit(
    task: CopyTask, interrupt: Callable[[], None] | None = None
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a unit as its target has them, but without generated values. The caller
    must close the generator.

    ``interrupt``: called while waiting for the publisher; its error ends the reading."""
    sent = 0
    with _session(task, interrupt) as session:
        for query in task.queries:
            with closing(_blocks(session, query, task)) as blocks:
                for block in blocks:
                    yield _convert(block, task, sent)
                    sent += len(block)


def with_values(task: CopyTask, draw: Draw) -> CopyTask:
    """Return the task with sequence values. The publisher counts the unit's rows first, since a
    running task cannot ask for more values. Raises the errors of ``draw``, ConnectionFailure,
    PublisherError."""
    names = task.drawing
    count = _count_rows(task) if names else 0
    return replace(task, drawn={name: draw(name, count) if count else () for name in names})


def _count_rows(task: CopyTask) -> int:
    prefix = _prefixes(task).starting
    with _session(task) as session, _hints():
        counts = (f"SELECT count(*) FROM ({query}) AS rows" for query in task.queries)
        answers = [session.connection.query(sql, prefix=prefix) for sql in counts]
        return sum(int(rows[0][0] or 0) for rows in answers)


def _destinations(task: CopyTask) -> tuple[Destination, ...]:
    if task.destinations:
        return task.destinations
    columns = tuple(range(len(task.schema)))
    return (Destination(task.storage, task.table_uri, task.schema, columns, task.generated),)


def _check(files: Sequence[tuple[int, WrittenFile]], sent: int, task: CopyTask) -> None:
    """Check that every row that the server has sent is in a file, and that the storage has each
    file with the length that was written. Raises PenstockError, StorageError."""
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


@dataclass(frozen=True, slots=True)
class _Session:
    connection: Connection
    by_libpq: bool


@contextmanager
def _session(task: CopyTask, interrupt: Callable[[], None] | None = None) -> Iterator[_Session]:
    """Open a session in a read-only transaction at the exported snapshot."""
    try:
        connection = Connection.connect(task.conninfo, task.application_name, replication=False)
    except ConnectionFailure as error:
        error.detail = " ".join(filter(None, (f'Table "{task.table}".', error.detail)))
        raise
    prefix = _prefixes(task).starting
    connection.interrupt = interrupt
    with connection:
        by_libpq = connection.is_encrypted()
        for setting in (_NOT_FOR_EVER, _END_WITH_ME):
            _try(connection, setting)
        connection.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", prefix=prefix)
        try:
            connection.query(f"SET TRANSACTION SNAPSHOT {quote_literal(task.snapshot_name)}")
        except PenstockError as error:
            if error.sqlstate in _SNAPSHOT_IS_GONE:
                raise lost_snapshot(error.message) from None
            raise error.changed(message=prefix + error.message) from None
        yield _Session(connection, by_libpq)


def _try(connection: Connection, setting: str) -> None:
    try:
        connection.query(setting)
    except ConnectionFailure:
        raise
    except PenstockError:
        pass  # the session works without the setting


def _blocks(session: _Session, query: str, task: CopyTask) -> Generator[CopyBlock]:
    with _hints():
        copy = start_copy(
            session.connection,
            query,
            _fields(task),
            by_libpq=session.by_libpq,
            block_bytes=task.batch_bytes,
            prefixes=_prefixes(task),
        )
        with closing(blocks_of(copy, session.connection.interrupt)) as blocks:
            yield from blocks


def _fields(task: CopyTask) -> int:
    """Return the number of fields in a row. A table without columns is read by SELECT true."""
    return max(1, len(task.columns))


def _prefixes(task: CopyTask) -> Prefixes:
    return Prefixes(
        f'could not {task.doing} table "{task.table}": ',
        f'could not read initial contents of table "{task.table}": ',
    )


@contextmanager
def _hints() -> Iterator[None]:
    try:
        yield
    except PublisherError as error:
        if error.sqlstate == _LOCK_NOT_AVAILABLE:
            error.hint = _LET_IT_PASS
        raise


def _convert(block: CopyBlock, task: CopyTask, before: int) -> pa.RecordBatch:
    """Return a block's rows in the target's types and names, without generated values. ``before``:
    the number of the unit's rows before the block."""
    cells = block.cells(_fields(task))
    published = {
        attribute.name: (_column(column, attribute, task), attribute)
        for column, attribute in zip(cells, task.columns, strict=False)
    }
    now = datetime.now(UTC)
    with known_enums(task.enums):
        arrays = [
            converted(*published[column.source], column, table=task.table)
            if column.source in published
            else _own_column(column, slice(before, before + len(block)), now, task)
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


def _column(cells: Cells, attribute: Attribute, task: CopyTask) -> pa.Array:
    try:
        find = pgtypes.find if attribute.name in task.key else OutOfRange(task.out_of_range).find
        return find(attribute.type_oid).copy_column(cells, attribute.typmod)
    except PenstockError as error:
        error.detail = " ".join(
            filter(None, (f'Table "{task.table}", column "{attribute.name}".', error.detail))
        )
        error.column = attribute.name
        raise
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ValueNotRepresentable(
            f"could not convert values of the initial copy: {error}",
            detail=f'Table "{task.table}", column "{attribute.name}".',
        ) from None


def _unexpected_error(error: Exception, task: CopyTask) -> PenstockError:
    return PenstockError(
        f'initial copy of table "{task.table}" failed: {type(error).__name__}: {error}'
    )


def copy_units(tasks: Iterable[CopyTask]) -> Iterator[Result]:
    """Copy the units of a partition, one after the other."""
    for task in tasks:
        yield copy_unit(task)
