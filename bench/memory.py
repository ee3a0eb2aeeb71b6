"""``make bench-memory``: how much memory the work on wide rows and many files takes at its peak.

In: nothing but sizes. Out: a table: what was done, the peak resident memory of the driver's JVM,
its Python and the largest Python worker, and what bounds it. Each case has processes of its own,
so that none shows what another has left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import write_deltalake

from penstock import Node
from penstock.attribute import Attribute
from penstock.embedded import EmbeddedPostgres, NodeProcess, wait_until
from penstock.lakehouse.batches import BATCH_BYTES
from penstock.lakehouse.files import ROW_GROUP_BYTES, FileWriter
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.session import build_session
from penstock.lakehouse.storage import make_folder
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pipeline.change_item import ChangeItem, PublishedTable
from penstock.pipeline.compact import CompactOptions, compact
from penstock.pipeline.publish_changes import EncodedChanges, publish_changes
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.protocol.copy_both import xlog_data_head
from penstock.publication.members import Operation
from penstock.relation import Relation, ReplicaIdentity
from penstock_node import rows_at_cut
from process_tree import usages
from servers import Server

_MIB: Final = 1 << 20
_LONG: Final = 1800.0
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("v", pa.string())])


@dataclass(frozen=True)
class Case:
    """``bound``: what bounds it, and where it is configured."""

    what: str
    bound: str
    run: Callable[[argparse.Namespace, Path, Meter], None]


class Meter:
    """Peaks of resident memory of the processes below one, by what they are; MiB."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._left_out: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peaks: dict[str, int] = {"jvm": 0, "driver": 0, "worker": 0}

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def leave_out(self, process: int) -> None:
        """A process that is no part of what is measured."""
        self._left_out = process

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for usage in usages(self._root, self._left_out):
                self.peaks[usage.kind] = max(self.peaks[usage.kind], usage.mib)


# In a session of their own


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        spark = build_session(
            master="local[2]", driver_memory="1g", conf={"spark.sql.warehouse.dir": folder}
        )
        yield spark
        spark.stop()


