"""Apply: carry out the net changes of a batch on the files of Delta tables, in one Spark job.

Net changes are staged on their tables, and on the leaves of partitioned ones (``parts``). The
caller commits the tables with the batch's LSN. After an error nothing is staged, and the written
files have been removed. Executors do all the row work (``tasks``): only keys, row positions and
file names cross the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import PenstockError, RelationChanged, ReplicationConflict
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.deletion_vectors import bitmap_of, numbers_of
from penstock.lakehouse.file_commits import FileCommit
from penstock.pipeline.columns import Integers, rank
from penstock.pipeline.conflict import conflict
from penstock.pipeline.index_lookup import FileName, prepare_indexes
from penstock.pipeline.job import run_job
from penstock.pipeline.net_change import (
    KEPT,
    LocalRow,
    LocalRows,
    Met,
    NetChange,
    OriginDiffers,
    Skipped,
)
from penstock.pipeline.parts import Leaves
from penstock.pipeline.payload import Payloads, payloads
from penstock.pipeline.table_work import (
    ApplyOptions,
    TableWork,
    locate_item,
    new_rows,
    probe_table,
    search_seconds,
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
    ShowItem,
    ShownRows,
    Written,
    run_item,
)

log = logging.getLogger(__name__)

_new_rows_pool: Final = ThreadPoolExecutor(thread_name_prefix="new rows")

Done = Located | Candidates | Written
"""The results of a task that are not errors."""


@dataclass(frozen=True)
class TableOutcome:
    """The changes staged on a table. ``rows_removed`` does not count rows that a TRUNCATE removed.
    ``leaves``: the leaves of a partitioned table."""

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
        """Return whether there are conflicts to report."""
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

    Changes of missing rows are skipped, as in PostgreSQL, and reported in the outcome. ``failed``
    is called with each work that cannot be done and its error. This is a ReplicationConflict, which
    names table and keys, if a row to insert exists already or a key has several rows. If ``failed``
    raises, nothing is staged and the caller must remove files written ahead. If it returns, the
    other works are staged.
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
                    if _is_in_doubt(work, mine):
                        again.append(replace(work, doubted=True))
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


def write_before_commit(
    spark: Spark, work: TableWork, options: ApplyOptions, mark: str
) -> tuple[Written, ...]:
    """Write the complete rows of a work, for ``TableWork.written``, before its old rows have been
    located. ``mark``: part of the files' names.

    Raises the work's error; files may then be left behind.
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
    """Run the batch's job. A work fails before the job if one of its rows belongs to no partition
    or a generated column cannot be computed. If there are many new rows, a job of their own writes
    them while this process looks up the old rows in indexes."""
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
        if options.indexes is not None and sum(cost for cost, _ in items) > options.little_seconds:
            beside, items = _new_rows_pool.submit(run, items), []
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
    """Return the items of the works, and a ``Failed`` for each work whose items cannot be made."""
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


def _is_in_doubt(work: TableWork, results: Sequence[Done]) -> bool:
    """Return whether rows are missing according to indexes, or to files whose checksums nobody has
    compared. If so, the files themselves are searched, and checked, before a change is skipped."""
    return not work.doubted and lacks_rows(work.net, results)


def _folded_again(
    net: NetChange, results: Sequence[Done], local: Callable[[Integers], LocalRows]
) -> NetChange | None:
    """Return the net change folded again: without the changes of missing rows, or with the existing
    keys. Return None if no row is missing and no key exists.

    PostgreSQL skips changes of missing rows, too (update_missing, delete_missing). Both cases are
    rare, so the whole job is done again.
    """
    lacking = missing_rows(net, results)
    if lacking is not None and net.without is not None:
        return net.without(lacking)
    exist = None if lacking is not None else existing_rows(net, results)
    return None if exist is None or net.existing is None else net.existing(exist, local(exist))


def _check_history(work: TableWork, results: Sequence[Done]) -> None:
    """Raise ReplicationConflict if old rows were not found: a history must not omit a change."""
    expected = work.history_incomplete
    mine = (r for r in results if isinstance(r, Written) and r.part == HISTORY)
    if (completed := sum(r.completed for r in mine)) != expected:
        raise ReplicationConflict(
            f'{completed} of {expected} rows of the history of table "{work.table.name}" with '
            "values that the publisher did not send were completed"
        )


