"""``python -m penstock.demo``: the shop, or with SOURCE and PUBLICATION the user's own database.

SOURCE is a libpq connection string. It is read from the environment, because process lists show
arguments.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psycopg
from rich.console import Console

from penstock.demo import story
from penstock.errors import PenstockError

_EPILOGUE = """
Your own database (it needs wal_level = logical and a publication):

  make demo SOURCE='postgresql://user@host/dbname' PUBLICATION=name

or step by step:

  penstock init mynode
  penstock sql -D mynode "CREATE SUBSCRIPTION s CONNECTION 'host=... dbname=...' PUBLICATION name"
  penstock start -D mynode
"""


def main() -> int:
    """Return 0 if every table is equal, 1 if not or after an error, 130 if interrupted."""
    options = _parser().parse_args()
    source, publication = os.environ.get("SOURCE", ""), os.environ.get("PUBLICATION", "")
    console = Console(highlight=False, soft_wrap=True)
    # SIGTERM acts like Ctrl-C: end all that was started, and drop the publisher's slot.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if bool(source) != bool(publication):
        console.print("SOURCE and PUBLICATION go together; neither of them: the shop.")
        return 1
    try:
        with ExitStack() as stack:
            folder = options.keep or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-"))
            )
            node = folder / "node"
            if source:
                seconds = options.seconds or 20.0
                equal = story.own_database(console, node, source, publication, seconds=seconds)
            else:
                seconds = options.seconds or 60.0
                equal = story.shop(console, node, seconds=seconds, per_second=options.rate)
            if options.keep:
                console.print(f"\nThe Delta tables stay in {node / 'warehouse'}")
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        return 1
    except psycopg.Error as error:
        print(f"ERROR:  {str(error).strip()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    if not source:
        console.print(_EPILOGUE, markup=False)
    return 0 if equal else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description=main.__doc__)
    parser.add_argument("--seconds", type=float, help="of live traffic (60), of following (20)")
    parser.add_argument("--rate", type=float, default=120.0, help="transactions per second (120)")
    parser.add_argument("--keep", type=Path, help="a new folder that stays afterwards")
    return parser


if __name__ == "__main__":
    sys.exit(main())
