"""Write those tables of README and docs whose facts stand elsewhere.

In: ``bench/history.md``, to which ``make bench`` adds rows, the node's metrics, the options of its
commands, the table of PostgreSQL's functions. Out: in each
page, between the marks of a table below, its rows. ``--check`` writes nothing and ends with 1 where
a page shows something else.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from penstock.cli.main import app
from penstock.node.monitoring import NodeCollector, NodeReport, SequencerReport
from penstock.sql.builtin import casts, functions, operators, types
from penstock.sql.to_duckdb import pg_proc

ROOT: Final = Path(__file__).parents[1]
HISTORY: Final = ROOT / "bench" / "history.md"
END: Final = "<!-- end of table -->"


@dataclass(frozen=True)
class Figures:
    """A table of speed on ``page``, between ``<!-- table: name -->`` and END. ``shown``: the page's
    words by the workload's name in the history, without how often it ran."""

    page: str
    name: str
    head: str
    shown: Mapping[str, str]

    def lines(self) -> str:
        """Return the newest figures. Raises KeyError if the history has no such workload."""
        rows = newest(HISTORY.read_text("utf-8"))
        written = [f"| {self.head} | PostgreSQL 18 | Penstock | ratio |\n|---|---|---|---|\n"]
        for workload, words in self.shown.items():
            server, node, ratio = (re.sub(r" \(.*\)$", "", cell) for cell in rows[workload])
            shown = "" if "visible" in workload else ratio
            written.append(f"| {words} | {server} | {node} | {shown} |\n")
        return "".join(written)


@dataclass(frozen=True)
class Metrics:
    """The table of what ``/metrics`` serves, with the help texts of the metrics."""

    page: str = "docs/operations.md"
    name: str = "metrics"

    def lines(self) -> str:
        """Return a row for each metric."""
        report = NodeReport("", (), SequencerReport(0, 0, 0), (), ())
        written = ["| metric | labels | meaning |\n|---|---|---|\n"]
        for family in NodeCollector(lambda: report).collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(f"`{label}`" for label in family._labelnames) or "-"  # type: ignore[attr-defined]
            written.append(f"| `{name}` | {labels} | {family.documentation} |\n")
        return "".join(written)


@dataclass(frozen=True)
class Options:
    """The table of the commands' options, with their help texts."""

    page: str = "docs/cli.md"
    name: str = "options"

    def lines(self) -> str:
        """Return a row for each option but ``--help``."""
        written = ["| command | option | meaning |\n|---|---|---|\n"]
        for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
            for option in command.params:
                if option.param_type_name == "option":
                    names = ", ".join(f"`{opt}`" for opt in (*option.opts, *option.secondary_opts))
                    shown = isinstance(option.default, int | float) and option.default
                    default = f" Default: {option.default:g}." if shown else ""
                    written.append(f"| `{name}` | {names} | {option.help}{default} |\n")
        return "".join(written)


@dataclass(frozen=True)
class Functions:
    """The table of PostgreSQL's functions, operators and casts that DuckDB computes."""

    page: str = "docs/row-filters.md"
    name: str = "functions"

    def lines(self) -> str:
        """Return a row for each type of a first argument."""
        operator_of = {row.function: name for name, found in operators().items() for row in found}
        cast_of = {
            row.function: row.target
            for row in casts().values()
            if row.function and functions()[row.function].result == row.target
        }
        known: dict[str, list[set[str]]] = {}
        for oid in pg_proc.rows():
            function = functions()[oid]
            type_ = types()[function.arguments[0]].sql_name if function.arguments else "none"
            kinds = known.setdefault(_FIRST.get(type_, type_), [set(), set(), set()])
            if oid in cast_of and len(function.arguments) == 1:
                kinds[2].add(types()[cast_of[oid]].sql_name)
            elif oid in operator_of:
                kinds[1].add(operator_of[oid].replace("|", "\\|"))
            else:
                kinds[0].add(function.name)
        written = ["| first argument | functions | operators | casts to |\n|---|---|---|---|\n"]
        for type_, kinds in sorted(known.items()):
            cells = (", ".join(f"`{name}`" for name in sorted(names)) for names in kinds)
            written.append(f"| {type_} | {' | '.join(cells)} |\n")
        return "".join(written)


_FIRST: Final = {
    **dict.fromkeys(("anyarray", "anycompatiblearray", "anycompatible"), "arrays"),
    **dict.fromkeys(("smallint", "integer", "bigint"), "integers"),
    **dict.fromkeys(("real", "double precision"), "floats"),
    **dict.fromkeys(
        ("text", "character varying", "character", "name", '"any"', "anynonarray"), "strings"
    ),
    **dict.fromkeys(("timestamp without time zone", "timestamp with time zone"), "timestamps"),
    **dict.fromkeys(("json", "jsonb"), "json, jsonb"),
}

COPY: Final = "copy of 5000000 accounts"
UPDATES: Final = "backlog of 1000000 random updates"
STEADY: Final = "commit to visible, one table, 100/s, p50 / p95 / p99"
AFAR: Final = ", round trip 1 ms"
IN_S3: Final = ", warehouse in S3"
PUBLISHED_COPY: Final = "publishing: copy of 5000000 accounts"
PUBLISHED_CHANGES: Final = "publishing: 1000000 changes in 20 transactions"