def _results_of(number: int, results: Sequence[Result]) -> list[Done]:
    """Return the results of a work. Raises the first error among them."""
    found: list[Done] = []
    for result in results:
        if result.work == number:
            if isinstance(result, Failed):
                raise result.error
            assert not isinstance(result, ShownRows)
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
            for result in (*results, *(replace(done, work=number) for done in work.written))
            if isinstance(result, Written) and (result.work, result.part) == (number, part.number)
            for file in result.files
        ]
        goes = {path: found for (at, path), found in deleted.items() if at == part.number}
        part.table.stage(written=files, deleted=goes, remove_all=work.net.truncate)
        written += len(files)
        if options.indexes is not None and work.net.schema.key:
            prepare_indexes(options.indexes, spark, part, work.net.schema, files)
    if work.history is not None:
        mine = (r for r in results if isinstance(r, Written) and r.work == number)
        work.history.table.stage(
            written=[file for r in mine if r.part == HISTORY for file in r.files]
        )
    outcome = TableOutcome(
        work.table.name,
        work.net.rows_written + sum(file.rows for done in work.written for file in done.files),
        work.net.rows_removed,
        written,
        len(deleted),
        work.net.skipped,
        work.net.resolved,
        work.leaves,
    )
    log.debug("staged %s", outcome)
    return outcome


# Existing rows of a target, for reports of conflicts.
#
# A work's tasks report the keys that should not exist, or the rows that others have written. The
# first KEPT of these rows are returned as log messages print them, with the commits that wrote
# them. Conflicts are rare, so the keys are searched once more in their files.

_FILES: Final = 5
"""The number of files whose commits are looked up: each takes some tenths of a second in an object
store."""


def local_rows(
    spark: Spark,
    work: TableWork,
    results: Sequence[Located | Candidates | Written],
    options: ApplyOptions,
    exist: Integers,
    *,
    removed: bool = False,
) -> LocalRows:
    """Return the table's rows with the keys numbered ``exist`` in ``net.absent`` (if ``removed``:
    in ``net.removed``), by these numbers. Raises StorageError."""
    net, first = work.net, exist[:KEPT]
    keys = (net.removed if removed else net.absent).take(pa.array(first))
    asked = bitmap_of(first + (0 if removed else net.removed.num_rows))
    holding = [
        (r.part, r.path)
        for r in results
        if isinstance(r, Located) and BitMap.deserialize(r.found) & asked
    ]
    with payloads(work.table.storage) as area:
        probe = area.put(probe_table(net, keys))
        items: list[tuple[float, Item]] = []
        for number, path in holding:
            part = work.parts[number]
            file = part.table.files[path]
            where = locate_item(0, part, net, file, probe)
            items.append((search_seconds(file, keys), ShowItem(where, part.shown)))
        name = f"penstock: conflicts {work.table.name}"[:200]
        found = run_job(spark, items, run_item, name, here=options.here_seconds)
    rows: dict[int, LocalRow] = {}
    for at, shown, by in _with_commits(work, found, KEPT if removed else _FILES):
        rows.setdefault(int(first[at]), LocalRow(shown, by))
    return rows


def origin_differs(
    spark: Spark,
    work: TableWork,
    results: Sequence[Located | Candidates | Written],
    options: ApplyOptions,
) -> OriginDiffers | None:
    """Return the changes of rows whose last writer is known not to be ``options.own``. Raises
    StorageError."""
    net = work.net
    if options.own is None or net.differs is None:
        return None
    wanted, theirs = BitMap(range(net.removed.num_rows)), BitMap()
    for result in results:
        if isinstance(result, Located) and (goes := BitMap.deserialize(result.found) & wanted):
            table = work.parts[result.part].table
            if table.commits.by_others(table.files[result.path], table.version, options.own):
                theirs |= goes
    if not theirs:
        return None
    numbers = numbers_of(theirs)
    rows = local_rows(spark, work, results, options, numbers, removed=True)
    return net.differs(numbers, rows)


def _with_commits(
    work: TableWork, found: Sequence[Result], files: int
) -> Iterator[tuple[int, str, FileCommit | None]]:
    """Yield number, text and commit of each row; commits only for the first ``files`` files."""
    shown: list[ShownRows] = []
    for result in found:
        if isinstance(result, Failed):
            raise result.error
        assert isinstance(result, ShownRows)
        shown += [result] if result.rows else []
    for number, result in enumerate(sorted(shown, key=lambda each: min(each.rows))):
        table = work.parts[result.part].table
        file = table.files[result.path]
        by = table.commits.of(file, table.version) if number < files else None
        yield from ((at, text, by) for at, text in result.rows)


# The proof of a batch: what the tasks found is compared with what the fold expects.
#
# The result is, for each table, the positions to remove, or a ReplicationConflict that names table
# and keys. The fold assumes that every row it removes exists exactly once and that no row it
# inserts exists; only this code checks it. Missing rows are not an error: ``run_batch`` first folds
# again without their changes.

MISSING = "could not find the row to be updated or deleted"
REPEATED = "more than one row has the key"


