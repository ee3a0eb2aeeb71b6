"""Fixture ``local_node``: nodes on the shared Spark session, stopped after the test."""

from __future__ import annotations

import contextlib
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
