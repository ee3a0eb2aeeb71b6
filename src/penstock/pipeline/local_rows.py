"""Rows of a target that changes have met, for conflicts to tell of them.

In: a work, what its tasks have found, and which keys are there that should not be. Out: the rows of
the first KEPT of them, as the log shows rows. Conflicts are rare, so the keys are looked for once
more, in the files that have them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyroaring import BitMap

from penstock.lakehouse.cluster import Spark
from penstock.pipeline.columns import Integers
from penstock.pipeline.job import run_job
from penstock.pipeline.net_change import KEPT, LocalRow, LocalRows
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
    ShowItem,
    Shown,
    Written,
    run_item,
)


def local_rows(
    spark: Spark,
    work: TableWork,
    results: Sequence[Located | Candidates | Written],
    options: ApplyOptions,
    exist: Integers,
) -> LocalRows:
    """Of the rows ``exist`` of ``net.absent``, by those numbers. Raises StorageError."""
    net, first = work.net, exist[:KEPT]
    keys = net.absent.take(pa.array(first))
    asked = BitMap((first + net.removed.num_rows).astype("uint32"))
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
    for result in found:
        if isinstance(result, Failed):
            raise result.error
        assert isinstance(result, Shown)
        for at, shown in result.rows:
            rows.setdefault(int(first[at]), LocalRow(shown))
    return rows
