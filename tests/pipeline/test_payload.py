"""Arrow data for tasks in the staging area: damage is an error, and not other rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import StorageError
from penstock.lakehouse.storage import Storage, local_path
from penstock.pipeline.change_item import StoredRows, read_stored
from penstock.pipeline.payload import INLINE_BYTES, SummedFile, payloads

ROWS = pa.table({"id": range(INLINE_BYTES // 4), "v": ["value"] * (INLINE_BYTES // 4)})


def flip(path: Path, at: int) -> None:
    """Change one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_payload_comes_back(tmp_path: Path) -> None:
    with payloads(Storage(str(tmp_path))) as made:
        assert made.put(ROWS).table().equals(ROWS)
        assert made.put(ROWS.slice(0, 10)).table().equals(ROWS.slice(0, 10))


@pytest.mark.parametrize("part", range(8))
def test_each_byte_of_a_payload_counts(tmp_path: Path, part: int) -> None:
    with payloads(Storage(str(tmp_path))) as made:
        payload = made.put(ROWS)
        path = Path(local_path(payload.uri or ""))
        flip(path, path.stat().st_size * part // 8)
        with pytest.raises(StorageError, match="its checksum is wrong") as found:
            payload.table()
    assert found.value.sqlstate == "XX001" and str(path) in found.value.message


def test_rows_of_a_share(tmp_path: Path) -> None:
    path = tmp_path / "share.arrow"
    with pa.OSFile(str(path), "wb") as target:
        file = SummedFile(target)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(file, ROWS.schema, options=options) as writer:
            runs = []
            for batch in ROWS.to_batches(max_chunksize=len(ROWS) // 3):
                writer.write_batch(batch)
                runs.append(file.take())
    stored = StoredRows(f"file://{path}", ROWS.schema, tuple(runs))
    assert pa.Table.from_batches(read_stored(stored, ["id", "v"])).equals(ROWS)
    last = replace(stored, runs=tuple(runs[2:]))
    assert 0 < last.size < stored.size
    for at in (10, stored.size // 2, stored.size - 10):
        other = tmp_path / f"{at}.arrow"
        other.write_bytes(path.read_bytes())
        flip(other, at)
        with pytest.raises(StorageError, match="its checksum is wrong"):
            list(read_stored(replace(stored, uri=f"file://{other}"), ["id"]))
    flip(path, 10)  # each run is checked by itself
    assert pa.Table.from_batches(read_stored(last, ["id"]))["id"][-1] == ROWS["id"][-1]
    path.write_bytes(path.read_bytes()[: stored.size // 2])
    with pytest.raises(StorageError, match="its checksum is wrong"):
        list(read_stored(last, ["id"]))
