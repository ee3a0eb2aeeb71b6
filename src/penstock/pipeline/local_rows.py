"""Rows of a target that changes have met, for conflicts to tell of them.

In: a work, what its tasks have found, and which keys are there that should not be, or which rows
others have written. Out: the rows of the first KEPT of them, as the log shows rows, and which
commits wrote them. Conflicts are rare, so the keys are looked for once more, in the files that have
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from penstock.lakehouse.bitmaps import bitmap_of, numbers_of
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.file_commits import FileCommit
from penstock.pipeline.columns import Integers
from penstock.pipeline.job import run_job
from penstock.pipeline.net_change import KEPT, LocalRow, LocalRows, OriginDiffers
from penstock.pipeline.payload import payloads
from penstock.pipeline.table_work import (
    ApplyOptions,
    TableWork,
    locate_item,
    probe_table,
    search_seconds,
)
from penstock.pipeline.tasks import (
    Candidates,
    Failed,
    Item,
    Located,
    Result,
    ShowItem,
    Shown,
    Written,
    run_item,
)

_FILES: Final = 5
"""Whose commits are looked for: in an object store each takes some tenths of a second."""


def local_rows(
    spark: Spark,
    work: TableWork,
    results: Sequence[Located | Candidates | Written],
    options: ApplyOptions,
    exist: Integers,
    *,
    removed: bool = False,
) -> LocalRows:
    """Of the rows ``exist`` of ``net.absent``, or of ``net.removed``, by those numbers. Raises
    StorageError."""
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
    """Changes of rows that others than ``options.own`` have written last, as far as that is known.
    Raises StorageError."""
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
    """Numbers, texts and commits of the rows; of so many files, those of the first ones."""
    shown: list[Shown] = []
    for result in found:
        if isinstance(result, Failed):
            raise result.error
        assert isinstance(result, Shown)
        shown += [result] if result.rows else []
    for number, result in enumerate(sorted(shown, key=lambda each: min(each.rows))):
        table = work.parts[result.part].table
        file = table.files[result.path]
        by = table.commits.of(file, table.version) if number < files else None
        yield from ((at, text, by) for at, text in result.rows)
