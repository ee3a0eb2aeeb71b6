"""Kernels are the functions that they were made of, wherever and however they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from faults.heavy import in_make_faults
from penstock import kernel
from penstock.kernel import NUMBERS, Kernel

_READERS_AND_WRITERS = (
    "tests/pgoutput/test_columnar.py",
    "tests/pgoutput/test_columnar_encoder.py",
    "tests/pgoutput/test_decoder.py",
    "tests/pgtypes/test_families.py",
    "tests/pgtypes/test_output.py",
    "tests/pgtypes/test_refused.py",
    "tests/protocol/test_copy_block.py",
    "tests/protocol/test_copy_columns.py",
)
_FACTOR = 3


@kernel.part
def times(number: int) -> int:
    return number * _FACTOR


def total(numbers: NDArray[np.int64]) -> int:
    found = 0
    for number in numbers:
        found += times(number)
    return found


_TYPE = f"int64({NUMBERS})"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_a_kernel_is_compiled_once_for_all_processes(cache: Path) -> None:
    numbers = np.arange(5, dtype=np.int64)
    assert Kernel(total, _TYPE)(numbers) == 30
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert files
    assert Kernel(total, _TYPE)(numbers) == 30
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == files


def test_compiled_code_is_of_its_parts_and_constants(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba itself would find the code of the former constant in its cache."""
    former = kernel._cache(total, "")
    assert former == kernel._cache(total, "")
    monkeypatch.setitem(globals(), "_FACTOR", 2)
    assert kernel._cache(total, "") != former


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file" / "cache"))
    assert Kernel(total, _TYPE)(np.arange(5, dtype=np.int64)) == 30


def test_torn_files_in_the_cache(cache: Path) -> None:
    assert Kernel(total, _TYPE)(np.arange(5, dtype=np.int64)) == 30
    files = list(cache.rglob("*.nb?"))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:7])
    assert Kernel(total, _TYPE)(np.arange(5, dtype=np.int64)) == 30


def test_without_numba_python_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_numba", lambda: None)
    made = Kernel(total, _TYPE)
    assert made(np.arange(5, dtype=np.int64)) == 30
    assert made.compiled() is total


@pytest.mark.parametrize(
    "setting", [in_make_faults("NUMBA_DISABLE_JIT"), in_make_faults("NUMBA_BOUNDSCHECK")]
)
def test_readers_and_writers_with(setting: str, tmp_path: Path) -> None:
    """By Python the kernels are their own reference; with bounds checked, an index that is out of
    its array is an error."""
    environment = {**os.environ, setting: "1", "PENSTOCK_CACHE": str(tmp_path)}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n0",
            "-p",
            "no:cacheprovider",
            *_READERS_AND_WRITERS,
        ],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4000:]
