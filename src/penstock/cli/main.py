"""``penstock``: one command per file, errors printed as psql prints them.

In: arguments. Out: exit status 0, or 1 with ``ERROR:``, ``DETAIL:`` and ``HINT:`` lines on standard
error; 2 for wrong arguments.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

import typer

from penstock.cli import doctor, init, run, sql, start, status
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="PostgreSQL-compatible logical replication for Spark lakehouses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("init")(init.init)
app.command("start")(start.start)
app.command("run")(run.run)
app.command("sql")(sql.sql)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Entry point of the console script."""
    # The receiving thread is in Python all the time, the applying one mostly in C: at the default
    # of 5 ms the latter would wait that long after each of its calls.
    sys.setswitchinterval(0.0005)
    log_to_standard_error()
    try:
        app()
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        sys.exit(1)


def log_to_standard_error() -> None:
    """As the command line does, at the level of $PENSTOCK_LOG."""
    logging.basicConfig(
        level=os.environ.get("PENSTOCK_LOG", "INFO"),
        format="%(asctime)s %(levelname)s  %(message)s",
        handlers=[_StandardError()],
    )
    for noisy in ("py4j", "sqlglot", "deltalake"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is at the moment: a progress display stands for it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass


if __name__ == "__main__":
    main()
