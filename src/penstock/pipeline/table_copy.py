"""The initial copy: all tables of a round at one exported snapshot, side by side in Spark, or
one after the other in this process if they are small.

Another session holds the snapshot open (``walreceiver.snapshot_holder``). When a table's copy is
complete, its files are staged on the Delta table, and the caller commits them. Nothing is visible
before that. ``table_copy_task`` copies a unit of work. Rows of large tables never touch the driver.

PostgreSQL copies with one worker and one slot per table (tablesync.c). Here the tables of a round
share one consistent point, and a large table is divided by ctid.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark import AccumulatorParam, SparkContext

import penstock.pgtypes as pgtypes
from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.enum_type import EnumType
from penstock.errors import ConnectionFailure, PenstockError
from penstock.failpoint import INSIDE_COPY, failpoint
from penstock.identifiers import quoted
from penstock.lakehouse.cluster import Spark, cancel_jobs, working
from penstock.lakehouse.conversion import kept_as_text
from penstock.lakehouse.defaults import Draw, no_draw
from penstock.lakehouse.files import TARGET_FILE_BYTES
from penstock.lakehouse.schema import Column
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.out_of_range import ERROR
from penstock.pgtypes.text_output import AS_TEXT
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.parts import Leaves, Part, parts
from penstock.pipeline.table_copy_task import (
    Copied,
    CopiedFile,
    CopyFailed,
    CopyTask,
    Result,
    copy_units,
    with_values,
)
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.table_info import LeafTable, RemoteTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """The progress of a table's copy. ``bytes_total``: the size of the publisher's heap with TOAST,
    as estimated when the copy began; ``bytes``: the part of it in finished units; ``rows``: the
    rows of finished units.
    """

    table: str
    rows: int
    bytes: int
    bytes_total: int
    units: int
    units_total: int


Progress = Callable[[CopyProgress], None]

_UNIT_COST: Final = 128 << 10
"""The overhead of a unit, as the bytes that could be read in that time."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """Options of the initial copy.

    ``unit_bytes``: the least heap (with TOAST) that a task reads; it reads more of large tables, so
    that their files get large, too. ``connections``: the most simultaneous sessions on the
    publisher. ``batch_bytes``: bytes that a task reads at once. ``target_file_bytes``: size of data
    files. ``here_bytes``: the total size of heaps up to which this process copies them. ``tables``:
    the most tables that are copied at the same time; None: all.
    """

    unit_bytes: int = 64 << 20
    connections: int = 16
    batch_bytes: int = 2 << 20
    target_file_bytes: int = TARGET_FILE_BYTES
    here_bytes: int = 8 << 20
    tables: int | None = None


@dataclass(frozen=True, slots=True)
class CopySource:
    """A published table and the Delta table that it is copied into. ``leaves``: the leaves of a
    partitioned table, which hold its rows; ``tree``: the catalog's tables they are made from;
    ``point``: the snapshot holds everything up to this LSN; ``out_of_range``: the treatment of
    values out of range; ``draw``: returns values of the target's sequences; ``enums``: the node's
    own types. ``rows``: the only rows to compare; None: all."""

    info: RemoteTable
    table: DeltaTable
    leaves: Leaves | None = None
    tree: tuple[LakeTable, ...] = ()
    point: Lsn = INVALID
    out_of_range: str = ERROR
    draw: Draw = no_draw
    rows: KeyRange | None = None
    enums: tuple[EnumType, ...] = ()

    @property
    def tables(self) -> tuple[DeltaTable, ...]:
        """All tables to which a copy is committed, the table itself last."""
        return (*(() if self.leaves is None else self.leaves.tables), self.table)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tables that get rows."""
        return parts(self.table, self.leaves, self.table.schema)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of a table's copy. ``bytes``: the size of the data files."""

    table: str
    rows: int
    bytes: int


