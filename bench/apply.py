"""Apply by files against Delta's MERGE: random updates of a table of 5 M rows in 4 files.

    python bench/apply.py [ROWS]

Prints medians of fold, job and commit (with fsync) for batches of 1 to 1,000,000 rows, and the
ratio to MERGE of the same batches into a copy of the table in the same run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.attribute import Attribute
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.session import build_session
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pipeline.apply import run_batch
from penstock.pipeline.fold import fold
from penstock.pipeline.table_work import ApplyOptions, TableWork
from penstock.relation import Relation, ReplicaIdentity

RELATION = Relation(
    16384,
    "public",
    "pgbench_accounts",
    ReplicaIdentity.DEFAULT,
    (
        Attribute("aid", 23, key=True),
        Attribute("bid", 23),
        Attribute("abalance", 23),
        Attribute("filler", 1042, 88),
    ),
)
FILES = 4
PLAN = ((1, 15, 3), (1_000, 15, 3), (100_000, 8, 2), (1_000_000, 4, 1))
"""(rows of a batch, batches by files, batches by MERGE)"""


@dataclass(frozen=True)
class Timing:
    fold: float
    job: float
    commit: float

    @property
    def total(self) -> float:
        return self.fold + self.job + self.commit


def rows_of(keys: np.ndarray, balance: int) -> pa.RecordBatch:
    filler = pa.array([" " * 84]).take(pa.array(np.zeros(len(keys), np.int32)))
    columns = {
        "aid": pa.array(keys),
        "bid": pa.array(keys % 50),
        "abalance": pa.array(np.full(len(keys), balance, np.int32)),
        "filler": filler,
    }
    return pa.RecordBatch.from_pydict(columns)


def create(warehouse: Warehouse, name: str, rows: int) -> DeltaTable:
    table = warehouse.create("public", name, TableSchema.of_relation(RELATION))
    written = []
    for part in np.array_split(np.arange(rows, dtype=np.int32), FILES):
        writer = FileWriter(warehouse.storage, table.uri, table.schema.arrow())
        written += writer.write([rows_of(part, 0)])
    table.stage(written=written)
    table.commit(app_id="bench", version_marker=0, operation="COPY")
    return table


def by_files(spark: SparkSession, table: DeltaTable, new: pa.RecordBatch, lsn: int) -> Timing:
    count = new.num_rows
    batch = ChangeBatch(
        relation=RELATION,
        sequence=np.arange(count),
        operation=np.full(count, ord("U"), np.uint8),
        new=new,
        unchanged={},
        old=None,
        old_kind=np.zeros(count, np.uint8),
    )
    t0 = time.perf_counter()
    net = fold([batch], table.schema)
    t1 = time.perf_counter()
    run_batch(spark, [TableWork(table, net, check_absent=False)], ApplyOptions())
    t2 = time.perf_counter()
    table.commit(app_id="bench", version_marker=lsn, operation="REPLICATION")
    return Timing(t1 - t0, t2 - t1, time.perf_counter() - t2)


def by_merge(spark: SparkSession, uri: str, new: pa.RecordBatch) -> float:
    t0 = time.perf_counter()
    spark.createDataFrame(pa.table(new)).createOrReplaceTempView("batch")
    spark.sql(
        f"merge into delta.`{uri}` t using batch s on t.aid = s.aid "
        "when matched then update set * when not matched then insert *"
    ).collect()
    return time.perf_counter() - t0


def main(rows: int) -> None:
    spark = build_session(master="local[2]", driver_memory="2g", conf={}, app_name="bench-apply")
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        warehouse = Warehouse(folder)
        table, copy = (create(warehouse, name, rows) for name in ("accounts", "accounts_merge"))
        lsn = 0
        for size, times, merges in PLAN:
            size = min(size, rows)
            timings, merged = [], []
            for number in range(times):
                lsn += 1
                new = rows_of(rng.choice(rows, size, replace=False).astype(np.int32), lsn)
                timings.append(by_files(spark, table, new, lsn))
                if number < merges:
                    merged.append(by_merge(spark, copy.uri, new))
            report(size, rows, timings[times // 3 :], merged)
        frame = spark.read.format("delta").load(table.uri)
        counted = frame.selectExpr("count(*)", "count(distinct aid)").collect()[0]
        assert tuple(counted) == (rows, rows), counted
        assert frame.where(f"abalance = {lsn}").count() == min(PLAN[-1][0], rows)
        print("table checked through Spark:", *counted, "rows, keys;", len(table.files), "files")
    spark.stop()


def report(size: int, rows: int, timings: list[Timing], merged: list[float]) -> None:
    def median(part: str) -> float:
        return float(statistics.median(getattr(timing, part) for timing in timings))

    total, merge = median("total"), statistics.median(merged)
    print(
        f"{size:>9,} random updates of {rows:,}: fold {median('fold') * 1e3:.0f} ms, "
        f"job {median('job') * 1e3:.0f} ms, commit {median('commit') * 1e3:.0f} ms, "
        f"{size / total:,.0f} rows/s; MERGE {merge:.2f} s, {merge / total:.1f} times",
        flush=True,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
