"""The command line: arguments in, node's public functions, text out. Nothing is decided here.

Out: the option that the commands share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NodeDir = Annotated[
    Path,
    typer.Option(
        "--dir", "-D", envvar="PENSTOCK_DIR", help="The node's folder.", show_default=True
    ),
]
"""``-D DIR``, by default the current folder or $PENSTOCK_DIR (as PGDATA)."""
