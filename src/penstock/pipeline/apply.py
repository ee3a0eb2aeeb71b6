"""Apply: the net changes of a batch carried out on Delta tables by their files, in one Spark job.

In: net changes and the tables they are for; of a partitioned table its leaves (``parts``). Out: the
tables with everything staged, to be committed by the caller with the batch's LSN; or an error, and
then nothing is staged and the files that were written are gone. All row work is in the executors
(``tasks``): what crosses the driver are keys, positions and file names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import PenstockError, RelationChanged, ReplicationConflict
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.columns import Integers
from penstock.pipeline.job import HERE_SECONDS, run_job
from penstock.pipeline.locate import LocateItem
from penstock.pipeline.net_change import Incomplete, NetChange, Skipped
from penstock.pipeline.parts import Leaves, Part, destinations, parts, shares
from penstock.pipeline.payload import Payload, Payloads, payloads
from penstock.pipeline.prune import candidates, integer_bounds
from penstock.pipeline.tasks import (
    Candidates,
    Failed,
    Item,
    Located,
    Result,
    SearchItem,
    Written,
    run_item,
)
from penstock.pipeline.verify import FileName, missing_rows, positions_to_delete
from penstock.pipeline.write import Completion, Destination, WriteItem

log = logging.getLogger(__name__)

Done = Located | Candidates | Written
"""Of a task, what is no error."""

_ITEM_SECONDS: Final = 0.01
"""What a task costs before it reads its first byte, about; with the next two it decides how work is
packed, and whether there is a job at all."""
_SECONDS_PER_ROW: Final = 2e-8
"""Of a file to be searched, and of the keys looked for."""
_SECONDS_PER_BYTE: Final = 2e-9


@dataclass(frozen=True)
class ApplyOptions:
    """``min_slice_bytes``, ``max_slice_bytes``: Arrow data that one write task takes; in between
    a table's rows are spread over all cores. ``here_seconds``: of work for which there is no
    job."""

    min_slice_bytes: int = 24 << 20
    max_slice_bytes: int = 256 << 20
    here_seconds: float = HERE_SECONDS


@dataclass(frozen=True)
class TableWork:
    """A net change to be carried out on a table.

    ``leaves``: of a partitioned table, which has no rows of its own; ``table`` then names it.
    ``check_absent``: look whether keys that the batch inserts exist. Off only for measurements: a
    unique index at the publisher says nothing of rows whose deletion was never sent.
    ``written``: the net change's complete rows, where they are in files already (``write_ahead``)
    and no more in ``net``.
    """

    table: DeltaTable
    net: NetChange
    check_absent: bool = True
    leaves: Leaves | None = None
    written: tuple[Written, ...] = ()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The tables that may hold its rows."""
        return parts(self.table, self.leaves, self.net.schema)

    def folded_again(self, net: NetChange) -> TableWork:
        """With another net change; what was written for this one goes."""
        self.remove_written()
        return replace(self, net=net, written=())

    def remove_written(self) -> None:
        """Remove the files of ``written``."""
        _remove_written([self], self.written)


@dataclass(frozen=True)
class TableOutcome:
    """What was staged on a table. Rows that a TRUNCATE took are not in ``rows_removed``."""

    table: str
    rows_written: int
    rows_removed: int
    files_written: int
    files_touched: int
    skipped: Skipped | None = None


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
        again: list[TableWork] = []
        try:
            for number, work in enumerate(works):
                try:
                    mine = _results_of(number, results)
                    net = _without_missing(work.net, mine)
                    if net is None:
                        deleted[number] = positions_to_delete(work.table.name, work.net, mine)
                    again.append(work if net is None else work.folded_again(net))
                except PenstockError as error:
                    work.remove_written()
                    failed(work, error)
        except BaseException:
            _remove_written(works, results)
            raise
        if len(deleted) == len(again):
            _remove_written(works, [result for result in results if result.work not in deleted])
            return tuple(_stage(n, works[n], results, goes) for n, goes in deleted.items())
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
        items = _write_items(0, work, places, area, options, spark, mark)
        name = f"penstock: write ahead {work.table.name}"[:200]
        results = run_job(spark, items, run_item, name, here=options.here_seconds)
    return tuple(done for done in _results_of(0, results) if isinstance(done, Written))


def _search_and_write(
    spark: Spark, works: Sequence[TableWork], options: ApplyOptions
) -> list[Result]:
    """The batch's job. A work whose rows have no place, or whose columns cannot be made, has failed
    before it."""
    with payloads(works[0].table.storage) as area:
        items: list[tuple[float, Item]] = []
        failed: list[Result] = []
        for number, work in enumerate(works):
            try:
                items += _items(number, work, area, options, spark)
            except (ReplicationConflict, RelationChanged) as error:
                failed.append(Failed(number, error))
        names = ", ".join(work.table.name for work in works)
        name = f"penstock: apply {names}"[:200]
        return failed + run_job(spark, items, run_item, name, here=options.here_seconds)


def _without_missing(net: NetChange, results: Sequence[Done]) -> NetChange | None:
    """The net change without the changes of rows that are not there; None where none is missing.

    PostgreSQL skips such a change (update_missing, delete_missing). It is rare, so the whole job is
    done again.
    """
    lacking = missing_rows(net, results)
    return None if lacking is None or net.without is None else net.without(lacking)


