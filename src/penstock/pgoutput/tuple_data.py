"""TupleData: the cells of one row version as they are sent (logicalproto.h, LogicalRepTupleData).

In: nothing. Out: four kinds of cell as four types, so that "NULL" and "not sent" cannot be mixed up
(law 4). The meaning of the bytes is left to the types' families.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Absent(Enum):
    """Cells without bytes: NULL, or an unchanged TOAST value that was not sent."""

    NULL = "n"
    UNCHANGED = "u"


NULL = Absent.NULL
UNCHANGED = Absent.UNCHANGED


@dataclass(frozen=True, slots=True)
class Text:
    """A value as the type's output function prints it."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """A value as the type's send function gives it."""

    raw: bytes


Cell = Absent | Text | Binary
TupleData = tuple[Cell, ...]
