"""``penstock doctor``: versions against the known matrix, and what to do about each mismatch."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.node import doctor as checks

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    conninfo: Annotated[
        str, typer.Option(help="Also check this publisher (a libpq connection string).")
    ] = "",
) -> None:
    """Check Python, Java, PySpark, Delta and PostgreSQL; exit status 1 when one must change."""
    findings = checks.check(conninfo=conninfo or None)
    table = Table(title="penstock doctor", title_justify="left")
    for column in ("component", "found", "wanted", "", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.status]
        table.add_row(
            finding.component,
            finding.found,
            finding.wanted,
            f"[{colour}]{finding.status}[/{colour}]",
            finding.remedy or "",
        )
    Console().print(table)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
