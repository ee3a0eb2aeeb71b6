"""Options of the benchmarks.

In: what a benchmark says of itself. Out: a parser with ``--rows``, ``--repeat``, ``--fsync``; what
the command line says, checked; the sizes of ``make bench`` with what the command line changes.
"""

from __future__ import annotations

import argparse
import dataclasses

from context import QUICK, Sizes
from servers import ROWS_PER_SCALE


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """``description``: the benchmark's module docstring, of which the first line is shown."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--fsync",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="force data to disk, on all sides alike",
    )
    return parser


def common_options(description: str | None) -> argparse.ArgumentParser:
    """With rows and runs."""
    parser = parser_of(description)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of pgbench_accounts")
    parser.add_argument("--repeat", type=int, default=1, help="runs of copy and stream (median)")
    return parser


def size_options(parser: argparse.ArgumentParser) -> None:
    """One for each size, and ``--quick``, which changes what they are without the option."""
    parser.add_argument("--quick", action="store_true", help="small sizes, a few minutes")
    for size in dataclasses.fields(Sizes):
        default, small = getattr(Sizes(), size.name), getattr(QUICK, size.name)
        parser.add_argument(
            f"--{size.name.replace('_', '-')}",
            type=type(default),
            help=f"{size.metadata['help']}: {default:,}, or {small:,}",
        )


def sizes_of(options: argparse.Namespace) -> Sizes:
    """``--quick``'s or ``make bench``'s, but for those that were named."""
    named = {
        size.name: value
        for size in dataclasses.fields(Sizes)
        if (value := getattr(options, size.name)) is not None
    }
    return dataclasses.replace(QUICK if options.quick else Sizes(), **named)


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Ends the program where ``--rows`` cannot be."""
    options = parser.parse_args()
    if (options.rows or 0) % ROWS_PER_SCALE:
        parser.error(f"--rows must be a multiple of {ROWS_PER_SCALE} (pgbench's scale)")
    return options