def _items(
    number: int, work: TableWork, area: Payloads, options: ApplyOptions, spark: Spark
) -> list[tuple[float, Item]]:
    """The items of one work with their costs in seconds."""
    net = work.net
    places = tuple(part.destination() for part in work.parts)
    items = _write_items(number, work, places, area, options, spark)
    keys = net.removed
    if work.check_absent and net.absent.num_rows:
        keys = pa.concat_tables([keys, net.absent])
    files = [(part, file) for part in work.parts for file in _candidates(part, keys)]
    if not files:
        return items
    probe = area.put(_probe(net, keys))
    rows_to_complete = _rows_to_complete(work, area)
    for part, file in files:
        where = _locate_item(number, part, net, file, probe)
        completion = _completion(net, part, places, rows_to_complete)
        search = SearchItem(where, net.removed.num_rows, completion)
        cost = _ITEM_SECONDS + (file.rows + keys.num_rows) * _SECONDS_PER_ROW
        items.append((cost, search))
    return items


def _write_items(
    number: int,
    work: TableWork,
    places: Sequence[Destination],
    area: Payloads,
    options: ApplyOptions,
    spark: Spark,
    mark: str = "",
) -> list[tuple[float, Item]]:
    items: list[tuple[float, Item]] = []
    for at, share in shares(work.net.rows, work.leaves).items():
        to = places[at]
        for rows in _slices(to.given(share), options, spark):
            payload = area.put(rows)
            item = WriteItem(number, to.storage, to.table_uri, payload, to.generated, at, mark)
            items.append((_ITEM_SECONDS + rows.nbytes * _SECONDS_PER_BYTE, item))
    return items


def _candidates(part: Part, keys: pa.Table) -> list[DataFile]:
    return candidates(part.table.files.values(), part.keys(keys)) if keys.num_rows else []


def _locate_item(
    number: int, part: Part, net: NetChange, file: DataFile, probe: Payload
) -> LocateItem:
    key = tuple(part.names[name] for name in net.schema.identity)
    schema = part.table.schema.arrow()
    return LocateItem(
        work=number,
        table_uri=part.table.uri,
        path=file.path,
        rows=file.rows,
        deletion_vector=file.deletion_vector,
        key=key,
        probe=probe,
        multiset=not net.schema.key,
        first_between=integer_bounds(file, key[0], schema) if net.schema.key else None,
        part=part.number,
    )


def _probe(net: NetChange, keys: pa.Table) -> pa.Table:
    """``LocateItem.probe``."""
    probe = keys.rename_columns([f"k{i}" for i in range(keys.num_columns)])
    if net.copies is not None:
        probe = probe.append_column("copies", pa.array(net.copies))
    return probe


def _rows_to_complete(work: TableWork, area: Payloads) -> Payload | None:
    incomplete = work.net.incomplete
    if incomplete is None:
        return None
    to = destinations(incomplete.rows, work.leaves)
    return area.put(_completion_table(incomplete, to))


def _completion(
    net: NetChange, part: Part, places: tuple[Destination, ...], rows: Payload | None
) -> Completion | None:
    """For files of one part; the rows may go to others."""
    if net.incomplete is None or rows is None:
        return None
    missing = {name: part.names[name] for name in net.incomplete.missing}
    return Completion(net.schema.arrow(), missing, places, rows)


def _completion_table(incomplete: Incomplete, to: Integers) -> pa.Table:
    """What ``Completion.rows`` holds."""
    columns = {f"v{i}": column for i, column in enumerate(incomplete.rows.columns)}
    columns |= {f"m{i}": pa.array(m) for i, m in enumerate(incomplete.missing.values())}
    return pa.table({**columns, "old": pa.array(incomplete.old), "to": pa.array(to)})


def _slices(rows: pa.Table, options: ApplyOptions, spark: Spark) -> list[pa.Table]:
    if not rows.num_rows:
        return []
    size = rows.nbytes
    count = size // options.min_slice_bytes
    if count > 1:  # a small batch asks for no Spark
        count = min(count, spark.sparkContext.defaultParallelism)
    step = -(-rows.num_rows // max(count, -(-size // options.max_slice_bytes), 1))
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]


def _results_of(number: int, results: Sequence[Result]) -> list[Done]:
    """A work's. Raises its first task's error."""
    found: list[Done] = []
    for result in results:
        if result.work == number:
            if isinstance(result, Failed):
                raise result.error
            found.append(result)
    return found


def _remove_written(works: Sequence[TableWork], results: Sequence[Result]) -> None:
    """Best effort: what stays is in no log entry and goes with the next VACUUM."""
    for result in results:
        if isinstance(result, Written):
            table = works[result.work].parts[result.part].table
            for file in result.files:
                table.storage.remove(f"{table.uri}/{file.path}")


def _stage(
    number: int,
    work: TableWork,
    results: Sequence[Result],
    deleted: Mapping[FileName, BitMap],
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
    outcome = TableOutcome(
        work.table.name,
        work.net.rows_written + sum(file.rows for ahead in work.written for file in ahead.files),
        work.net.rows_removed,
        written,
        len(deleted),
        work.net.skipped,
    )
    log.debug("staged %s", outcome)
    return outcome
