"""``penstock verify``: compare subscriptions' tables with the publishers'; print text or JSON.

Each table is a line, with some rows if it differs. On a terminal a bar shows the progress.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli import NodeDir
from penstock.node import Node
from penstock.node.verify import (
    Verification,
    VerifiedTable,
    VerifyOptions,
    VerifyProgress,
    as_json,
    row_text,
)

_KINDS: Final = {
    "missing": "missing at the node",
    "extra": "extra at the node",
    "doubled": "doubled at the node",
    "different": "different",
}
_BAR_WIDTH: Final = 20
_PARTIAL: Final = 3
"""The exit status if nothing differs, but not everything was compared. 2 is click's, for wrong
arguments."""


def verify(
    tables: Annotated[
        list[str] | None, typer.Argument(help="schema.table ...; none: all.", show_default=False)
    ] = None,
    directory: NodeDir = Path(),
    subscription: Annotated[
        str, typer.Option(help="The subscription; by default every one that is enabled.")
    ] = "",
    examples: Annotated[
        int, typer.Option(min=0, help="Rows of each kind of difference that are named, a table.")
    ] = 10,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that the node has to reach the publisher.")
    ] = 300.0,
    connections: Annotated[
        int, typer.Option(min=1, help="Sessions that read on the publisher at the same time.")
    ] = 4,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare every row with the publisher's, at one LSN.

    The node may run, and both may be written meanwhile. Exit status: 0 when all tables were
    compared whole and are equal; 3 when nothing differs, but columns that the node's tables lack
    were left out; else 1.
    """
    with Node(directory) as node, _Shown() as shown:
        options = VerifyOptions(examples, timeout, connections, shown)
        enabled = [status.name for status in node.status() if status.enabled]
        names: Sequence[str | None] = [subscription] if subscription else enabled or [None]
        found = [node.verify(tables or (), subscription=n, options=options) for n in names]
    if as_json_text:
        typer.echo(json.dumps([as_json(verification) for verification in found], indent=2))
    else:
        for verification in found:
            typer.echo("\n".join(lines(verification)))
    if not all(verification.equal for verification in found):
        partial = all(verification.equal or verification.partial for verification in found)
        raise typer.Exit(_PARTIAL if partial else 1)


def lines(verification: Verification) -> Iterator[str]:
    """Yield the lines for people."""
    yield f"subscription {verification.subscription} at {verification.lsn}"
    for table in verification.tables:
        yield from _table_lines(table)
    count = len(verification.tables)
    equal = sum(table.equal for table in verification.tables)
    left_out = sum(table.reason is not None for table in verification.tables)
    told = [f"{equal} of {count} tables equal"]
    partial = sum(table.partial for table in verification.tables)
    told += [f"{partial} in part"] if partial else []
    told += [f"{differ} different"] if (differ := count - equal - partial - left_out) else []
    told += [f"{left_out} not compared"] if left_out else []
    yield ", ".join(told)


def _table_lines(table: VerifiedTable) -> Iterator[str]:
    found = table.difference
    if found is None:
        yield f"  {table.name}: not compared: {table.reason}"
        return
    without = f", without columns {', '.join(table.lacking)}" if table.lacking else ""
    if not found.kinds:
        equal = "equal in part" if table.partial else "equal"
        yield f"  {table.name}: {equal}, {found.publisher_rows:,} rows{without}"
        return
    rows = f"{found.publisher_rows:,} rows at the publisher, {found.node_rows:,} at the node"
    yield f"  {table.name}: DIFFERENT, {rows}{without}"
    for kind, count in found.kinds.items():
        examples = [example for example in found.examples if example.kind == kind]
        least = "" if found.whole else "at least "
        shown = f", the first {len(examples)}:" if 0 < len(examples) < count else ":"
        yield f"    {least}{count:,} {_KINDS[kind]}{shown if examples else ''}"
        yield from (f"      {row_text(example)}" for example in examples)


class _Shown:
    """A bar on standard error, if that is a terminal. It disappears at the end."""

    def __init__(self) -> None:
        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR_WIDTH),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, doing="")

    def __enter__(self) -> _Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, now: VerifyProgress) -> None:
        rows = now.rows
        self._progress.update(
            self._task,
            description=now.subscription,
            doing=now.doing,
            completed=0 if rows is None else rows.bytes,
            total=None if rows is None else rows.bytes_total or None,
        )
