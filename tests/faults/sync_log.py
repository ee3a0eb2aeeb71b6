"""Writes down every fsync, link and rename of all Python processes of a node, executors' too.

In: a folder, to be put on PYTHONPATH with ``environment``. Out: the calls with the monotonic time
at which they had returned. ``install`` runs inside those processes, by sitecustomize.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_VARIABLE: Final = "PENSTOCK_TEST_SYNC_LOG"
_SITE: Final = "import importlib.util, sys\nsys.path.insert(1, {folder!r})\nimport sync_log\n"
_SITE_LAST: Final = "sys.path.remove({folder!r})\nsync_log.install()\n"


@dataclass
class Calls:
    """``synced``: path -> times; ``source``: name -> (the name it was linked or renamed from,
    time)."""

    synced: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    source: dict[str, tuple[str, int]] = field(default_factory=dict)


def environment(folder: Path) -> Mapping[str, str]:
    """Variables for a node whose calls are to be written down; the log is ``folder/calls``."""
    folder.mkdir()
    here = str(Path(__file__).parent)
    site = _SITE.format(folder=here) + _SITE_LAST.format(folder=here)
    (folder / "sitecustomize.py").write_text(site, encoding="utf-8")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(folder), *([before] if before else [])])
    return {"PYTHONPATH": path, _VARIABLE: str(folder / "calls")}


def read(folder: Path) -> Calls:
    """What was written down."""
    calls = Calls()
    for line in (folder / "calls").read_text("utf-8").splitlines():
        at, kind, path, source = line.split("\t")
        if kind == "fsync":
            calls.synced[path].append(int(at))
        else:
            calls.source.setdefault(path, (source, int(at)))
    return calls


def install() -> None:
    """Wrap the calls of this process."""
    log = os.open(os.environ[_VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(kind: str, path: str, source: str = "") -> None:
        # One write, so that lines of several processes do not mix.
        os.write(log, f"{time.monotonic_ns()}\t{kind}\t{path}\t{source}\n".encode())

    def on_descriptor(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def wrapped(file: Any) -> None:
            call(file)
            number = file if isinstance(file, int) else file.fileno()
            note("fsync", str(Path(f"/proc/self/fd/{number}").readlink()))

        return wrapped

    def on_names(call: Callable[..., None]) -> Callable[..., None]:
        def wrapped(source: Any, target: Any, **options: Any) -> None:
            call(source, target, **options)
            note("name", str(Path(target).absolute()), str(Path(source).absolute()))

        return wrapped

    os.fsync = on_descriptor(os.fsync)  # type: ignore[assignment]
    os.fdatasync = on_descriptor(os.fdatasync)  # type: ignore[assignment]
    os.link = on_names(os.link)
    os.replace = on_names(os.replace)
    os.rename = on_names(os.rename)
