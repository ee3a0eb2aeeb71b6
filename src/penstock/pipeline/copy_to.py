"""Rows of Delta tables at given versions, as COPY table TO STDOUT sends them or as Arrow.

The chosen columns of filtered rows become CopyData messages in portions, or record batches. Spark
works in waves of a bounded size: executors read, filter and encode files into the staging area. One
wave's result is sent while the next wave runs, and then removed. So the driver's memory and the
staging area hold at most two waves, however large the table and slow the client. The calling thread
reads and encodes the first wave itself, portion by portion, while Spark begins with the next one.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import pyarrow as pa
import pyarrow.ipc

from penstock.errors import ConnectionFailure, PenstockError, StorageError
from penstock.interrupts import check_for_interrupts
from penstock.lakehouse.batches import slices
from penstock.lakehouse.cluster import Spark, end_jobs, job_group
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.object_store import without_secrets
from penstock.lakehouse.state import load_at
from penstock.lakehouse.storage import Storage, make_folder, resolve, storage_errors
from penstock.pgtypes.binary_output import binary_output
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.duck import connection
from penstock.pipeline.job import FOR_A_CLIENT, HERE_BYTES, run_job
from penstock.pipeline.prune import candidates, in_order
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.tasks import Failed
from penstock.protocol.copy_columns import binary_copy, binary_rows, text_rows

_PORTION_AT_MOST: Final = 4 << 20
"""The most bytes sent to the client at a time; a larger row is sent in several pieces."""
_PORTION: Final = 1 << 20
"""The approximate number of bytes sent to the client at a time."""

_TICK_S: Final = 0.1
"""How often a cancel request is looked for while Spark works."""
_END_S: Final = 2.0
"""The longest wait for the end of a job that is cancelled."""

log = logging.getLogger(__name__)


class Encoding(Enum):
    """The encodings of rows: COPY's two formats, or streams of Arrow IPC."""

    TEXT = "text"
    BINARY = "binary"
    ARROW = "arrow"


@dataclass(frozen=True)
class CopyColumn:
    """A column to read. ``sent``: it is part of the copy, not only of the filter.

    ``printed``: returns the texts that are sent for its values, in text and in binary format.
    """

    scanned: ScanColumn
    type_oid: int = 0
    typmod: int = -1
    sent: bool = True
    printed: Callable[[pa.Array, int, int], pa.Array] | None = None


@dataclass(frozen=True)
class CopyTable:
    """A table at a version; columns in the order of the copy. ``files``: the version's, None: read
    the Delta log. ``keys``: read only files that may have one of these keys, None: read all."""

    uri: str
    version: int
    columns: tuple[CopyColumn, ...]
    files: tuple[DataFile, ...] | None = None
    keys: pa.Table | None = None


@dataclass(frozen=True)
class CopyItem:
    """Rows of a file, about ``size`` bytes when sent.

    ``predicate``: DuckDB's SQL over PostgreSQL's names, None: all rows. ``folder``: this copy's in
    the staging area. ``packed``: put many rows into a message.
    """

    storage: Storage
    table_uri: str
    file: ScanFile
    size: int
    columns: tuple[CopyColumn, ...]
    predicate: str | None
    encoding: Encoding
    folder: str
    packed: bool


@dataclass(frozen=True)
class EncodedFile:
    """The result of a task: CopyData messages in a file of the staging area.

    ``portions``: (rows, bytes) of messages that are returned together.
    """

    uri: str
    portions: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """The number of rows in all portions."""
        return sum(rows for rows, _ in self.portions)

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return sum(size for _, size in self.portions)


def copy_to(
    spark: Spark,
    storage: Storage,
    tables: Sequence[CopyTable],
    *,
    staging: str,
    predicate: str | None = None,
    binary: bool = False,
    packed: bool = False,
) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, CopyData messages) in portions. ``staging``: URI of a folder. ``packed``: for
    readers that do not mind where a message ends.

    A portion with 0 rows continues the message before it, which was too long for one portion.
    Raises VersionGone, StorageError; ConnectionFailure if a message could not be finished. Closing
    the iterator early ends the work.
    """
    encoding = Encoding.BINARY if binary else Encoding.TEXT
    copied = _read(spark, storage, tables, staging, predicate, encoding, packed=packed)
    yield from binary_copy(copied) if binary else copied


def read_rows(
    spark: Spark,
    storage: Storage,
    tables: Sequence[CopyTable],
    *,
    staging: str,
    predicate: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the tables' columns, in their order. Raises as ``copy_to`` does."""
    parts: list[bytes] = []
    for rows, part in _read(spark, storage, tables, staging, predicate, Encoding.ARROW):
        if rows and parts:
            yield from _batches(b"".join(parts))
            parts.clear()
        parts.append(part)
    if parts:
        yield from _batches(b"".join(parts))


