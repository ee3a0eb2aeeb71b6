"""``penstock run --until-caught-up``: follow the publishers to where they are now, then end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import NodeDir
from penstock.cli.progress import ProgressDisplay
from penstock.cli.stopping import SIGNALLED, StopSignals
from penstock.node import Node
from penstock.node.catching_up import CaughtUp


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

    Exit status: 0 when all are caught up (without --until-caught-up: after SIGINT or SIGTERM); 1
    after an error, which a subscription that has stopped and the end of the time are; 130 or 143
    when SIGINT or SIGTERM came before all were caught up.
    """
    signals = StopSignals()
    signals.listen()
    reached: Sequence[CaughtUp] = ()
    with Node(directory) as node:
        node.start()
        with ProgressDisplay(node.status):
            if until_caught_up:
                reached = node.wait_until_caught_up(timeout, signals.stop)
            else:
                node.wait_until(signals.stop)
    if not until_caught_up:
        typer.echo("stopped")
        return
    for subscription in reached:
        typer.echo(subscription.text())
    if not all(subscription.reached for subscription in reached):
        raise typer.Exit(SIGNALLED + (signals.number or 0))
    typer.echo("caught up" if reached else "no subscription is enabled")
