"""Tasks may run twice, and results are complete: each piece of work is answered exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from faults.heavy import part_of_make_faults
from penstock.errors import PenstockError, StorageError
from penstock.pipeline.job import Answer, check_answers
from penstock.pipeline.publish_changes import _read, _Stored
from penstock.publication.members import Operation

_PROGRAM = Path(__file__).with_name("attempts.py")


@part_of_make_faults
@pytest.mark.spark
def test_every_task_fails_after_its_work_and_runs_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_PROGRAM.parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["files"] == 1
    assert found["sent"] == 3000 + 1500 + 10
    assert found["copied"] == 2990
    assert found["attempts"] > 10
    assert found["touched"] == []  # nobody writes into what another attempt has written
    assert found["staged"] == []  # nor does anything stay of attempts that nobody was told of


@pytest.mark.parametrize("items", [[0], [0, 1, 1], [0, 1, 2], [0, 2]])
def test_a_lost_or_doubled_answer_is_an_error(items: list[int]) -> None:
    with pytest.raises(PenstockError, match="pieces of work"):
        check_answers([Answer(item, ()) for item in items], 2, "job")


def test_a_file_that_was_cut_short_is_found(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b"12345")
    with pytest.raises(StorageError, match="5 bytes, 8 were written") as found:
        _read(_Stored(0, Operation.INSERT, 1, str(path), 2, 6, 0))
    assert found.value.sqlstate == "XX001"


def test_a_file_with_another_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b"12345")
    stored = _Stored(0, Operation.INSERT, 1, str(path), 2, 3, zlib.crc32(b"345"))
    assert _read(stored).data == b"345"
    path.write_bytes(b"12344")
    with pytest.raises(StorageError, match="checksum") as found:
        _read(stored)
    assert found.value.sqlstate == "XX001" and str(path) in found.value.message
