"""In which order the files of tests run: long ones first, so that the processes end together.

In: the collected tests. Out: the same, ordered by file: first those with a test that is marked as
slow, then those that use Spark, then the rest, which are many and short. Within a file nothing
changes. ``--no-loadscope-reorder`` keeps pytest-xdist from an order of its own. What only ``make
faults`` runs is marked as heavy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.heavy import is_heavy


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_heavy(item):
        item.add_marker("heavy")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    weights: dict[Path, int] = {}
    for item in items:
        weights[item.path] = max(weights.get(item.path, 0), _weight(item))
    items.sort(key=lambda item: -weights[item.path])


def _weight(item: pytest.Item) -> int:
    if item.get_closest_marker("slow"):
        return 2
    return 1 if "spark" in getattr(item, "fixturenames", ()) else 0
