"""``penstock`` and its commands. Commands that run a node or show one are in files of their own.

The exit status is 0, or 1 with ``ERROR:``, ``DETAIL:`` and ``HINT:`` lines on standard error, as
psql prints them; 2 for wrong arguments.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer
from rich.console import Console
from rich.table import Table

from penstock.catalog.publisher_identity import create_anew
from penstock.cli import NodeDir, run, status, verify
from penstock.errors import ConfigurationError, PenstockError, SparkLost
from penstock.identifiers import simple_quote_literal
from penstock.node import Node, recovery
from penstock.node import doctor as checks
from penstock.sql.text.quoting import quote_identifier
from penstock.wait_event import left_behind

_LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_SPARK_LOST: Final = 7
"""The exit status of a node whose Spark has ended and cannot be started again in its process."""
_BEGINS_WITH_LEVEL: Final = re.compile(r"[A-Z]+:  ")

# ``penstock sql "..."``: run statements, print notices and results as psql does.


def align(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns under their centred names, with nothing for NULL, and the count of rows."""
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


def init(
    directory: Annotated[Path, typer.Argument(help="Folder of the new node.")],
    warehouse: Annotated[
        str, typer.Option(help="Folder or URI of the Delta tables (default: inside the node).")
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            help="URL of the state store: postgresql://user@host/database (default: SQLite inside"
            " the node)."
        ),
    ] = "",
    recover: Annotated[
        bool,
        typer.Option("--recover", help="Make a lost state, or a lost penstock.toml, again."),
    ] = False,
) -> None:
    """Make a node: a folder with its parameters and its state."""
    if recover:
        _recover(directory, warehouse, state)
        return
    with Node.init(directory, warehouse=warehouse or None, state=state or None) as node:
        typer.echo(f"Node created in {node.folder}; parameters: {node.folder / 'penstock.toml'}")
    typer.echo("")
    typer.echo("Next:")
    typer.echo(
        f"  penstock sql -D {directory} \"CREATE SUBSCRIPTION s CONNECTION '...' PUBLICATION p\""
    )
    typer.echo(f"  penstock start -D {directory}")


def _recover(directory: Path, warehouse: str, state: str) -> None:
    found = recovery.recover(directory.resolve(), warehouse or None, state or None)
    if found.parameters:
        typer.echo(f"Made again: {directory / 'penstock.toml'}, with defaults: set what was set.")
    for made in found.subscriptions:
        name = made.subscription.name
        typer.echo(f"Made again: subscription {name}, disabled; tables: {made.tables}")
        if made.prepared:
            typer.echo(
                f"Not made again: prepared transactions of subscription {name}: {made.prepared}. "
                "If the publisher commits them (see its pg_prepared_xacts), the subscription "
                "stops, and must be copied again."
            )
    for name in found.unknown:
        typer.echo(
            f"Not made again: subscription {name}, of which there is no record. To copy its tables "
            f"again, if its slot had its name: {create_anew(name)}"
        )
    for name in found.others:
        typer.echo(f"Not made again: another subscription {name}, which has no cuts")
    if found.subscriptions:
        typer.echo("")
        typer.echo("Next, for each, with the password if its connection needs one:")
    for made in found.subscriptions:
        name = quote_identifier(made.subscription.name)
        conninfo = simple_quote_literal(made.subscription.conninfo)
        typer.echo(f"  ALTER SUBSCRIPTION {name} CONNECTION {conninfo};")
        typer.echo(f"  ALTER SUBSCRIPTION {name} ENABLE;")


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    conninfo: Annotated[
        str, typer.Option(help="Also check this publisher (a libpq connection string).")
    ] = "",
    publication: Annotated[
        list[str] | None,
        typer.Option(help="Also read a row of each of its tables. May be repeated."),
    ] = None,
) -> None:
    """Check this machine, and a publisher.

    Exit status 1 when Python, Java, PySpark, Delta or PostgreSQL must change. With ``--conninfo``,
    do at the publisher what a subscription will do: open a replication connection, and make a
    slot, which is dropped at once.
    """
    findings = checks.check(conninfo or None, publication or ())
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


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


app = typer.Typer(
    name="penstock",
    help="PostgreSQL-compatible logical replication for Spark lakehouses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("init")(init)
app.command("start")(run.start)
app.command("run")(run.run)
app.command("sql")(sql)
app.command("status")(status.status)
app.command("verify")(verify.verify)
app.command("doctor")(doctor)


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: the entry point of the console script."""
    # The receiving thread is always in Python, the applying one mostly in C. At the default of 5 ms
    # the applying thread would wait that long after each of its calls.
    sys.setswitchinterval(0.0005)
    try:
        log_to_standard_error()
        app()
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        _exit(_SPARK_LOST if isinstance(error, SparkLost) else 1)
    except SystemExit as end:
        _exit(end.code)


def _exit(status: str | int | None) -> None:
    """Exit; Python itself would wait for threads that a stop has left behind."""
    if left_behind and not isinstance(status, str):
        run.end_process(status or 0)
    sys.exit(status)


def log_to_standard_error() -> None:
    """Log to standard error, at the level of $PENSTOCK_LOG. Raises ConfigurationError."""
    level = os.environ.get("PENSTOCK_LOG", "INFO")
    if level.upper() not in _LOG_LEVELS:
        raise ConfigurationError(
            f'invalid value for environment variable PENSTOCK_LOG: "{level}"',
            hint=f"Available values: {', '.join(_LOG_LEVELS)}.",
        )
    handler = _StandardError()
    handler.setFormatter(_Format("%(asctime)s %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("py4j", "deltalake"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Format(logging.Formatter):
    """The format of PostgreSQL's log: ``ERROR:  ...``, also where the level begins the message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        if not _BEGINS_WITH_LEVEL.match(record.message):
            record.message = f"{record.levelname}:  {record.message}"
        return super().formatMessage(record)


class _StandardError(logging.StreamHandler[TextIO]):
    """A handler that writes to the present ``sys.stderr``: a progress display may replace it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


if __name__ == "__main__":
    main()