@dataclass(slots=True)
class _Copy:
    """A table's state while the round runs. ``ended``: finished, failed or no longer needed."""

    source: CopySource
    ended: bool = False
    units: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0
    heap_done: int = 0
    heap: int = 0
    files: list[CopiedFile] = field(default_factory=list)

    @property
    def progress(self) -> CopyProgress:
        return CopyProgress(
            self.source.table.name, self.rows, self.heap_done, self.heap, self.done, self.units
        )

    @property
    def result(self) -> CopyResult:
        return CopyResult(self.source.table.name, self.rows, self.bytes)


def _raise(source: CopySource, error: PenstockError) -> None:
    raise error


def run_copy(
    spark: Spark,
    sources: Sequence[CopySource],
    *,
    conninfo: ConnInfo,
    snapshot_name: str,
    options: CopyOptions,
    progress: Progress,
    finished: Callable[[CopySource], object] = lambda source: None,
    failed: Callable[[CopySource, PenstockError], object] = _raise,
    is_needed: Callable[[CopySource], bool] = lambda source: True,
    check: Callable[[], None] = lambda: None,
) -> tuple[CopyResult, ...]:
    """Copy the tables; stage each and call ``finished`` for it (to commit) once it is complete.

    An error ends only its table: ``failed`` is called with the error of the first unit that fails,
    which names table and column (ConnectionFailure, ValueNotRepresentable, StorageError,
    ProtocolViolation, or the server's: PublisherError, UndefinedObject and so on), or with the
    error of ``finished``. A table that is no longer needed ends without a call. ``is_needed`` and
    ``check`` are called about every half second; ``check`` raises if the snapshot is lost. All
    callbacks run in the calling thread. Tables that were not finished have nothing staged, and
    their files are removed as far as they are known.
    """
    copies = [_Copy(source) for source in sources]
    owners: dict[int, _Copy] = {}
    sizes: dict[int, int] = {}
    tasks = _tasks(spark, copies, owners, sizes, conninfo, snapshot_name, options, failed)
    here = _is_small(sources, tasks, options.here_bytes)
    description = _description(sources)
    job = CopyJob(None if here else spark, tasks, options.connections, description, options.tables)
    round_ = _Round(job, copies, owners, sizes, progress, finished, failed, is_needed, check)
    for copy in copies:
        progress(copy.progress)
    try:
        with job:
            for result in job.results(round_.look, round_.stray):
                round_.take(result)
                failpoint(INSIDE_COPY)
    except BaseException:
        for late in job.late():
            owners[late.number].files += late.files
        for copy in copies:
            _abandon(copy)
        raise
    return tuple(copy.result for copy in copies)


@dataclass(slots=True)
class _Round:
    """The handling of a round's results, in the thread that asks for them."""

    job: CopyJob
    copies: Sequence[_Copy]
    owners: Mapping[int, _Copy]
    sizes: Mapping[int, int]
    progress: Progress
    finished: Callable[[CopySource], object]
    failed: Callable[[CopySource, PenstockError], object]
    is_needed: Callable[[CopySource], bool]
    check: Callable[[], None]

    def take(self, result: Result) -> None:
        copy = self.owners[result.number]
        if isinstance(result, CopyFailed):
            self._end(copy)
            self.failed(copy.source, result.error)
            return
        copy.done += 1
        copy.files += result.files
        copy.rows += sum(copied.file.rows for copied in result.files)
        copy.bytes += sum(copied.file.size for copied in result.files)
        copy.heap_done += self.sizes[result.number]
        self.progress(copy.progress)
        if copy.done == copy.units:
            self.finish(copy)

    def finish(self, copy: _Copy) -> None:
        copy.ended = True
        for part in copy.source.parts:
            part.table.stage(written=[c.file for c in copy.files if c.part == part.number])
        copy.files = []
        try:
            self.finished(copy.source)
        except ConnectionFailure:  # the holder of the snapshot or the locks is gone for all tables
            _discard(copy.source)
            raise
        except PenstockError as error:
            _discard(copy.source)
            self.failed(copy.source, error)
            return
        except BaseException:
            _discard(copy.source)
            raise
        log.info(
            'copied table "%s": %d rows, %d bytes in %d units',
            copy.source.table.name,
            copy.rows,
            copy.bytes,
            copy.units,
        )

    def look(self) -> None:
        self.check()
        for copy in self.copies:
            if not copy.ended and not self.is_needed(copy.source):
                log.info('the copy of table "%s" ends before it is done', copy.source.table.name)
                self._end(copy)

    def stray(self, copied: Copied) -> None:
        copy = self.owners[copied.number]
        _remove(copy.source, copied.files)

    def _end(self, copy: _Copy) -> None:
        copy.ended = True
        self.job.discard([number for number, owner in self.owners.items() if owner is copy])
        _abandon(copy)


