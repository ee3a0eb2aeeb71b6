"""Which tests are part of ``make faults`` only, being long."""

from __future__ import annotations

import os
from typing import Final

import pytest

part_of_make_faults: Final = pytest.mark.skipif(
    "PENSTOCK_FAULT_CYCLES" not in os.environ, reason="part of make faults"
)
