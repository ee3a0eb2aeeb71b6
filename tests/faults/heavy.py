"""Which tests are part of ``make faults`` only, being long."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

HEAVY: Final = "PENSTOCK_FAULT_CYCLES" in os.environ
"""``make faults``."""

REASON: Final = "part of make faults"
part_of_make_faults: Final = pytest.mark.skipif(not HEAVY, reason=REASON)


def is_heavy(item: pytest.Item) -> bool:
    """Whether ``make faults`` alone runs it, or runs more of it: its module knows ``HEAVY``."""
    skips = item.iter_markers("skipif")
    module = getattr(item, "module", None)
    return any(m.kwargs.get("reason") == REASON for m in skips) or hasattr(module, "HEAVY")


def in_make_faults(*values: Any, id: str | None = None) -> Any:
    """Values of a parametrized test that ``make faults`` tries, besides those of ``make test``."""
    return pytest.param(*values, marks=part_of_make_faults, id=id)
