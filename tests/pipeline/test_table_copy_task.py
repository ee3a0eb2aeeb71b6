"""What a copy refuses, without a server: files that lack rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.attribute import Attribute
from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import Storage
from penstock.pipeline import table_copy_task
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.table_copy_task import CopyTask
from penstock.walreceiver.conninfo import ConnInfo

_SCHEMA = pa.schema([("v", pa.string())])


def task(folder: Path) -> CopyTask:
    return CopyTask(
        number=0,
        table="public.t",
        conninfo=ConnInfo(""),
        application_name="penstock test",
        snapshot_name="",
        queries=(),
        columns=(Attribute("v", 25),),
        schema=_SCHEMA,
        targets=(Column("v", Attribute("v", 0), pa.string()),),
        generated=GeneratedColumns("public.t"),
        storage=Storage(str(folder), fsync=False),
        table_uri=str(folder),
        batch_bytes=1,
        target_file_bytes=1 << 20,
    )


def test_rows_and_lengths_are_compared(tmp_path: Path) -> None:
    (file,) = FileWriter(Storage(str(tmp_path), fsync=False), str(tmp_path), _SCHEMA).write(
        [pa.record_batch([pa.array(["a", "b"])], schema=_SCHEMA)]
    )
    table_copy_task._check([(0, file)], 2, task(tmp_path))
    with pytest.raises(PenstockError, match="wrote 2 rows of 3"):
        table_copy_task._check([(0, file)], 3, task(tmp_path))
    torn = WrittenFile(file.path, file.size + 1, file.rows, file.stats)
    with pytest.raises(StorageError, match=f"has {file.size} bytes of {file.size + 1}"):
        table_copy_task._check([(0, torn)], 2, task(tmp_path))