def _abandon(copy: _Copy) -> None:
    """Remove files that no commit will name; VACUUM removes those of killed tasks."""
    _remove(copy.source, copy.files)
    copy.files = []


def _remove(source: CopySource, files: Sequence[CopiedFile]) -> None:
    for copied in files:
        table = source.parts[copied.part].table
        table.storage.remove(f"{table.uri}/{copied.file.path}")


def _discard(source: CopySource) -> None:
    for table in source.tables:
        table.discard()


def _tasks(
    spark: Spark,
    copies: Sequence[_Copy],
    owners: dict[int, _Copy],
    sizes: dict[int, int],
    conninfo: ConnInfo,
    snapshot_name: str,
    options: CopyOptions,
    failed: Callable[[CopySource, PenstockError], object],
) -> list[CopyTask]:
    """Return the tasks of all units, table by table, so that the first tables are complete early;
    the largest tables and units are first, so that the last tasks to end are short."""
    sized: list[tuple[int, CopyTask]] = []
    for copy in copies:
        wanted = _unit_bytes(spark, copy.source.info, options)
        units = units_of(copy.source.info, published_columns(copy.source), wanted)
        copy.units = len(units)
        made = _task_maker(copy.source, conninfo, snapshot_name, options)
        try:
            mine = [
                (unit.size, with_values(made(len(sized) + at, unit), copy.source.draw))
                for at, unit in enumerate(units)
            ]
        except ConnectionFailure:
            raise
        except PenstockError as error:
            copy.ended = True
            failed(copy.source, error)
            continue
        for size, task in mine:
            owners[task.number] = copy
            sizes[task.number] = size
            copy.heap += size
        sized += mine
    place = {id(copy): at for at, copy in enumerate(sorted(copies, key=lambda c: -c.heap))}
    sized.sort(key=lambda pair: (place[id(owners[pair[1].number])], -pair[0]))
    return [task for _, task in sized]


def _task_maker(
    source: CopySource, conninfo: ConnInfo, snapshot_name: str, options: CopyOptions
) -> Callable[[int, Unit], CopyTask]:
    """Return the function that makes a table's tasks from their numbers and units."""
    table, columns = source.table, published_columns(source)
    generated = generated_columns(table.schema, table.name)

    def made(number: int, unit: Unit) -> CopyTask:
        return CopyTask(
            number=number,
            table=source.info.relation.qualified_name,
            conninfo=conninfo,
            application_name="penstock copy",
            snapshot_name=snapshot_name,
            queries=unit.queries,
            columns=columns,
            schema=table.schema.arrow(),
            targets=table.schema.columns,
            generated=generated,
            storage=table.storage,
            table_uri=table.uri,
            point=source.point,
            out_of_range=source.out_of_range,
            enums=source.enums,
            key=frozenset(table.schema.source_key),
            batch_bytes=options.batch_bytes,
            target_file_bytes=options.target_file_bytes,
            routing=None if source.leaves is None else source.leaves.routing,
            destinations=tuple(part.destination() for part in source.parts),
        )

    return made


def _unit_bytes(spark: Spark, table: RemoteTable, options: CopyOptions) -> int:
    if table.size <= options.unit_bytes:
        return options.unit_bytes
    cores = min(spark.sparkContext.defaultParallelism, options.connections)
    return unit_bytes(table.size, cores, options.unit_bytes)


def _is_small(sources: Sequence[CopySource], tasks: Sequence[CopyTask], most: int) -> bool:
    """Return whether a job would take longer to begin than the copy takes. The size of a table that
    is read through inheritance is not known."""
    leaves = [leaf for source in sources for leaf in source.info.leaves]
    size = sum(leaf.size for leaf in leaves) + len(tasks) * _UNIT_COST
    return size <= most and all(leaf.only for leaf in leaves)


