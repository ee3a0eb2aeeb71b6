"""``penstock sql "..."``: run statements, print notices and results as psql does.

In: statements as an argument or on standard input. Out: tables in psql's aligned format, command
tags, and notices on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import NodeDir
from penstock.node import Node


def align(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns under their centred names, NULL as nothing, and the count of rows."""
    cells = [[_text(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[i]) for row in cells)) if cells else len(name)
        for i, name in enumerate(columns)
    ]
    lines = [
        "|".join(f" {name.center(width)} " for name, width in zip(columns, widths, strict=True)),
        "+".join("-" * (width + 2) for width in widths),
    ]
    lines += [
        "|".join(f" {cell.ljust(width)} " for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(lines)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "t" if value else "f"
        case list() | tuple():
            return "{" + ",".join(_text(item) for item in value) + "}"
        case _:
            return str(value)


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
                typer.echo(align(result.columns, result.rows))
            else:
                typer.echo(result.tag)
