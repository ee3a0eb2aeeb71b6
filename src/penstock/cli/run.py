"""``penstock run --until-caught-up``: follow the publishers to where they are now, then end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import NodeDir
from penstock.cli.progress import ProgressDisplay
from penstock.cli.start import stop_on_signals
from penstock.node import Node


def run(
    directory: NodeDir = Path(),
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when every subscription is caught up.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which to give up (exit status 1).")
    ] = 3600.0,
) -> None:
    """Run the node once, for cron or Airflow.

    Caught up: every table is part of a cut at or behind the publisher's WAL position at the start.
    """
    stop = threading.Event()
    stop_on_signals(stop)
    with Node(directory) as node:
        node.start()
        with ProgressDisplay(node.status):
            if until_caught_up:
                node.wait_until_caught_up(timeout, stop)
            else:
                node.wait_until(stop)
    typer.echo("caught up" if until_caught_up else "stopped")