def published_columns(source: CopySource) -> tuple[Attribute, ...]:
    """Return the published columns in the order of the target's columns; they are read as text if
    the target keeps them as text."""
    attributes = {attribute.name: attribute for attribute in source.info.relation.attributes}
    return tuple(
        _as_read(column, attributes[column.source])
        for column in source.table.schema.columns
        if column.source in attributes
    )


def _as_read(column: Column, attribute: Attribute) -> Attribute:
    if not kept_as_text(column, attribute):
        return attribute
    return replace(attribute, type_oid=AS_TEXT, typmod=-1)


def _description(sources: Sequence[CopySource]) -> str:
    return f"penstock: copy {', '.join(source.table.name for source in sources)}"[:200]


# The work of an initial copy: one Spark task per unit, or all units in this process.
#
# Each unit's result is returned once, as soon as its task is done. A unit that has lost its own
# connection is copied again, twice at most, unless the snapshot is known to be gone; finished units
# stay finished. Spark's ``collect`` returns results only when all tasks are done. An accumulator
# sends them earlier, so that a table can be committed, and progress shown, while other tables are
# still being copied.

_CHECK_INTERVAL_S: Final = 0.5
_LONGEST_UNIT_S: Final = 15.0
"""Seconds to wait, at the end, for a unit in this process whose publisher does not answer."""
_TRIES: Final = 3
"""The number of attempts at a unit whose connection breaks."""
_PAUSE_S: Final = 1.0
"""Seconds before a unit is retried, so that the loss of the whole server is noticed first."""
_TICK_S: Final = 0.1
_ENDED: Final = object()
"""The mark that there will be no more results."""


class _Arrivals(AccumulatorParam[list[Result]]):
    """An accumulator that sends results of finished tasks to the driver while their job still runs.
    In executors it only collects them."""

    def __init__(self, deliver: Callable[[Result], None] | None = None) -> None:
        self._deliver = deliver

    def __reduce__(self) -> tuple[Any, ...]:
        return _Arrivals, ()

    def zero(self, value: list[Result]) -> list[Result]:
        return []

    def addInPlace(self, value1: list[Result], value2: list[Result]) -> list[Result]:
        if self._deliver is None:
            return value1 + value2
        for result in value2:
            self._deliver(result)
        return []


