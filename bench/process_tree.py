"""What the processes of a node use: resident memory and CPU time, from Linux's /proc.

In: a process whose descendants count. Out: figures by what they are: the JVM, the driver's Python,
Python workers. Servers of PostgreSQL do not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from processes import below

_MIB: Final = 1 << 20
_WORKERS: Final = {b"pyspark.daemon", b"penstock.pipeline.worker_daemon"}
"""Modules of which Spark's Python workers are forks."""
_SERVER: Final = re.compile(rb"(.*/)?postgres(:|$)")
"""The postmaster is called by its path, what it has started writes "postgres: " and what it is."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """``kind``: ``jvm``, ``driver`` or ``worker``. ``cpu``: seconds, with ended children;
    ``own_cpu``: without."""

    kind: str
    mib: int
    cpu: float
    process: int = 0
    own_cpu: float = 0.0


def usages(root: int, left_out: int | None = None) -> Iterator[Usage]:
    """Of ``root`` and all below it, but not of ``left_out`` and of servers."""
    for process in below(root):
        if process == left_out:
            continue
        # It may end at any moment.
        with contextlib.suppress(OSError, ValueError, IndexError):
            command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if _SERVER.match(command[0]):
                continue
            kind = "worker" if _WORKERS & set(command) else "driver"
            if command[0].endswith(b"java"):
                kind = "jvm"
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            mib = pages * _PAGE // _MIB
            yield Usage(kind, mib, _cpu(process), process, _cpu(process, children=False))


def resident(root: int, left_out: int | None = None) -> dict[str, int]:
    """MiB by kind, all processes of a kind together."""
    found = {"driver": 0, "jvm": 0, "worker": 0}
    for usage in usages(root, left_out):
        found[usage.kind] += usage.mib
    return found


def cpu_seconds(root: int, left_out: int | None = None) -> dict[str, float]:
    """By kind."""
    found = {"driver": 0.0, "jvm": 0.0, "worker": 0.0}
    for usage in usages(root, left_out):
        found[usage.kind] += usage.cpu
    return found


def cpu_by_process(root: int, left_out: int | None = None) -> dict[int, float]:
    """Seconds of each process, without its children. Spark ends idle workers, which nobody waits
    for, so a sum over all of them may become less."""
    return {usage.process: usage.own_cpu for usage in usages(root, left_out)}


def server_cpu_seconds(server: int) -> float:
    """Of a server of PostgreSQL with its backends."""
    total = 0.0
    for process in below(server):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += _cpu(process)
    return total


def _cpu(process: int, *, children: bool = True) -> float:
    # The name, in parentheses, may have blanks. utime, stime, cutime, cstime are 14 to 17.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11 : 15 if children else 13]) / _TICKS
