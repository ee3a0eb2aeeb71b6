"""Rows as PostgreSQL prints them in messages (ExecBuildSlotValueDescription)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.pgtypes.text_output import text_output

_SHOWN: Final = 64
"""Characters of a value in a message."""


def show_values(row: Sequence[pa.Array]) -> list[str]:
    """Cells of one row."""
    cells = [text_output(column)[0].as_py() for column in row]
    return ["null" if cell is None else _shorten(cell.decode()) for cell in cells]


def _shorten(value: str) -> str:
    return value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