class CopyJob:
    """The job of a round's units, in a thread of its own; a context manager that cancels it.

    ``spark``: None copies in this process. ``at_once``: the most units, ``tables``: the most tables
    that are copied at the same time; None: all.
    """

    def __init__(
        self,
        spark: Spark | None,
        tasks: Sequence[CopyTask],
        at_once: int,
        description: str,
        tables: int | None = None,
    ) -> None:
        self._context = None if spark is None else spark.sparkContext
        self._at_once = at_once
        self._tables = tables
        self._description = description
        self._group = f"penstock-copy-{uuid.uuid4()}"
        self._arrived: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._todo = {task.number: task for task in tasks}
        """Units whose results are still wanted, in order."""
        self._delivered: set[int] = set()
        """Units of ``_todo`` with results in the queue."""
        self._taken: dict[int, Result] = {}
        self._lost: set[int] = set()
        """Units of this wave that have lost their connections and are tried again."""
        self._tries: Counter[int] = Counter()
        self._restart = False
        """The running job has unwanted units: it is cancelled, and another job follows."""
        self._cancelled = False
        self._thread = threading.Thread(target=self._run, name="copy", daemon=True)

    def __enter__(self) -> CopyJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancelled = True
        left = time.monotonic() + _LONGEST_UNIT_S
        while self._thread.is_alive():  # the job may just be about to begin
            if self._context is not None:
                cancel_jobs(self._context, self._group)
            elif time.monotonic() > left:
                return  # files of the unit are left to VACUUM, as those of a killed task are
            self._thread.join(_CHECK_INTERVAL_S)

    def results(
        self, check: Callable[[], None], stray: Callable[[Copied], None] = lambda copied: None
    ) -> Iterator[Result]:
        """Yield each unit's result once, as it arrives. Raises Spark's errors.

        ``check`` is called every half second, however fast the results arrive. ``stray`` is called
        for unwanted results: of units of a discarded table, and of second attempts at a unit.
        """
        looked = time.monotonic()
        while self._todo:
            arrived = self._next()
            if time.monotonic() - looked >= _CHECK_INTERVAL_S:
                check()
                self._cancel_unwanted()
                looked = time.monotonic()
            if isinstance(arrived, BaseException):
                check()
                raise arrived
            if arrived is _ENDED:
                if self._todo:
                    raise PenstockError("the initial copy ended before all units were done")
            elif isinstance(arrived, Copied | CopyFailed):
                if self._take(arrived):
                    yield arrived
                elif isinstance(arrived, Copied) and arrived != self._taken.get(arrived.number):
                    stray(arrived)

    def discard(self, numbers: Collection[int]) -> None:
        """Stop waiting for these units. If some are running, their job is cancelled; its other
        units begin again."""
        with self._lock:
            running = [n for n in numbers if n in self._todo and n not in self._delivered]
            for number in numbers:
                self._todo.pop(number, None)
            self._restart = self._restart or bool(running)
        self._cancel_unwanted()

    def late(self) -> list[Copied]:
        """Return the units that ended after the last result was asked for. Call it when the job is
        over."""
        found: list[Copied] = []
        while True:
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                return found
            if isinstance(arrived, Copied) and arrived != self._taken.get(arrived.number):
                found.append(arrived)

    def _next(self) -> Result | BaseException | object | None:
        try:
            arrived = self._arrived.get(timeout=_CHECK_INTERVAL_S)
        except queue.Empty:
            return None
        return _ENDED if arrived is None else arrived

    def _take(self, result: Result) -> bool:
        """Remove a result's unit from ``_todo``; return whether it was there."""
        with self._lock:
            if self._todo.pop(result.number, None) is None:
                return False
        self._taken[result.number] = result
        return True

    def _cancel_unwanted(self) -> None:
        # This is called again and again, because the job may just be about to begin.
        if self._restart and self._context is not None:
            cancel_jobs(self._context, self._group)

    def _run(self) -> None:
        try:
            if self._context is None:
                self._run_here()
            else:
                with working(self._context):
                    self._run_job(self._context)
            self._arrived.put(None)
        except BaseException as error:
            self._arrived.put(error)

    def _run_here(self) -> None:
        while (task := next(iter(self._waiting()), None)) is not None and not self._cancelled:
            for result in copy_units([task]):
                self._deliver(result)
            self._after_wave()

    def _run_job(self, context: SparkContext) -> None:
        context.setJobGroup(self._group, self._description)
        while wave := self._wave(context):
            try:
                for result in self._run_wave(context, wave):
                    self._deliver(result)
            except Exception:
                if self._cancelled or not self._restart:
                    raise
            self._after_wave()

    def _after_wave(self) -> None:
        with self._lock:
            self._tries.update(self._lost)
            again = bool(self._lost)
            self._lost.clear()
        until = time.monotonic() + _PAUSE_S
        while again and not self._cancelled and time.monotonic() < until:
            time.sleep(_TICK_S)

    def _run_wave(self, context: SparkContext, tasks: Sequence[CopyTask]) -> list[Result]:
        none: list[Result] = []
        arrivals = context.accumulator(none, _Arrivals(self._deliver))

        def run(partition: Iterable[CopyTask]) -> Iterator[Result]:
            for result in copy_units(partition):
                arrivals.add([result])
                yield result

        job = context.parallelize(tasks, len(tasks)).mapPartitions(run)
        return list(job.collect())

    def _deliver(self, result: Result) -> None:
        """Put a result into the queue. A wave's results come twice, by the accumulator and at the
        wave's end."""
        with self._lock:
            if self._tries_again(result):
                self._lost.add(result.number)
                return
            self._delivered.add(result.number)
        self._arrived.put(result)

    def _tries_again(self, result: Result) -> bool:
        lost = isinstance(result, CopyFailed) and type(result.error) is ConnectionFailure
        return lost and self._tries[result.number] < _TRIES - 1

    def _waiting(self) -> list[CopyTask]:
        with self._lock:
            self._restart = False
            return [t for number, t in self._todo.items() if number not in self._delivered]

    def _wave(self, context: SparkContext) -> list[CopyTask]:
        """Return the tasks of the next wave: all in one job if the cluster cannot do more than
        ``at_once`` units at the same time anyway."""
        waiting = self._waiting()
        if self._tables is not None:
            begun = list(dict.fromkeys(task.table for task in waiting))[: self._tables]
            waiting = [task for task in waiting if task.table in begun]
        narrow = context.defaultParallelism <= self._at_once
        return [] if self._cancelled else waiting if narrow else waiting[: self._at_once]


