"""Parse nodes as frozen values (parsenodes.h).

In: the grammar's results. Out: one class per form of statement. ``notices`` are the lexer's notices
(truncated identifiers); they do not count when statements are compared. No repr shows a connection
string.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DefElem:
    """One option as written: ``name``, ``name = value`` (DefElem).

    ``arg``: None without a value, int for an integer, else the text that PostgreSQL's defGetString
    would give. Names and unquoted words are folded to lower case.
    """

    name: str
    arg: str | int | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """Any statement. ``notices``: texts of NOTICEs (42622) from parsing."""

    notices: tuple[str, ...] = field(default=(), kw_only=True, compare=False)
