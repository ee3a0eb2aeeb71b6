"""The files that tools/dump_catalogs.py has written are what servers have today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.postgres
@pytest.mark.slow
def test_files_of_catalogs_are_those_of_servers() -> None:
    command = [sys.executable, "tools/dump_catalogs.py", "builtin", "sessions", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
