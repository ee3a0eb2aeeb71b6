"""What a statement gives back (CommandComplete, NoticeResponse, DataRow).

In: nothing. Out: frozen values for the CLI, the library, and later sessions of the walsender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that is no error. ``severity``: NOTICE or WARNING."""

    severity: str
    message: str
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "00000"

    def report(self) -> str:
        """The notice as psql prints it."""
        lines = [f"{self.severity}:  {self.message}"]
        if self.detail:
            lines.append(f"DETAIL:  {self.detail}")
        if self.hint:
            lines.append(f"HINT:  {self.hint}")
        return "\n".join(lines)


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
