"""COMMIT of a block whose end is not known: two errors of stores, one after the other (40003).

In: both. Out: the error for the client, with what it can do.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import PenstockError
from penstock.sqlstate import StatementCompletionUnknown

_LATER: Final = (
    "It is committed or rolled back, as a whole, when its tables and the node's state can be "
    "written again."
)
LOOK_AT_IT: Final = (
    "Look whether the table has its rows, all or none, when it can be read again. Only then run "
    "the transaction again."
)


def unknown(
    error: PenstockError, then: PenstockError, hint: str = _LATER
) -> StatementCompletionUnknown:
    """``then``: of the attempt to find out, or to take it back."""
    return StatementCompletionUnknown(
        "it is not known yet whether the transaction block is committed",
        detail=f"{error.message}; and then: {then.message}",
        hint=hint,
    )
