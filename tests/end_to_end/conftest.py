"""Nodes on the shared Spark session, stopped after the test, and a small disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.local_node import LocalNode


@pytest.fixture
def local_node(spark: Any, tmp_path: Path) -> Iterator[Callable[..., LocalNode]]:
    """``local_node(apply_queue_mem="2MB")``: a started node with parameters."""
    with contextlib.ExitStack() as stack:

        def start(**parameters: Any) -> LocalNode:
            folder = tmp_path / f"node-{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(LocalNode(folder, spark, parameters))

        yield start


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
