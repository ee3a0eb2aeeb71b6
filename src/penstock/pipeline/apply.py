"""Apply: the net changes of a batch carried out on Delta tables by their files, in one Spark job.

In: net changes and the tables they are for; of a partitioned table its leaves (``parts``). Out: the
tables with everything staged, to be committed by the caller with the batch's LSN; or an error, and
then nothing is staged and the files that were written are gone. All row work is in the executors
(``tasks``): what crosses the driver are keys, positions and file names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from pyroaring import BitMap

from penstock.errors import PenstockError, RelationChanged, ReplicationConflict
from penstock.lakehouse.cluster import Spark
from penstock.pipeline.columns import Integers
from penstock.pipeline.job import run_job
from penstock.pipeline.known_hits import FileName, prepare
from penstock.pipeline.local_rows import local_rows, origin_differs
from penstock.pipeline.net_change import LocalRows, Met, NetChange, OriginDiffers, Skipped
from penstock.pipeline.parts import Leaves
from penstock.pipeline.payload import Payloads, payloads
from penstock.pipeline.table_work import (
    ApplyOptions,
    TableWork,
    new_rows,
    searches,
    write_items,
)
from penstock.pipeline.tasks import (
    HISTORY,
    Candidates,
    Failed,
    Item,
    Located,
    Result,
    SearchItem,
    Shown,
    Written,
    run_item,
)
from penstock.pipeline.verify import (
    existing_rows,
    lacks_rows,
    missing_rows,
    positions_to_delete,
)

log = logging.getLogger(__name__)

_beside: Final = ThreadPoolExecutor(thread_name_prefix="new rows")

Done = Located | Candidates | Written
"""Of a task, what is no error."""


@dataclass(frozen=True)
class TableOutcome:
    """What was staged on a table. Rows that a TRUNCATE took are not in ``rows_removed``.
    ``leaves``: a partitioned one's."""

    table: str
    rows_written: int
    rows_removed: int
    files_written: int
    files_touched: int
    skipped: Skipped | None = None
    resolved: Met | None = None
    leaves: Leaves | None = field(default=None, repr=False)
    differs: OriginDiffers | None = None

    @property
    def conflicts(self) -> bool:
        """Whether there is any to be told of."""
        return any(each is not None for each in (self.skipped, self.resolved, self.differs))


def _refuse(_work: TableWork, error: PenstockError) -> None:
    raise error


def run_batch(
    spark: Spark,
    works: Sequence[TableWork],
    options: ApplyOptions,
    *,
    failed: Callable[[TableWork, PenstockError], None] = _refuse,
) -> tuple[TableOutcome, ...]:
    """Carry out the works, each on another table, as one job, and stage them.

    Changes of rows that a table does not have are skipped, as PostgreSQL does, and told in the
    outcome. ``failed`` is told of each work that cannot be done: ReplicationConflict naming table
    and keys where a row to be inserted is there already or a key has several rows, StorageError. It
    raises, and then nothing is staged, and what was written ahead is left to the caller; or it
    returns, and the others are.
    """
    while works:
        results = _search_and_write(spark, works, options)
        deleted: dict[int, Mapping[FileName, BitMap]] = {}
        differ: dict[int, OriginDiffers | None] = {}
        again: list[TableWork] = []
        try:
            for number, work in enumerate(works):
                try:
                    mine = _results_of(number, results)
                    if _is_in_doubt(work, mine, options):
                        again.append(replace(work, by_index=False))
                        continue
                    local = partial(local_rows, spark, work, mine, options)
                    net = _folded_again(work.net, mine, local)
                    if net is None:
                        _check_history(work, mine)
                        name = work.table.name
                        goes = positions_to_delete(name, work.net, mine, local)
                        differ[number] = origin_differs(spark, work, mine, options)
                        deleted[number] = goes
                    again.append(work if net is None else work.folded_again(net))
                except PenstockError as error:
                    work.remove_written()
                    failed(work, error)
        except BaseException:
            _remove_written(works, results)
            raise
        if len(deleted) == len(again):
            _remove_written(works, [result for result in results if result.work not in deleted])
            return tuple(
                replace(_stage(n, works[n], results, goes, spark, options), differs=differ[n])
                for n, goes in deleted.items()
            )
        _remove_written(works, results)
        works = again
    return ()


def write_ahead(
    spark: Spark, work: TableWork, options: ApplyOptions, mark: str
) -> tuple[Written, ...]:
    """Write the complete rows of a work, for ``TableWork.written``, before it is known where its
    old rows are. ``mark``: part of the files' names.

    Raises what a work fails with; then files may be left behind.
    """
    places = tuple(part.destination() for part in work.parts)
    with payloads(work.table.storage) as area:
        items = write_items(0, work, places, area, options, spark, mark)
        name = f"penstock: write ahead {work.table.name}"[:200]
        results = run_job(spark, items, run_item, name, here=options.here_seconds)
    return tuple(done for done in _results_of(0, results) if isinstance(done, Written))


