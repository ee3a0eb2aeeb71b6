"""What the command line logs: each line says once how bad it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

_LINES = """
import logging
from penstock.cli.main import log_to_standard_error
log_to_standard_error()
logging.getLogger("a").info("began %s", 1)
logging.getLogger("a").error("ERROR:  it failed\\nHINT:  Mend it.")
logging.getLogger("a").warning("WARNING:  it is late")
"""
_COMMAND = "from penstock.cli.main import main; main()"


def _run(program: str, level: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, "status"],
        env={**os.environ, "PENSTOCK_LOG": level},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("level", ["INFO", "info"])
def test_lines_have_one_level(level: str) -> None:
    lines = _run(_LINES, level).stderr.splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \S+ ", "", line) for line in lines] == [
        "INFO:  began 1",
        "ERROR:  it failed",
        "HINT:  Mend it.",
        "WARNING:  it is late",
    ]


def test_an_unknown_level_is_named() -> None:
    done = _run(_COMMAND, "nonsense")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'ERROR:  invalid value for environment variable PENSTOCK_LOG: "nonsense"',
        "HINT:  Available values: DEBUG, INFO, WARNING, ERROR.",
    ]
