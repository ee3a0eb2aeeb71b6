"""The catalog of a node, without the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.catalog.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """An empty one, in SQLite."""
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        yield catalog


def upgraded(url: str) -> Catalog:
    """Open the catalog of an older Penstock as the node's start does."""
    opened = Catalog.open(url)
    opened.upgrade()
    return opened