TABLES: Final = (
    Metrics(),
    Options(),
    Functions(),
    Figures(
        "README.md",
        "summary",
        "on 2 cores, 5 M rows of pgbench_accounts",
        {
            COPY: "subscribing: initial copy",
            UPDATES: "subscribing: backlog of 1 M single-row updates",
            "backlog of 500000 inserts, 1000 rows a transaction": (
                "subscribing: backlog of 500,000 inserts"
            ),
            STEADY: "subscribing: commit to visible at 100 transactions/s, p50 / p95 / p99",
            PUBLISHED_COPY: "publishing to a PostgreSQL 18: initial copy",
            PUBLISHED_CHANGES: "publishing to a PostgreSQL 18: 1 M changes",
        },
    ),
    Figures(
        "docs/performance.md",
        "subscribing",
        "subscribing",
        {
            COPY: "initial copy of 5 M rows",
            f"{COPY}, binary": "the same with `binary = true`",
            "copy of 2000000 rows of taxi": "2 M taxi trips of 19 columns",
            "copy of 2000000 rows of lineitem": "2 M rows of TPC-H's lineitem",
            "copy of 300000 rows of wide": "300,000 rows of 20 columns, every fourth with 3 kB",
            "backlog of 200000 updates of one column of wide": "200,000 updates of one column",
            "backlog of 100000 inserts into wide, 1 a transaction": "100,000 inserts of 20 columns",
            "backlog of 200000 single-row transactions over 10 tables": (
                "200,000 single-row transactions over 10 tables"
            ),
            UPDATES: "backlog of 1 M random updates",
            f"{UPDATES}, binary": "the same with `binary = true`, one run",
            "backlog of 500000 inserts, 1 row a transaction": (
                "backlog of 500,000 inserts, 1 row a transaction"
            ),
            "backlog of 500000 inserts, 10 rows a transaction": "10 rows a transaction",
            "backlog of 500000 inserts, 1000 rows a transaction": "1,000 rows a transaction",
            "backlog of 500000 inserts, 12 columns, 100 rows a transaction": (
                "12 columns of as many types, 100 rows a transaction"
            ),
            "backlog of 100000 TPC-B transactions, 4 changes each": (
                "backlog of 100,000 transactions of TPC-B, 4 changes each"
            ),
            "backlog of 100000 updates by uuid keys of 500000 rows": (
                "backlog of 100,000 updates by uuid keys"
            ),
            "1000 updates by uuid keys of 5000000 rows": (
                "1,000 updates by uuid keys of 5 M rows, until visible"
            ),
            STEADY: "commit to visible, one table, 100 transactions/s, p50 / p95 / p99",
            "commit to visible, 20 tables, 100/s, p50 / p95 / p99": "20 tables",
            "commit to visible, TPC-B, 200/s, p50 / p95 / p99": "TPC-B, 200 transactions/s",
            "commit to visible, 1000 tables, 50/s, p50 / p95 / p99": "1,000 tables, 50/s",
            f"{COPY}{AFAR}": "publisher 1 ms away: initial copy of 5 M rows",
            f"backlog of 500000 inserts, 1 row a transaction{AFAR}": (
                "publisher 1 ms away: backlog of 500,000 inserts, 1 row a transaction"
            ),
            f"{STEADY}{AFAR}": "publisher 1 ms away: commit to visible, one table, 100/s",
            f"copy of 300000 rows of wide{IN_S3}": (
                "warehouse in S3: 300,000 rows of 20 columns, every fourth with 3 kB"
            ),
            f"backlog of 500000 inserts, 10 rows a transaction{IN_S3}": (
                "warehouse in S3: backlog of 500,000 inserts, 10 rows a transaction"
            ),
            f"{STEADY}{IN_S3}": "warehouse in S3: commit to visible, one table, 100/s",
        },
    ),
    Figures(
        "docs/performance.md",
        "publishing",
        "publishing",
        {
            PUBLISHED_COPY: "initial copy of 5 M rows",
            PUBLISHED_CHANGES: "stream of 1 M changes",
            "publishing: commits of 1 row to visible, 5/s, p50 / p95 / p99": (
                "commits of one row, 5/s, to visible at the subscriber, p50 / p95 / p99"
            ),
        },
    ),
)


def newest(history: str) -> dict[str, tuple[str, str, str]]:
    """Return PostgreSQL's figure, ours and the ratio of the last row of each workload."""
    found = {}
    for line in history.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d{4}-\d\d-\d\d", cells[0]):
            workload = re.sub(r" \([^()]*\)(?=$|, )", "", cells[2])
            found[workload] = (cells[3], cells[4], cells[5])
    return found


def with_table(page: str, table: Figures | Metrics | Options | Functions) -> str:
    """Return a page's text with a table between its marks."""
    begin = f"<!-- table: {table.name} -->\n"
    head, rest = page.split(begin)
    _, tail = rest.split(END, 1)
    return f"{head}{begin}{table.lines()}{END}{tail}"


def main() -> None:
    parser = argparse.ArgumentParser(description="tables whose facts stand elsewhere")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    for table in TABLES:
        path = ROOT / table.page
        before = path.read_text("utf-8")
        after = with_table(before, table)
        if not options.check:
            path.write_text(after, "utf-8")
        elif after != before:
            sys.exit(f"{table.page}, table {table.name}: run tools/write_tables.py")


if __name__ == "__main__":
    main()
