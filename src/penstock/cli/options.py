"""Options that several commands share."""

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