# Units of copy work, into which a table is divided, and the commands that each sends.
#
# From the sizes of a table's heaps and the columns of its target, SELECT commands are made and
# packed so that each task reads about the same amount. This part is pure: no Spark, no connection.
# ``CopyJob`` and ``table_copy_task`` run the commands.
#
# A heap is divided by ctid, which PostgreSQL 14 and later reads by TID range scans. The last range
# of a heap is open: blocks may have been added since they were counted, and the snapshot may see
# rows in them.

_UNITS_PER_CORE: Final = 8
_LARGEST_UNIT: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one task: ``queries``, one after the other; ``size``: estimated bytes."""

    queries: tuple[str, ...]
    size: int


def unit_bytes(size: int, cores: int, least: int) -> int:
    """Return the size of units of a table of ``size`` bytes: ``least``, or more for large tables.

    Each core gets the same number of units, or the last units would keep only some cores busy. For
    this, units become up to twice as large, but not smaller: each unit costs a session at the
    publisher, too.
    """
    count = -(-size // max(least, min(size // (cores * _UNITS_PER_CORE), _LARGEST_UNIT)))
    if count > cores:
        count -= count % cores
    return -(-size // max(1, count))


def units_of(table: RemoteTable, columns: Sequence[Attribute], unit_bytes: int) -> list[Unit]:
    """Divide a table into units of about ``unit_bytes``; small partitions share a unit.

    ``columns``: the published columns in the order of the target; without columns each row is read
    as ``true``. There is always at least one unit, even for a table that looks empty.
    """
    selected = (
        ", ".join(
            pgtypes.find(c.type_oid).copy_expression(quoted(c.name), c.typmod) for c in columns
        )
        or "true"
    )
    units: list[Unit] = []
    queries: list[str] = []
    size = 0
    for leaf in table.leaves:
        for condition, piece in _ranges(leaf, unit_bytes):
            if queries and size + piece > unit_bytes:
                units.append(Unit(tuple(queries), size))
                queries, size = [], 0
            queries.append(_select(selected, leaf, condition, table.row_filter))
            size += piece
    return [*units, Unit(tuple(queries), size)]


def _ranges(leaf: LeafTable, unit_bytes: int) -> Iterator[tuple[str | None, int]]:
    """Yield (condition on ctid, estimated bytes) of each piece. Together they cover every block."""
    count = min(-(-leaf.size // unit_bytes), leaf.blocks) if leaf.by_ctid else 1
    if count <= 1:
        yield None, leaf.size
        return
    bounds = [leaf.blocks * number // count for number in range(count)]
    for number, low in enumerate(bounds):
        if number + 1 < count:
            high = bounds[number + 1]
            yield f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid", leaf.size // count
        else:
            yield f"ctid >= '({low},0)'::tid", leaf.size // count


def _select(selected: str, leaf: LeafTable, condition: str | None, row_filter: str | None) -> str:
    only = "ONLY " if leaf.only else ""
    name = f"{quoted(leaf.schema)}.{quoted(leaf.name)}"
    conditions = [condition] if condition else []
    if row_filter:
        conditions.append(f"({row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {selected} FROM {only}{name}{where}"
