"""Which tests are part of ``make faults`` only, being long."""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

HEAVY: Final = "PENSTOCK_FAULT_CYCLES" in os.environ
"""``make faults``."""

part_of_make_faults: Final = pytest.mark.skipif(not HEAVY, reason="part of make faults")


def in_make_faults(*values: Any, id: str | None = None) -> Any:
    """Values of a parametrized test that ``make faults`` tries, besides those of ``make test``."""
    return pytest.param(*values, marks=part_of_make_faults, id=id)
