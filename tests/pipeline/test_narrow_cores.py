"""Where the node uses all cores of a local master itself, and in which order it answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.pipeline.job import HERE_SECONDS_IF_NARROW, narrow_cores, run_job


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[1]", 1),
        ("local[4]", 4),
        ("local[2,3]", 2),
        ("local[5]", None),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_few_cores_of_this_machine(master: str, cores: int | None) -> None:
    assert narrow_cores(master) == cores


def test_all_cores_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert narrow_cores("local[*]") == narrow_cores("local[*, 4]") == 2
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert narrow_cores("local[*]") is None


def _twice(item: int) -> Iterator[tuple[int, int]]:
    yield item, 1
    yield item, 2


@pytest.mark.parametrize("cost", [0.001, 1.0])
def test_results_come_in_the_order_of_the_items(cost: float) -> None:
    spark: Any = None  # it is not asked
    items = [(cost * (1 + number % 3), number) for number in range(7)]
    found = run_job(spark, items, _twice, "here", here=HERE_SECONDS_IF_NARROW * 2)
    assert found == [(number, n) for number in range(7) for n in (1, 2)]
