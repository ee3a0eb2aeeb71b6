"""The command line: it turns arguments into calls of ``Node``, and results into text.

It decides nothing. This file has the option that all commands share.
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
"""The option ``-D DIR``, by default $PENSTOCK_DIR (like PGDATA) or the current folder."""