def _batches(stream: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(stream) as reader:
        yield from reader


def _read(
    spark: Spark,
    storage: Storage,
    tables: Sequence[CopyTable],
    staging: str,
    predicate: str | None,
    encoding: Encoding,
    *,
    packed: bool = False,
) -> Iterator[tuple[int, bytes]]:
    folder = f"{staging}/{uuid.uuid4()}"
    files = [
        (number, file, sum(column.sent for column in table.columns))
        for number, table in enumerate(tables)
        for file in _files(storage, table)
    ]
    items = (
        [
            CopyItem(
                storage,
                tables[share.table].uri,
                share.file,
                share.size,
                tables[share.table].columns,
                predicate,
                encoding,
                folder,
                packed,
            )
            for share in wave
        ]
        for wave in waves(files)
    )
    yield from _messages_of_waves(spark, storage, items, folder)


def _files(storage: Storage, table: CopyTable) -> Iterable[ScanFile]:
    files: Iterable[DataFile] | None = table.files
    if files is None:
        files = load_at(storage, table.uri, table.version).files.values()
    found = files if table.keys is None else candidates(files, table.keys)
    if not table.columns:
        return map(ScanFile.of, found)
    # Most tables begin with their key, and an index that gets its keys in order is built faster.
    first = table.columns[0].scanned
    return map(ScanFile.of, in_order(found, first.stored, first.type))


def _messages_of(items: Iterable[CopyItem]) -> Iterator[tuple[int, bytes]]:
    """Yield messages of small work: a staging area, a job and a thread would cost more."""
    for item in items:
        for rows, messages in _encoded(item):
            yield rows, messages[:_PORTION_AT_MOST]
            for start in range(_PORTION_AT_MOST, len(messages), _PORTION_AT_MOST):
                yield 0, messages[start : start + _PORTION_AT_MOST]


def _messages_of_waves(
    spark: Spark, storage: Storage, waves: Iterator[list[CopyItem]], folder: str
) -> Iterator[tuple[int, bytes]]:
    """Yield messages. Each wave is made while the result of the wave before it is sent."""
    first = next(waves, None) or []
    wave = next(waves, None)
    if wave is None:
        yield from _messages_of(first)
        return
    began, waited, rows = time.monotonic(), 0.0, 0
    pool = ThreadPoolExecutor(1, thread_name_prefix="copy")
    running: Future[list[EncodedFile]] | None = None
    try:
        while wave is not None or running is not None:
            waiting = time.monotonic()
            made = [] if running is None else _result(running)
            waited += time.monotonic() - waiting
            running = None if wave is None else pool.submit(_run_wave, spark, wave, folder)
            wave = next(waves, None)
            for portion in _messages_of(first):
                rows += portion[0]
                yield portion
            first = []
            for file in made:
                rows += file.rows
                yield from _portions(storage, file)
    finally:
        if running is not None and not running.cancel():
            end_jobs(spark, folder)
            wait([running], _END_S)
        pool.shutdown(wait=False)
        storage.discard_folder(folder)  # with files of attempts whose results Spark dropped
    total = time.monotonic() - began
    log.debug("copied rows=%d spark=%.3f client=%.3f", rows, waited, total - waited)


def _result(running: Future[list[EncodedFile]]) -> list[EncodedFile]:
    """Wait for a wave. Raises PenstockError (57014 if the statement is cancelled meanwhile)."""
    while not wait([running], _TICK_S).done:
        check_for_interrupts()
    return running.result()


def _run_wave(spark: Spark, wave: Sequence[CopyItem], group: str) -> list[EncodedFile]:
    work = [(float(item.size), item) for item in wave]
    with job_group(spark, group):
        results = run_job(
            spark, work, run_copy, "penstock: COPY", cores=FOR_A_CLIENT, here=HERE_BYTES
        )
    made: list[EncodedFile] = []
    for result in results:
        if isinstance(result, Failed):
            raise result.error
        made.append(result)
    return made


def _portions(storage: Storage, file: EncodedFile) -> Iterator[tuple[int, bytes]]:
    with storage_errors("read file", file.uri):
        filesystem, path = resolve(file.uri)
        with filesystem.open_input_file(path) as source:
            if source.size() != file.size:
                raise StorageError(
                    f'file "{file.uri}" has {source.size()} bytes, {file.size} were written',
                    sqlstate="XX001",
                )
            for rows, size in file.portions:
                yield rows, source.read(min(size, _PORTION_AT_MOST))
                for start in range(_PORTION_AT_MOST, size, _PORTION_AT_MOST):
                    yield 0, _rest(source, min(size - start, _PORTION_AT_MOST))
    storage.remove(file.uri)


def _rest(source: pa.NativeFile, size: int) -> bytes:
    try:
        return bytes(source.read(size))
    except OSError as error:
        told = without_secrets(str(error))
        raise ConnectionFailure(f"could not read a row to its end: {told}") from None


def run_copy(item: CopyItem) -> Iterator[EncodedFile | Failed]:
    """Encode an item, in a task. An expected error comes back as a value."""
    try:
        yield _copy(item)
    except PenstockError as error:
        yield Failed(0, error)


def _copy(item: CopyItem) -> EncodedFile:
    """Encode an item into a file with a name of its own: Spark may run a task twice."""
    portions: list[tuple[int, int]] = []
    uri = f"{item.folder}/{uuid.uuid4()}"
    make_folder(item.folder)
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with filesystem.open_output_stream(path) as target:
            for rows, messages in _encoded(item):
                target.write(messages)
                portions.append((rows, len(messages)))
    return EncodedFile(uri, tuple(portions))


def _encoded(item: CopyItem) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, messages), about a portion each."""
    scanned = list(dict.fromkeys(column.scanned for column in item.columns))
    for batch in scan(item.storage, item.table_uri, item.file, scanned):
        for rows in _parts(_filter_rows(batch, item.predicate)):
            yield rows.num_rows, _encode(rows, item)


def _parts(batch: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield batches of about a portion each."""
    for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
        yield from slices(part, _PORTION)