def positions_to_delete(
    table: str,
    net: NetChange,
    results: Sequence[Located | Candidates | Written],
    local: Callable[[Integers], LocalRows],
) -> Mapping[FileName, BitMap]:
    """Return the positions of the rows to delete, by file. ``local`` takes numbers of keys in
    ``net.absent`` and returns the existing rows with these keys. Raises ReplicationConflict."""
    if net.copies is not None:
        return _choose(table, net, [r for r in results if isinstance(r, Candidates)])
    located = [r for r in results if isinstance(r, Located)]
    found, repeated = BitMap(), BitMap()
    for result in located:
        here = BitMap.deserialize(result.found)
        repeated |= BitMap.deserialize(result.repeated) | (here & found)
        found |= here
    wanted = BitMap(range(net.removed.num_rows))
    if exist := found - wanted:
        assert net.exists is not None
        numbers = numbers_of(exist) - net.removed.num_rows
        raise net.exists(table, numbers, local(numbers))
    findings = [
        (what, _with_numbers(net.removed, numbers))
        for what, numbers in ((MISSING, wanted - found), (REPEATED, repeated & wanted))
        if numbers
    ]
    if findings:
        raise conflict(table, findings)
    _check_completed(table, net, results)
    return {(r.part, r.path): p for r in located if (p := BitMap.deserialize(r.positions))}


def missing_rows(
    net: NetChange, results: Sequence[Located | Candidates | Written]
) -> np.ndarray | None:
    """Return how many of each row of ``net.removed`` the table lacks; None if it lacks none and
    ``net.asks`` is not set."""
    lacking = _lacking(net, results)
    return lacking if lacking.any() or net.asks else None


def lacks_rows(net: NetChange, results: Sequence[Located | Candidates | Written]) -> bool:
    """Return whether a row of ``net.removed`` was not found."""
    return bool(_lacking(net, results).any())


def _lacking(net: NetChange, results: Sequence[Located | Candidates | Written]) -> np.ndarray:
    """Return how many of each row of ``net.removed`` the table lacks."""
    count = net.removed.num_rows
    if net.copies is None:
        lacking: np.ndarray = np.ones(count, np.int64)
        lacking[numbers_of(_found(results) & BitMap(range(count)))] = 0
    else:
        probes = [r.probe for r in results if isinstance(r, Candidates)]
        probe = np.concatenate([np.empty(0, np.int64), *probes])
        lacking = np.maximum(net.copies - np.bincount(probe, minlength=count), 0)
    return lacking


def _found(results: Sequence[Located | Candidates | Written]) -> BitMap:
    """Return the probe rows that were found in a table with a key."""
    return BitMap.union(
        BitMap(), *(BitMap.deserialize(r.found) for r in results if isinstance(r, Located))
    )


def existing_rows(
    net: NetChange, results: Sequence[Located | Candidates | Written]
) -> np.ndarray | None:
    """Return the numbers of the rows of ``net.absent`` that the table has; None if it has none, or
    if an existing row is an error."""
    if net.existing is None:
        return None
    exist = _found(results) - BitMap(range(net.removed.num_rows))
    return numbers_of(exist) - net.removed.num_rows if exist else None


def _with_numbers(keys: pa.Table, numbers: BitMap) -> pa.Table:
    return keys.take(pa.array(np.array(numbers, np.int64)))


def _check_completed(
    table: str, net: NetChange, results: Sequence[Located | Candidates | Written]
) -> None:
    expected = net.rows_completed
    mine = (r for r in results if isinstance(r, Written) and r.part != HISTORY)
    completed = sum(r.completed for r in mine)
    if completed != expected:
        raise ReplicationConflict(
            f'{completed} of {expected} rows of table "{table}" with values that the publisher did '
            "not send were completed",
        )


def _choose(table: str, net: NetChange, results: Sequence[Candidates]) -> Mapping[FileName, BitMap]:
    """Choose the equal rows to remove, as many as needed, in the order of files and positions."""
    assert net.copies is not None
    results = sorted(results, key=lambda result: (result.part, result.path))
    nothing = [np.empty(0, np.int64)]
    probe = np.concatenate([result.probe for result in results] or nothing)
    position = np.concatenate([result.position for result in results] or nothing)
    file = np.repeat(np.arange(len(results)), [len(result.probe) for result in results])
    order = np.argsort(probe, kind="stable")
    taken = order[rank(probe[order]) < net.copies[probe[order]]]
    lacking = np.bincount(probe[taken], minlength=len(net.copies)) < net.copies
    if lacking.any():
        raise conflict(table, [(MISSING, net.removed.filter(pa.array(lacking)))])
    return {
        (result.part, result.path): bitmap_of(goes)
        for number, result in enumerate(results)
        if len(goes := position[taken[file[taken] == number]])
    }
