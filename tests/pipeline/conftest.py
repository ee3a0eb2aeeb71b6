"""Fixture ``published``: one warehouse with a catalog a module, to make published tables in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.published import PublishingLake


@pytest.fixture(scope="module")
def published(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishingLake]:
    """No server, no port: what ``Decoding`` gives is looked at as it is."""
    lake = PublishingLake(spark, tmp_path_factory.mktemp("published"))
    yield lake
    lake.close()
