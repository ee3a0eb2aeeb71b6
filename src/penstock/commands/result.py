"""What a statement gives back (CommandComplete, NoticeResponse, DataRow).

In: nothing. Out: frozen values for the command line, the library, and sessions on the port.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.protocol.answers import Notice

__all__ = ["CommandResult", "Notice", "notice", "warning"]


def warning(
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    sqlstate: str = "01000",
) -> Notice:
    """A WARNING."""
    return Notice("WARNING", message, detail=detail, hint=hint, sqlstate=sqlstate)


def notice(message: str, *, detail: str | None = None, sqlstate: str = "00000") -> Notice:
    """A NOTICE."""
    return Notice("NOTICE", message, detail=detail, sqlstate=sqlstate)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """``tag``: the command tag. ``columns`` and ``rows`` are those of a SELECT, else empty."""

    tag: str
    notices: tuple[Notice, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
