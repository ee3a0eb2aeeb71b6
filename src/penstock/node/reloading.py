"""The present parameters, and reading them again (guc-file.l, ProcessConfigFile).

In: a node's folder. Out: its ``Parameters``, which a reload may replace: their users ask for them
each time. A file with a mistake changes nothing. A parameter that needs a restart (not in
``guc.RELOADED``) is logged and keeps its value; the others take effect at once.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.backend.hba import parse_rules
from penstock.errors import PenstockError
from penstock.node import guc
from penstock.node.claims import running_process
from penstock.node.guc import Parameters

log = logging.getLogger(__name__)

RECEIVED: Final = "received SIGHUP, reloading configuration files"


class LiveParameters:
    """The parameters of a node; ``now`` has the present ones. Raises ConfigurationError if the
    folder is no node's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.now: Parameters = guc.load(folder)

    def reload(self) -> None:
        """Read the file again. Raises PenstockError if it has a mistake; nothing has changed
        then."""
        with self._lock:
            wanted = guc.load(self._folder)
            parse_rules(wanted.hba)
            changed = dict(_differences(self.now, wanted))
            fixed = [name for name in changed if name not in guc.RELOADED]
            taken = {name: getattr(wanted, name) for name in changed if name in guc.RELOADED}
            self.now = replace(self.now, **taken)
            for name in taken:
                log.info('parameter "%s" changed to "%s"', name, changed[name])
            for name in fixed:
                log.warning('parameter "%s" cannot be changed without restarting the server', name)
            if fixed:
                log.warning(
                    'configuration file "%s" contains errors; unaffected changes were applied',
                    self._folder / guc.FILE_NAME,
                )


def reload_told(folder: Path, reload: Callable[[], None]) -> None:
    """Reload as a server does on SIGHUP: errors go to the log."""
    log.info("%s", RECEIVED)
    try:
        reload()
    except PenstockError as error:
        log.error("%s", error.report())
        log.error(
            'configuration file "%s" contains errors; no changes were applied',
            folder / guc.FILE_NAME,
        )


def signal_running(folder: Path) -> None:
    """Have the process that runs the node reload (pg_reload_conf). Raises OSError if there is none,
    or if the signal would end it."""
    process = running_process(folder)
    if process is None:
        raise ProcessLookupError("No such process")
    if not process.hears_sighup:
        raise OSError(f"process {process.pid} does not handle SIGHUP, use Node.reload() in it")
    os.kill(process.pid, signal.SIGHUP)


def _differences(now: Parameters, wanted: Parameters) -> Iterator[tuple[str, str]]:
    """Yield names and new values; names in ``[spark]`` look like ``spark.master``."""
    yield from _of(now, wanted, "")
    yield from _of(now.spark, wanted.spark, "spark.")


def _of(now: Any, wanted: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for known in dataclasses.fields(now):
        value = getattr(wanted, known.name)
        if "kind" in known.metadata and value != getattr(now, known.name):
            yield f"{prefix}{known.name}", known.metadata["kind"].show(value).strip('"')
