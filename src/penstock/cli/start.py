"""``penstock start``: run a node in the foreground."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from penstock.cli.options import NodeDir
from penstock.cli.progress import ProgressDisplay
from penstock.node import Node


def start(directory: NodeDir = Path()) -> None:
    """Run the node: workers for every enabled subscription, until SIGINT or SIGTERM.

    The first signal stops after the current cut; the second stops at once.
    """
    stop = threading.Event()
    stop_on_signals(stop)
    with Node(directory) as node:
        node.start()
        with ProgressDisplay(node.status):
            node.wait_until(stop)


def stop_on_signals(stop: threading.Event) -> None:
    """First SIGINT or SIGTERM: set ``stop``. Second: end the process at once, as a crash would."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            print("stopping at once", file=sys.stderr)
            os._exit(128 + number)
        print("stopping after the current cut; again: stop at once", file=sys.stderr)
        stop.set()

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