def _search_and_write(
    spark: Spark, works: Sequence[TableWork], options: ApplyOptions
) -> list[Result]:
    """The batch's job. A work whose rows have no place, or whose columns cannot be made, has failed
    before it. Many new rows are written by a job of their own, while indexes are asked for the old
    ones in this process."""
    names = ", ".join(work.table.name for work in works)
    run = partial(
        run_job,
        spark,
        run=run_item,
        name=f"penstock: apply {names}"[:200],
        here=options.here_seconds,
    )
    with payloads(works[0].table.storage) as area:
        items, failed = _each(new_rows, spark, works, area, options)
        beside = None
        if options.indexes is not None and sum(cost for cost, _ in items) > options.here_seconds:
            beside, items = _beside.submit(run, items), []
        try:
            searched, also_failed = _each(searches, spark, works, area, options)
            items += searched
            known = [item for _, item in items if _is_known(item)]
            done = run([(cost, item) for cost, item in items if not _is_known(item)])
            done += [result for item in known for result in run_item(item)]
        except BaseException:
            if beside is not None:
                _remove_written(works, beside.result())
            raise
        written = [] if beside is None else beside.result()
        return failed + also_failed + written + done


def _each(
    items_of: Callable[..., list[tuple[float, Item]]],
    spark: Spark,
    works: Sequence[TableWork],
    area: Payloads,
    options: ApplyOptions,
) -> tuple[list[tuple[float, Item]], list[Result]]:
    """The works' items, and the works that have none."""
    items: list[tuple[float, Item]] = []
    failed: list[Result] = []
    for number, work in enumerate(works):
        try:
            items += items_of(number, work, area, options, spark)
        except (ReplicationConflict, RelationChanged) as error:
            failed.append(Failed(number, error))
    return items, failed


def _is_known(item: Item) -> bool:
    return isinstance(item, SearchItem) and item.is_known


def _is_in_doubt(work: TableWork, results: Sequence[Done], options: ApplyOptions) -> bool:
    """Whether rows are missing as far as indexes say: before a change is skipped for that, the
    files themselves are searched."""
    asked = options.indexes is not None and work.by_index and bool(work.net.schema.key)
    return asked and lacks_rows(work.net, results)


def _folded_again(
    net: NetChange, results: Sequence[Done], local: Callable[[Integers], LocalRows]
) -> NetChange | None:
    """The net change without the changes of rows that are not there, or with what is known of keys
    that are there already; None where neither is.

    PostgreSQL skips changes of missing rows, too (update_missing, delete_missing). Both are rare,
    so the whole job is done again.
    """
    lacking = missing_rows(net, results)
    if lacking is not None and net.without is not None:
        return net.without(lacking)
    exist = None if lacking is not None else existing_rows(net, results)
    return None if exist is None or net.existing is None else net.existing(exist, local(exist))


def _check_history(work: TableWork, results: Sequence[Done]) -> None:
    """Raises ReplicationConflict where old rows were not found: nothing is left out."""
    expected = work.history_incomplete
    mine = (r for r in results if isinstance(r, Written) and r.part == HISTORY)
    if (completed := sum(r.completed for r in mine)) != expected:
        raise ReplicationConflict(
            f'{completed} of {expected} rows of the history of table "{work.table.name}" with '
            "values that the publisher did not send were completed"
        )


def _results_of(number: int, results: Sequence[Result]) -> list[Done]:
    """A work's. Raises its first task's error."""
    found: list[Done] = []
    for result in results:
        if result.work == number:
            if isinstance(result, Failed):
                raise result.error
            assert not isinstance(result, Shown)
            found.append(result)
    return found


def _remove_written(works: Sequence[TableWork], results: Sequence[Result]) -> None:
    for result in results:
        if isinstance(result, Written):
            works[result.work].remove_files(result)


def _stage(
    number: int,
    work: TableWork,
    results: Sequence[Result],
    deleted: Mapping[FileName, BitMap],
    spark: Spark,
    options: ApplyOptions,
) -> TableOutcome:
    written = 0
    for part in work.parts:
        files = [
            file
            for result in (*results, *(replace(ahead, work=number) for ahead in work.written))
            if isinstance(result, Written) and (result.work, result.part) == (number, part.number)
            for file in result.files
        ]
        goes = {path: found for (at, path), found in deleted.items() if at == part.number}
        part.table.stage(written=files, deleted=goes, remove_all=work.net.truncate)
        written += len(files)
        if options.indexes is not None and work.net.schema.key:
            prepare(options.indexes, spark, part, work.net.schema, files)
    if work.history is not None:
        mine = (r for r in results if isinstance(r, Written) and r.work == number)
        work.history.table.stage(
            written=[file for r in mine if r.part == HISTORY for file in r.files]
        )
    outcome = TableOutcome(
        work.table.name,
        work.net.rows_written + sum(file.rows for ahead in work.written for file in ahead.files),
        work.net.rows_removed,
        written,
        len(deleted),
        work.net.skipped,
        work.net.resolved,
        work.leaves,
    )
    log.debug("staged %s", outcome)
    return outcome
