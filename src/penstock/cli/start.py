"""``penstock start``: run a node in the foreground."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.options import NodeDir
from penstock.cli.progress import ProgressDisplay
from penstock.cli.stopping import StopSignals
from penstock.node import Node


def start(directory: NodeDir = Path()) -> None:
    """Run the node: workers for every enabled subscription, until SIGINT or SIGTERM.

    The first signal stops after the current cut, with exit status 0; the second stops at once, with
    128 and the signal's number (130, 143).
    """
    signals = StopSignals()
    signals.listen()
    with Node(directory) as node:
        node.start()
        with ProgressDisplay(node.status):
            node.wait_until(signals.stop)