def _filter_rows(batch: pa.RecordBatch, predicate: str | None) -> pa.RecordBatch | pa.Table:
    if predicate is None:
        return batch
    duck = connection()
    duck.register("rows_to_filter", pa.Table.from_batches([batch]))
    try:
        return (
            duck.sql(f"SELECT * FROM rows_to_filter WHERE {predicate}")
            .to_arrow_table()
            .combine_chunks()
        )
    finally:
        duck.unregister("rows_to_filter")


def _encode(rows: pa.RecordBatch, item: CopyItem) -> bytes:
    sent = [column for column in item.columns if column.sent]
    if item.encoding is Encoding.ARROW:
        return _stream(rows.select([column.scanned.name for column in sent]))
    binary = item.encoding is Encoding.BINARY
    cells = []
    for column in sent:
        output = column.printed or (binary_output if binary else text_output)
        array = rows.column(column.scanned.name)
        cells.append(output(array, column.type_oid, column.typmod))
    encoded = binary_rows if binary else text_rows
    return encoded(cells, rows.num_rows, packed=item.packed)


def _stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


# Division of a table for COPY: files into shares for tasks, shares into waves for jobs.
#
# Files are divided in order; a share is a file and a run of its rows. The first wave is small, so
# that the client gets rows soon; each further wave is twice as large. Sizes estimate the rows as
# COPY sends them: the size of a file depends on how well its columns compressed, not on their
# length.

_FIRST_WAVE_BYTES: Final = 8 << 20
_WAVE_BYTES: Final = 256 << 20
_SHARE_BYTES: Final = 32 << 20
"""The bytes of a share at most. Smaller shares would read too much: each reads its row group from
the beginning."""
_SHARES: Final = 2
"""The least number of shares in a wave."""
_VALUE_BYTES: Final = 16
"""The estimated bytes of a value in a row, with its separator."""


@dataclass(frozen=True)
class CopyShare:
    """Rows of a file of the table with number ``table``; ``size``: bytes, estimated."""

    table: int
    file: ScanFile
    size: int


def waves(files: Iterable[tuple[int, ScanFile, int]]) -> Iterator[list[CopyShare]]:
    """Yield waves of shares. ``files``: number of the table, file, number of columns sent."""
    limit = room = _FIRST_WAVE_BYTES
    wave: list[CopyShare] = []
    for table, file, columns in files:
        row_size = max(file.size // max(1, file.rows), _VALUE_BYTES * columns, 1)
        start = None if file.rows == 0 else 0
        while start is not None:
            rows = max(1, min(room, _share_bytes(limit)) // row_size)
            share = _share(file, start, rows)
            wave.append(CopyShare(table, share, _size(share, row_size)))
            start = share.stop
            room -= wave[-1].size
            if room < row_size:
                yield wave
                limit = min(2 * limit, _WAVE_BYTES)
                room, wave = limit, []
    if wave:
        yield wave


def _share_bytes(wave: int) -> int:
    return min(wave // _SHARES, _SHARE_BYTES)


def _share(file: ScanFile, start: int, rows: int) -> ScanFile:
    """Return a share. It goes to the file's end if less than half a share would be left, or if the
    number of the file's rows is unknown."""
    stop = start + rows
    return replace(file, start=start, stop=None if stop + rows // 2 >= file.rows else stop)


def _size(share: ScanFile, row_size: int) -> int:
    if share.rows < 0:
        return share.size
    stop = share.rows if share.stop is None else share.stop
    return (stop - share.start) * row_size
