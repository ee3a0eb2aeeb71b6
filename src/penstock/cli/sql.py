"""``penstock sql "..."``: run statements, print notices and results as psql does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import NodeDir
from penstock.cli.table import aligned
from penstock.node import Node


def sql(
    statements: Annotated[
        str, typer.Argument(help="One or more statements separated by semicolons; - reads stdin.")
    ],
    directory: NodeDir = Path(),
) -> None:
    """Run SQL on a node, whether it is running or not."""
    text = sys.stdin.read() if statements == "-" else statements
    with Node(directory) as node:
        for result in node.execute(text):
            for notice in result.notices:
                typer.echo(notice.report(), err=True)
            if result.columns:
                typer.echo(aligned(result.columns, result.rows))
            else:
                typer.echo(result.tag)
