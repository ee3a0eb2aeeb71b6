"""A node without a server, for statements one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.both import Ours


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Ours]:
    ours = Ours(tmp_path, "lake")
    with ours.catalog:
        yield ours
