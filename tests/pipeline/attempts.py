"""A program: every task of a job fails once after it has done all its work, and is run again.

In: a folder. Out: JSON on standard output, what ``test_attempts`` looks at. A session that lets
tasks fail cannot be had beside the tests' own, so it has a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import penstock.pipeline.compact as compact
import penstock.pipeline.copy_to as copy_to
import penstock.pipeline.job as job
import penstock.pipeline.publish_changes as publish_changes
from penstock.lakehouse.session import build_session
from penstock.pipeline.compact import CompactOptions
from penstock.pipeline.scan import ScanColumn
from penstock.pipeline.table_work import ApplyOptions
from pipeline.history import Publisher
from pipeline.lake import Lake
from pipeline.published import PublishingLake

ROWS = 3000
_once = job.run_task
_HERE = (
    (compact, "HERE_SECONDS"),
    (copy_to, "HERE_BYTES"),
    (publish_changes, "HERE_BYTES"),
)
"""Up to which size work has no tasks."""
_folder = Path(sys.argv[1])


def _written() -> dict[str, int]:
    """Files of the warehouses with the time of their last change."""
    found = {}
    for path in _folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and (path.suffix == ".parquet" or "staging" in path.parts):
                found[str(path)] = path.stat().st_mtime_ns
    return found


def twice(
    run: Callable[[Any], Iterable[Any]], partitions: Iterable[tuple[tuple[int, Any], ...]]
) -> Iterator[job.Answer]:
    """The second attempt must leave alone what the first has written."""
    context = TaskContext.get()
    assert context is not None
    note = _folder / f"stage-{context.stageId()}-{context.partitionId()}"
    answers = list(_once(run, partitions))
    if context.attemptNumber() == 0:
        note.write_text(json.dumps(_written()))
        raise RuntimeError("this attempt is lost after it has done its work")
    before, now = json.loads(note.read_text()), _written()
    touched = [path for path, time in before.items() if now.get(path, time) != time]
    (_folder / f"{note.name}.again").write_text(json.dumps(touched))
    yield from answers


def apply_and_compact(lake: Lake) -> dict[str, object]:
    source = Publisher({"a": pa.int32(), "b": pa.string()}, ("a",))
    table = lake.create(source)
    for start in (0, 100):
        for a in range(100):
            source.insert({"a": start + a, "b": "b" * 20})
        source.update(start, {"b": "updated"})
        lake.follow(table, source)
    compact.compact(lake.spark, table, CompactOptions(small_files=2))
    lake.check(table, source)
    return {"files": len(table.files)}


def copy(lake: Lake, uri: str, version: int) -> dict[str, object]:
    columns = tuple(
        copy_to.CopyColumn(ScanColumn(name, name, kind), oid)
        for name, kind, oid in (("id", pa.int32(), 23), ("v", pa.string(), 25))
    )
    staging = f"{lake.warehouse.uri}/_penstock/staging"
    parts = list(
        copy_to.copy_to(
            lake.spark,
            lake.warehouse.storage,
            [copy_to.CopyTable(uri, version, columns)],
            staging=staging,
        )
    )
    return {"copied": sum(rows for rows, _ in parts)}


def publish(publishing: PublishingLake) -> tuple[dict[str, object], str]:
    table = publishing.table("p", "id INT, v STRING")
    subscriber = table.follow()
    table.run(f"INSERT INTO {{t}} SELECT CAST(id AS INT), repeat('v', 50) FROM range({ROWS})")
    sent = len(subscriber.catch_up())
    table.run("UPDATE {t} SET v = upper(v) WHERE id % 2 = 0", "DELETE FROM {t} WHERE id < 10")
    sent += len(subscriber.catch_up())
    return {"sent": sent, "version": subscriber.version}, table.uri


def main() -> None:
    spark = build_session(
        master="local[2,4]",
        driver_memory="800m",
        conf={"spark.sql.warehouse.dir": str(_folder), "spark.log.level": "OFF"},
    )
    job.run_task = twice
    publish_changes._INLINE_BYTES = 100  # type: ignore[misc]
    copy_to._FIRST_WAVE_BYTES = 1 << 14  # type: ignore[misc]  # the calling thread makes it
    for module, name in _HERE:
        setattr(module, name, 0)
    lake = Lake(spark, _folder / "applied", ApplyOptions(here_seconds=0))
    found = apply_and_compact(lake)
    publishing = PublishingLake(spark, _folder / "published")
    publishing.work_mem = 1 << 14  # changes are divided among tasks
    sent, uri = publish(publishing)
    found |= sent
    found |= copy(lake, uri, int(str(sent["version"])))
    publishing.close()
    again = [json.loads(path.read_text()) for path in _folder.glob("*.again")]
    found |= {"attempts": len(again), "touched": [path for paths in again for path in paths]}
    found["staged"] = [path for path in _written() if "staging" in path]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
