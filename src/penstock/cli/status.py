"""``penstock status``: show every subscription and table once, repeatedly, or as JSON."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.catalog.publisher_identity import alter
from penstock.cli import NodeDir
from penstock.node import Node
from penstock.node.status import ProcessSilence, SubscriptionStatus, TableStatus, as_json, health

# Amounts for people: bytes as pg_size_pretty prints them (dbsize.c), and the speed of copies.
# Clocks are passed in.

_UNITS: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
_UNIT: Final = 1024
_AS_THEY_ARE: Final = 10 * _UNIT
"""The next unit is used from ten of it on."""


def amount(size: int | None) -> str:
    """Return a size as pg_size_pretty prints it; - when unknown."""
    if size is None:
        return "-"
    value, unit = float(size), 0
    while round(value) >= _AS_THEY_ARE and unit < len(_UNITS) - 1:
        value, unit = value / _UNIT, unit + 1
    return f"{value:.0f} {_UNITS[unit]}"


_WINDOW_S: Final = 30.0
"""Seconds over which a rate is taken. Over less it would jump: parts end in bursts."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a copy. ``bytes``, ``rows``: per second; ``left``: seconds to the end, None
    while unknown."""

    bytes: float
    rows: float
    left: float | None


class Pace:
    """The recent progress of one copy."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def see(self, at: float, done: int, total: int, rows: int) -> Speed:
        """Record ``done`` of ``total`` bytes, and ``rows``, at a time in seconds; return the
        speed."""
        if self._seen and done < self._seen[-1][1]:  # the copy has begun again
            self._seen.clear()
        self._seen.append((at, done, rows))
        while len(self._seen) > 2 and self._seen[1][0] <= at - _WINDOW_S:
            self._seen.popleft()
        since, done_then, rows_then = self._seen[0]
        elapsed = at - since
        if elapsed <= 0 or done <= done_then:
            return Speed(0.0, 0.0, None)
        speed = (done - done_then) / elapsed
        return Speed(speed, (rows - rows_then) / elapsed, (total - done) / speed)


_WATCH_INTERVAL: Final = 1.0
_PATIENCE: Final = 3.0
"""Seconds within which publishers must answer if the node does not run."""


