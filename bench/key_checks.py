"""What looking for the keys of inserted rows costs: random and ascending keys, 5 M rows in 4 files.

    python bench/key_checks.py [ROWS]

Prints medians of the job of batches of 10,000 inserts, with and without the look, in turns, so that
whatever else runs on the machine hits both alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.attribute import Attribute
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.session import build_session
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.apply import run_batch
from penstock.pipeline.net_change import NetChange
from penstock.pipeline.table_work import ApplyOptions, TableWork

BATCH = 10_000
TIMES = 7
SCHEMA = TableSchema(
    (Column("id", Attribute("id", 2950), pa.string()), Column("v", Attribute("v", 20), pa.int64())),
    ("id",),
)


def random_keys(start: int, count: int) -> list[str]:
    """UUIDs of version 4."""
    raw = np.random.default_rng(start).bytes(16 * count)
    return [str(uuid.UUID(bytes=raw[i : i + 16])) for i in range(0, 16 * count, 16)]


def ascending_keys(start: int, count: int) -> list[str]:
    """As UUIDs of version 7 sort."""
    return [str(uuid.UUID(int=i << 64)) for i in range(start, start + count)]


def rows_of(keys: list[str]) -> pa.Table:
    return pa.table({"id": keys, "v": pa.array(np.arange(len(keys)))}, schema=SCHEMA.arrow())


def create(
    warehouse: Warehouse, name: str, rows: int, keys: Callable[[int, int], list[str]]
) -> DeltaTable:
    table = warehouse.create("public", name, SCHEMA)
    part = rows // 4
    for start in range(0, 4 * part, part):
        writer = FileWriter(warehouse.storage, table.uri, SCHEMA.arrow())
        table.stage(written=writer.write([rows_of(keys(start, part))]))
    table.commit(app_id="bench", version_marker=0, operation="COPY")
    return table


def main(rows: int) -> None:
    spark = build_session(master="local[2]", driver_memory="2g", conf={}, app_name="bench-keys")
    with tempfile.TemporaryDirectory() as folder:
        warehouse = Warehouse(folder)
        for name, keys in (("random", random_keys), ("ascending", ascending_keys)):
            table = create(warehouse, name, rows, keys)
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * TIMES):
                check = number % 2 == 1
                new = rows_of(keys(rows + number * BATCH, BATCH))
                nothing = SCHEMA.arrow().empty_table().select(["id"])
                net = NetChange("t", SCHEMA, BATCH, new, nothing, new.select(["id"]))
                begin = time.perf_counter()
                run_batch(spark, [TableWork(table, net, check)], ApplyOptions())
                seconds[check].append(time.perf_counter() - begin)
                table.discard()
            without, looked = (statistics.median(seconds[check][1:]) for check in (False, True))
            print(
                f"{BATCH:,} inserts with {name} keys into {rows:,} rows: not looked for "
                f"{without * 1e3:.0f} ms, looked for {looked * 1e3:.0f} ms",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