def _compaction(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    """Equal wide values: they compress, so that many rows are in small files."""
    warehouse = Warehouse(str(folder), fsync=False)
    columns = TableSchema(
        (
            Column("id", Attribute("id", 20), pa.int64()),
            Column("v", Attribute("v", 25), pa.string()),
        ),
        ("id",),
    )
    table = warehouse.create("public", "wide", columns)
    rows = options.wide_rows // 8
    for number in range(8):
        writer = FileWriter(table.storage, table.uri, _SCHEMA)
        values = pa.array(["w" * 100_000] * 500)
        parts = (
            pa.table(
                [range(number * rows + start, number * rows + start + 500), values], _SCHEMA.names
            )
            for start in range(0, rows, 500)
        )
        table.stage(written=writer.write(part.cast(_SCHEMA) for part in parts))
        table.commit(app_id="bench", version_marker=number, operation="WRITE")
    with _session() as spark, meter:
        done = compact(spark, table, CompactOptions(small_files=2, small_bytes=1 << 40))
    assert done == 8


def _many_files(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    """One commit: as many inserts as updates, so that one table is divided by key."""
    warehouse = Warehouse(str(folder), fsync=False)
    uri = warehouse.table_uri("public", "many")
    make_folder(uri)
    values = pa.array(["v" * 400] * 2000)
    written = []
    for number in range(options.files):
        keys = range(number // 2 * 2000, number // 2 * 2000 + 2000)
        text = values if number % 2 else pa.array([f"{key:0400}" for key in keys])
        rows = pa.table([keys, text], _SCHEMA.names).cast(_SCHEMA)
        written += FileWriter(warehouse.storage, uri, _SCHEMA).write([rows])
    files = [ScanFile(file.path, file.size, file.rows) for file in written]
    relation = Relation(
        1,
        "public",
        "many",
        ReplicaIdentity.DEFAULT,
        (Attribute("id", 20, -1, key=True), Attribute("v", 25, -1)),
    )
    table = PublishedTable(
        relation,
        "public.many",
        tuple(ScanColumn(field.name, field.name, field.type) for field in _SCHEMA),
        ("id",),
        ("id",),
        {},
        frozenset(Operation),
    )
    header = xlog_data_head(Lsn(1), 0)
    updates = ChangeItem(0, table, uri, tuple(files[::2]), tuple(files[1::2]), header)
    inserts = [ChangeItem(1, table, uri, (), (file,), header) for file in files]
    changes = 0
    with _session() as spark, meter:
        for portion in publish_changes(
            spark, warehouse.storage, [updates, *inserts], staging=f"{folder}/staging"
        ):
            assert isinstance(portion, EncodedChanges), portion
            changes += portion.changes
    assert changes == 2000 * (options.files + options.files // 2), changes


# With servers: 100 MB values


@contextlib.contextmanager
def _node(folder: Path, parameters: dict[str, Any]) -> Iterator[tuple[NodeProcess, Node]]:
    folder.mkdir(parents=True, exist_ok=True)
    process = NodeProcess(folder / "node")
    process.init({"fsync": False, **parameters})
    node = Node(folder / "node")
    process.start()
    try:
        yield process, node
    finally:
        process.stop()


_VALUE: Final = "repeat(md5({0}::text), {1})"


def _large_values(table: str, options: argparse.Namespace, first: int) -> str:
    value = _VALUE.format("i", options.value_mb * 1_000_000 // 32)
    last = first + options.values - 1
    return f"INSERT INTO {table} SELECT i, {value} FROM generate_series({first}, {last}) i"


def _copied(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    with EmbeddedPostgres(18, settings={"autovacuum": False}, fsync=False) as cluster:
        _subscribe(options, folder, meter, cluster.conninfo(), stream=False)


def _streamed(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    with EmbeddedPostgres(18, settings={"autovacuum": False}, fsync=False) as cluster:
        _subscribe(options, folder, meter, cluster.conninfo(), stream=True)


def _subscribe(
    options: argparse.Namespace, folder: Path, meter: Meter, conninfo: str, *, stream: bool
) -> None:
    with closing(Server(conninfo)) as source, _node(folder, {}) as (process, node):
        source.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
        source.execute("CREATE PUBLICATION large FOR TABLE large")
        if not stream:
            source.execute(_large_values("large", options, 1))
        with contextlib.nullcontext() if stream else meter:
            node.sql(f"CREATE SUBSCRIPTION large CONNECTION '{conninfo}' PUBLICATION large")
            process.wait_until(
                lambda: rows_at_cut(process, node, "large") is not None, "the first cut", _LONG
            )
        if stream:
            with meter:
                source.execute(_large_values("large", options, 1))
                process.wait_until(
                    lambda: rows_at_cut(process, node, "large") == options.values, "all rows", _LONG
                )
        assert rows_at_cut(process, node, "large") == options.values


def _published(options: argparse.Namespace, folder: Path, meter: Meter) -> None:
    """A PostgreSQL 18 subscribes to a node's table; first its copy, then one commit."""
    meter.leave_out(os.getpid())  # it writes the values
    port = 5400 + os.getpid() % 1000
    hba = {"port": port, "hba": ["host all all 127.0.0.1/32 trust"]}
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
    with (
        EmbeddedPostgres(18, settings={"autovacuum": False}, fsync=False) as cluster,
        closing(Server(cluster.conninfo())) as target,
        _node(folder, hba) as (process, node),
    ):
        node.sql("CREATE ROLE bench LOGIN REPLICATION SUPERUSER")
        process.wait_until(lambda: _connects(conninfo), "the port", 120)
        with closing(Server(conninfo)) as lake, meter:
            lake.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
            _append(folder, options, 1)
            lake.execute("CREATE PUBLICATION large FOR TABLE large")
            target.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text)")
            target.execute(f"CREATE SUBSCRIPTION large CONNECTION '{conninfo}' PUBLICATION large")
            count = "SELECT count(*) = {} FROM large"
            wait_until(lambda: target.value(count.format(options.values)), "copy", _LONG, pause=0.2)
            _append(folder, options, options.values + 1)
            both = count.format(2 * options.values)
            wait_until(lambda: target.value(both), "stream", _LONG, pause=0.2)
        target.execute("DROP SUBSCRIPTION large")


def _append(folder: Path, options: argparse.Namespace, first: int) -> None:
    """By another writer, row by row: Spark's own ``INSERT`` needs more memory for such values."""
    table = folder / "node" / "warehouse" / "public" / "large"
    keys = range(first, first + options.values)
    parts = (
        pa.record_batch([[key], [f"{key:032}" * (options.value_mb * 1_000_000 // 32)]], _SCHEMA)
        for key in keys
    )
    write_deltalake(table, pa.RecordBatchReader.from_batches(_SCHEMA, parts), mode="append")


def _connects(conninfo: str) -> bool:
    with contextlib.suppress(Exception):
        Server(conninfo).close()
        return True
    return False


_CASES: Final = {
    "compaction": Case("compaction of rows of 100 kB", "maintenance_work_mem", _compaction),
    "files": Case("publishing one commit of many files", "logical_decoding_work_mem", _many_files),
    "copy": Case("initial copy of large values", "a few of the largest row", _copied),
    "stream": Case("stream of large values", "apply_queue_mem, largest row", _streamed),
    "publish": Case("publishing large values", "a few of the largest row", _published),
}


def main() -> int:
    """Run the cases that the options ask for."""
    options = _options()
    if options.case is not None:
        meter = Meter(os.getpid())
        with tempfile.TemporaryDirectory(prefix="penstock-memory-") as folder:
            _CASES[options.case].run(options, Path(folder), meter)
        print(json.dumps(meter.peaks))
        return 0
    print(f"{'':<40} {'JVM':>7} {'driver':>7} {'worker':>7}  bounded by")
    for name in options.cases:
        done = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--case", name],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        peaks = json.loads(done.stdout.splitlines()[-1])
        figures = " ".join(f"{peaks[kind]:>5} MB" for kind in ("jvm", "driver", "worker"))
        print(f"{_CASES[name].what:<40} {figures}  {_CASES[name].bound}", flush=True)
    batch, group = BATCH_BYTES // _MIB, ROW_GROUP_BYTES // _MIB
    print(f"a task reads {batch} MB at a time and writes row groups of {group} MB")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wide-rows", type=int, default=40_000, help="rows of 100 kB")
    parser.add_argument("--files", type=int, default=1300, help="of one commit")
    parser.add_argument("--values", type=int, default=5, help="large values of a table")
    parser.add_argument("--value-mb", type=int, default=100, help="bytes of a large value, in MB")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--case", choices=_CASES, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
