"""The initial copy: all tables of a round at one exported snapshot, side by side in Spark, or
one after the other in this process where they are small.

In: published tables, their Delta tables, and the name of a snapshot that another session holds open
(``walreceiver.snapshot_holder``). Out: the copied files staged on each table, one table after the
other as they are complete, to be committed by the caller. Nothing is visible before that. What a
unit of work is decides ``snapshot_units``, how it is done ``snapshot_task``; rows of large tables
never touch the driver.

PostgreSQL copies with one worker and one slot per table (tablesync.c); here the tables of a round
share one consistent point, and a large table is cut by ctid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.catalog import LakeTable
from penstock.enum_type import EnumType
from penstock.errors import ConnectionFailure, PenstockError
from penstock.failpoint import INSIDE_COPY, failpoint
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.conversion import kept_as_text
from penstock.lakehouse.defaults import Draw, no_draw
from penstock.lakehouse.files import TARGET_FILE_BYTES
from penstock.lakehouse.schema import Column
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.as_text import AS_TEXT
from penstock.pgtypes.out_of_range import ERROR
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.key_range import KeyRange
from penstock.pipeline.parts import Leaves, Part, parts
from penstock.pipeline.snapshot_job import CopyJob
from penstock.pipeline.snapshot_task import (
    Copied,
    CopiedFile,
    CopyFailed,
    CopyTask,
    Result,
    with_values,
)
from penstock.pipeline.snapshot_units import Unit, unit_bytes, units_of
from penstock.relation import Attribute
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.table_info import RemoteTable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far a table's copy is. ``bytes``, ``bytes_total``: of the publisher's heap with TOAST, as
    estimated when the copy began, and of finished units of it; ``rows``: of finished units.
    """

    table: str
    rows: int
    bytes: int
    bytes_total: int
    units: int
    units_total: int


Progress = Callable[[CopyProgress], None]

_UNIT_COST: Final = 128 << 10
"""Bytes that are read in the time which a unit takes to begin and end."""


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """``unit_bytes``: heap (with TOAST) that a task reads at least, more of large tables, so that
    their files get large too. ``connections``: sessions on the publisher at the same time at most.
    ``batch_bytes``: what a task reads at once. ``target_file_bytes``: size of data files.
    ``here_bytes``: heaps of so much in all are copied in this process. ``tables``: so many are in
    work at the same time at most; None: all.
    """

    unit_bytes: int = 64 << 20
    connections: int = 16
    batch_bytes: int = 8 << 20
    target_file_bytes: int = TARGET_FILE_BYTES
    here_bytes: int = 8 << 20
    tables: int | None = None


@dataclass(frozen=True, slots=True)
class CopySource:
    """A published table and the Delta table that it is copied into. ``leaves``: of a partitioned
    one, which hold its rows; ``tree``: the tables of the catalog that they come from; ``point``:
    what the copy's snapshot holds; ``out_of_range``: what becomes of values that are; ``draw``: of
    the target's sequences; ``enums``: the node's own types. ``rows``: only those are compared, all
    for None."""

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
        """All that a copy is committed to, the table itself last."""
        return (*(() if self.leaves is None else self.leaves.tables), self.table)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that get rows."""
        return parts(self.table, self.leaves, self.table.schema)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """``bytes``: of the data files."""

    table: str
    rows: int
    bytes: int


@dataclass(slots=True)
class _Copy:
    """One table's state while the round runs. ``ended``: finished, failed or not wanted."""

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
    wanted: Callable[[CopySource], bool] = lambda source: True,
    check: Callable[[], None] = lambda: None,
) -> tuple[CopyResult, ...]:
    """Copy the tables; stage each and call ``finished`` for it (to commit) once it is complete.

    A table ends alone: ``failed`` is called with the error of its first unit that fails, which
    names table and column (ConnectionFailure, ValueNotRepresentable, StorageError,
    ProtocolViolation, or the server's: PublisherError, UndefinedObject and so on), or with that of
    ``finished``; and it ends without a word when it is no longer ``wanted``. Both that and
    ``check``, which raises when the snapshot is lost, are asked about every half second. All
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
    round_ = _Round(job, copies, owners, sizes, progress, finished, failed, wanted, check)
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
    """What becomes of results, in the thread that asks for them."""

    job: CopyJob
    copies: Sequence[_Copy]
    owners: Mapping[int, _Copy]
    sizes: Mapping[int, int]
    progress: Progress
    finished: Callable[[CopySource], object]
    failed: Callable[[CopySource, PenstockError], object]
    wanted: Callable[[CopySource], bool]
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
        except ConnectionFailure:  # what held the snapshot or the locks is gone: for all tables
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
            if not copy.ended and not self.wanted(copy.source):
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
    """Remove files that nothing will name; those of killed tasks are left to VACUUM."""
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
    """All units, table by table, so that the first tables are complete long before the last ones;
    the largest first, so that the last ones to end are short."""
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
    """What makes the tasks of a table, by their numbers and units."""
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
    """Whether a job would take longer to begin than the copy takes. What is read through
    inheritance tells no size."""
    leaves = [leaf for source in sources for leaf in source.info.leaves]
    size = sum(leaf.size for leaf in leaves) + len(tasks) * _UNIT_COST
    return size <= most and all(leaf.only for leaf in leaves)


def published_columns(source: CopySource) -> tuple[Attribute, ...]:
    """The published columns in the order of the target's; as text where the target is."""
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