def status(
    directory: NodeDir = Path(),
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again every second.")] = False,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every subscription: state, lag, rows and errors.

    Also positions and retained WAL. Exit status, the first that holds: 4 when a subscription needs
    a person (an error has stopped it, a table is parked, its slot is gone or lost); 3 when no
    process runs the node; 6 when its process does not respond, or waits for storage or Spark while
    changes wait; 5 when an enabled subscription does not follow at the moment, and tries again by
    itself; else 0. 1: the node's state cannot be read.
    """
    with Node(directory) as node:
        found, silence = node.status(patience=_PATIENCE), node.process_silence()
        if as_json_text:
            typer.echo(json.dumps(as_json(found), indent=2))
        elif not watch:
            Console().print(picture(found, silence))
        else:
            found, silence = _watch(node, found, silence)
        raise typer.Exit(health(found, running=node.running, responds=silence is None))


def _watch(
    node: Node, found: Sequence[SubscriptionStatus], silence: ProcessSilence | None
) -> tuple[Sequence[SubscriptionStatus], ProcessSilence | None]:
    """Draw until Ctrl-C. Return the last status drawn."""
    with Live(picture(found, silence), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(_WATCH_INTERVAL)
                found, silence = node.status(patience=_PATIENCE), node.process_silence()
                live.update(picture(found, silence), refresh=True)
        except KeyboardInterrupt:
            return found, silence


def picture(
    subscriptions: Sequence[SubscriptionStatus], silence: ProcessSilence | None = None
) -> RenderableType:
    """Return an overview of each subscription, with its tables, errors and warnings, after why the
    node's process does not respond."""
    parts: list[RenderableType] = [] if silence is None else [_not_responding(silence), Text("")]
    if not subscriptions:
        what = 'no subscriptions; make one with: penstock sql "CREATE SUBSCRIPTION ..."'
        return Group(*parts, Text(what))
    for subscription in subscriptions:
        parts += [_overview(subscription), _tables(subscription)]
        parts += [_table_error(table) for table in subscription.tables if table.error]
        parts += [_unfilled(subscription, table) for table in subscription.tables if table.unfilled]
        if any(table.verify_result for table in subscription.tables):
            parts.append(_verified(subscription))
        parts.append(Text(""))
    return Group(*parts)


def _not_responding(silence: ProcessSilence) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    rows = [("node", "[not responding]"), ("error", silence.message), ("hint", silence.hint)]
    for name, value in rows:
        lines.add_row(Text(name, style="bold"), Text(value))
    return lines


def _overview(s: SubscriptionStatus) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lag_seconds = "" if s.lag_seconds is None else f" ({s.lag_seconds:.1f} s at most)"
    rows = [
        ("subscription", f"{s.name}  [{s.state}]"),
        ("publications", ", ".join(s.publications)),
        ("received / cut", f"{s.received_lsn or '-'} / {s.cut_lsn or '-'}"),
        ("lag", f"{amount(s.lag_bytes)}{lag_seconds}"),
        ("rows applied", f"{s.rows_applied:,}  ({s.rows_per_second:,.0f}/s)"),
        ("last cut", _ago(s.cut_age_seconds)),
        ("publisher heard", _ago(s.publisher_age_seconds)),
        ("retained WAL", f"{amount(s.retained_wal_bytes)}  (slot {_slot(s)})"),
    ]
    if s.error:
        rows.append(("last error", s.error))
        rows += [("detail", s.error_detail)] if s.error_detail else []
        rows += [("hint", s.error_hint)] if s.error_hint else []
    for name, value in rows:
        lines.add_row(Text(name, style="bold"), Text(value))
    return lines


def _ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{timedelta(seconds=round(seconds))} ago"


def _slot(s: SubscriptionStatus) -> str:
    return (s.slot_name or "none") + (f", {s.wal_status}" if s.wal_status else "")


def _tables(subscription: SubscriptionStatus) -> RenderableType:
    table = Table(show_edge=False)
    for column in ("table", "state", "lsn", "rows copied", "rows applied", "version"):
        justify = "right" if column not in ("table", "state", "lsn") else "left"
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for t in subscription.tables:
        copied = f"{t.rows_copied:,}"
        if t.state == "d" and t.bytes_total:
            copied += f" ({100 * t.bytes_copied // t.bytes_total} %)"
        table.add_row(
            t.name,
            t.state,
            str(t.lsn or ""),
            copied,
            f"{t.rows_applied:,}",
            "" if t.version is None else str(t.version),
        )
    return table


def _unfilled(subscription: SubscriptionStatus, table: TableStatus) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    what = f"rows from before a column was added lack its value: {', '.join(table.unfilled)}"
    lines.add_row(Text(f"warning of {table.name}", style="bold"), Text(what))
    hint = f"Run {alter(subscription.name)} REFRESH TABLE {table.name}."
    lines.add_row(Text("hint", style="bold"), Text(hint))
    return lines


def _verified(subscription: SubscriptionStatus) -> RenderableType:
    ages = [t.verified_seconds for t in subscription.tables if t.verified_seconds is not None]
    told = f"{len(ages)} of {len(subscription.tables)} tables found equal to the publisher's"
    longest = f", the first of them {_ago(max(ages))}" if ages else ""
    return Text(f"verified: {told}{longest}")


def _table_error(table: TableStatus) -> RenderableType:
    lines = Table.grid(padding=(0, 2))
    lines.add_row(Text(f"error of {table.name}", style="bold"), Text(table.error or ""))
    for name, value in (("detail", table.error_detail), ("hint", table.error_hint)):
        if value:
            lines.add_row(Text(name, style="bold"), Text(value))
    return lines
