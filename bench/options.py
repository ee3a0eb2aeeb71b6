"""Options that both benchmarks have.

In: what a benchmark says of itself. Out: a parser with ``--rows``, ``--repeat``, ``--fsync``; what
the command line says, checked.
"""

from __future__ import annotations

import argparse

from servers import ROWS_PER_SCALE


def common_options(description: str | None) -> argparse.ArgumentParser:
    """``description``: the benchmark's module docstring, of which the first line is shown."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of pgbench_accounts")
    parser.add_argument("--repeat", type=int, default=1, help="runs of copy and stream (median)")
    parser.add_argument(
        "--fsync",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="force data to disk, on all sides alike",
    )
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Ends the program where ``--rows`` cannot be."""
    options = parser.parse_args()
    if options.rows % ROWS_PER_SCALE:
        parser.error(f"--rows must be a multiple of {ROWS_PER_SCALE} (pgbench's scale)")
    return options
