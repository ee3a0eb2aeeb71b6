"""What a copy refuses, without a server: bytes of unknown types, and files that lack rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import FeatureNotSupported, PenstockError, StorageError
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.schema import Column
from penstock.lakehouse.storage import Storage
from penstock.pipeline import snapshot_task
from penstock.pipeline.generated import GeneratedColumns
from penstock.pipeline.snapshot_task import CopyTask
from penstock.relation import Attribute

_SCHEMA = pa.schema([("v", pa.string())])


def task(folder: Path) -> CopyTask:
    return CopyTask(
        number=0,
        table="public.t",
        conninfo="",
        snapshot_name="",
        queries=(),
        columns=(Attribute("v", 25, -1, False),),
        schema=_SCHEMA,
        targets=(Column("v", "v", pa.string()),),
        generated=GeneratedColumns("public.t"),
        storage=Storage(str(folder), fsync=False),
        table_uri=str(folder),
        batch_bytes=1,
        target_file_bytes=1 << 20,
    )


def opaque(type_name: str, storage: pa.DataType) -> pa.DataType:
    return pa.opaque(storage, type_name, "PostgreSQL")


def test_bytes_of_a_type_that_the_driver_does_not_know(tmp_path: Path) -> None:
    unknown = opaque("jsonb", pa.binary())
    values = pa.ExtensionArray.from_storage(unknown, pa.array([b"\x01{}"], pa.binary()))
    batch = pa.RecordBatch.from_arrays([values], ["v"])
    with pytest.raises(FeatureNotSupported, match='values of type "jsonb"') as caught:
        snapshot_task._convert(batch, task(tmp_path), 0)
    assert caught.value.detail == 'Table "public.t", column "v".'
    with pytest.raises(FeatureNotSupported):
        snapshot_task._refuse_opaque(pa.list_(unknown))
    text = opaque("numeric", pa.string())
    values = pa.ExtensionArray.from_storage(text, pa.array(["1.5"], pa.string()))
    batch = pa.RecordBatch.from_arrays([values], ["v"])
    assert snapshot_task._convert(batch, task(tmp_path), 0).column(0).to_pylist() == ["1.5"]


def test_rows_and_lengths_are_compared(tmp_path: Path) -> None:
    (file,) = FileWriter(Storage(str(tmp_path), fsync=False), str(tmp_path), _SCHEMA).write(
        [pa.record_batch([pa.array(["a", "b"])], schema=_SCHEMA)]
    )
    snapshot_task._check([(0, file)], 2, task(tmp_path))
    with pytest.raises(PenstockError, match="wrote 2 rows of 3"):
        snapshot_task._check([(0, file)], 3, task(tmp_path))
    torn = WrittenFile(file.path, file.size + 1, file.rows, file.stats)
    with pytest.raises(StorageError, match=f"has {file.size} bytes of {file.size + 1}"):
        snapshot_task._check([(0, torn)], 2, task(tmp_path))
