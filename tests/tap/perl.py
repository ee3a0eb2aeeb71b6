"""Perl, which PostgreSQL's tests are written in, and one test file run by it.

In: a test file, the keeper's socket, limits. Out: the file's output. Perl and its psqls are a
process group of their own, which is gone when ``run_file`` returns, whatever the file did.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded import clients
from penstock.errors import ConfigurationError

_LIB = Path(__file__).with_name("lib")
# Perl's own, but some systems split them from it.
_MODULES = ("Test::More", "JSON::PP", "IPC::Open3", "IO::Socket::UNIX", "Time::HiRes")


@dataclass(frozen=True)
class Limits:
    """Seconds for a file, a statement, a wait, and one for what was waited for in vain before."""

    file: float
    statement: float
    wait: float
    short_wait: float


def find_perl() -> str:
    """Perl with the modules that it takes. Raises ConfigurationError and says what to install."""
    perl = shutil.which("perl")
    if perl is None:
        raise ConfigurationError(
            "Perl was not found",
            detail="PostgreSQL's own tests are written in it.",
            hint="Install it (Debian, Ubuntu: apt-get install perl; Fedora: dnf install perl;"
            " macOS: brew install perl).",
        )
    missing = [module for module in _MODULES if not _has(perl, module)]
    if missing:
        raise ConfigurationError(
            f"Perl lacks modules: {', '.join(missing)}",
            hint="Install them (Debian, Ubuntu: apt-get install perl; Fedora: dnf install perl;"
            f" elsewhere: cpan {' '.join(missing)}).",
        )
    return perl


def _has(perl: str, module: str) -> bool:
    command = [perl, f"-M{module}", "-e", "1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_file(perl: str, test: Path, keeper: Path, limits: Limits, output: Path) -> bool:
    """Runs a file, its output into ``output``; false when it had to be killed at its limit."""
    environment = {
        **os.environ,
        "PERL5LIB": str(_LIB),
        "PGAPPNAME": test.stem,
        "PGCONNECT_TIMEOUT": "30",
        "PGCLIENTENCODING": "UTF8",
        "TAP_KEEPER": str(keeper),
        "TAP_PSQL": str(clients().program("psql")),
        "TAP_STATEMENT_TIMEOUT": str(limits.statement),
        "TAP_WAIT": str(limits.wait),
        "TAP_SHORT_WAIT": str(limits.short_wait),
    }
    with output.open("wb") as out:
        process = subprocess.Popen(
            [perl, str(test)],
            env=environment,
            cwd=output.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limits.file)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return True
