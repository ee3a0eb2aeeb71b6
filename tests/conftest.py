"""Names the fixture plugins; the fixtures themselves are in the files fix_*.py beside this one."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from hypothesis import settings

from jvm import options

# Machines are busy, and no test is of speed.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")

# Thousands of tests are objects that stay: to look through them often is a tenth of the quick lane.
gc.set_threshold(100_000, 50, 100)

os.environ.setdefault("SPARK_SUBMIT_OPTS", options())
# Hundreds of programs and workers start here: compiling the package each time is a fifth of that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_HERE = Path(__file__).parent

pytest_plugins = sorted(path.stem for path in _HERE.glob("fix_*.py"))
