"""Long lists of literals in a query, which are read without the parser.

PostgreSQL's parser makes a node of each literal, and so would every later phase. Here, the text
gets a parameter in place of a list of many literals after IN, or of many rows of them after VALUES:
``a IN ($100000)``, ``VALUES ($100000)``. ``raw_statements`` puts ``ALiterals`` there, one for each
column. Whatever looks less simple stays as it is, so that the parser decides what it means.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.sql.grammar.parsenodes import ALiterals, ConstKind

FIRST: Final = 100_000
"""The number of the first such parameter. A client's have five digits at most."""
_SHORT: Final = 1_000
_MANY: Final = 100

_BLANKS: Final = r"[ \t\n\r\f\v]*+"
_INTEGER: Final = "(?:0|-?[1-9][0-9]{0,17}+)"
_DECIMAL: Final = r"(?!-0\.0*+(?![0-9]))-?(?:0|[1-9][0-9]{0,17}+)\.[0-9]{1,20}+"
_STRING: Final = "'(?:[^']++|'')*+'"
_LITERAL: Final = f"(?:{_STRING}|{_DECIMAL}|{_INTEGER}|(?i:NULL|TRUE|FALSE))"


def _row(literal: str, more: str) -> str:
    return rf"\({_BLANKS}{literal}{_BLANKS}(?:,{_BLANKS}{literal}{_BLANKS}){more}\)"


_LISTS: Final = [
    re.compile(_row(literal, f"{{{_MANY - 1},}}+")) for literal in (_INTEGER, _DECIMAL, _STRING)
]
_ROW: Final = re.compile(_row(_LITERAL, "*+"))
_LITERALS: Final = re.compile(_LITERAL)
_QUERY: Final = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|VALUES)\b", re.IGNORECASE)
_NEXT: Final = re.compile(
    rf"""{_STRING}|"[^"]*+"|(?<![.\w$])(?:(IN)|VALUES){_BLANKS}(?=\()""", re.IGNORECASE
)
"""What is passed over, because a list within it is none, and what is before a list."""
_UNCLEAR: Final = re.compile(r"""--|/\*|\$(?![0-9]{1,5}\b)|[\w&]'|;\s*\S""")
"""Comments, and strings that do not end at their next quote; more than one statement."""


def without_lists(text: str) -> tuple[str, list[tuple[ALiterals, ...]]]:
    """Return the text with parameters in place of long lists, and the lists' columns."""
    lists: list[tuple[ALiterals, ...]] = []
    if len(text) < _SHORT or not _QUERY.match(text):
        return text, lists
    kept, outside, done, at = [], [], 0, 0
    while found := _NEXT.search(text, at):
        outside.append(text[at : found.start()])
        at = found.end()
        if text[at : at + 1] != "(":
            outside.append("''")
            continue
        end, columns = (_list if found[1] else _rows)(text, at)
        if columns:
            kept += [text[done:at], f"(${FIRST + len(lists)})"]
            lists.append(columns)
            done = at = end
    outside.append(text[at:])
    if not lists or _UNCLEAR.search("".join(outside)):
        return text, []
    return "".join([*kept, text[done:]]), lists


def _list(text: str, at: int) -> tuple[int, tuple[ALiterals, ...]]:
    """Return the end and the column of the list of literals of one kind that begins here."""
    for pattern in _LISTS:
        found = pattern.match(text, at)
        if found:
            column = _column(_LITERALS.findall(text, at, found.end()))
            return found.end(), () if column is None else (column,)
    return at, ()


def _rows(text: str, at: int) -> tuple[int, tuple[ALiterals, ...]]:
    """Return the end and the columns of the rows of literals that begin here."""
    first = _ROW.match(text, at)
    if first is None:
        return at, ()
    width = len(_LITERALS.findall(first[0]))
    row = _row(_LITERAL, f"{{{width - 1}}}")
    more = rf"{_BLANKS}(?:,{_BLANKS}{row}{_BLANKS}){{{_MANY - 1},}}+(?!,)"
    found = re.compile(more).match(text, first.end())
    if found is None:
        return at, ()
    cells = _LITERALS.findall(text, at, found.end())
    columns = [_column(cells[number::width]) for number in range(width)]
    known = tuple(column for column in columns if column is not None)
    return found.end(), known if len(known) == width else ()


def _column(cells: list[str]) -> ALiterals | None:
    """Return the values of literals; None if they are of several kinds."""
    begins = {cell[0] for cell in cells}
    null = begins & {"n", "N"}
    begins -= null
    kind, values = ConstKind.INTEGER, cells
    if begins <= {"'"}:
        kind, values = ConstKind.STRING, [cell[1:-1].replace("''", "'") for cell in cells]
    elif begins <= set("tTfF"):
        kind, values = ConstKind.BOOLEAN, [cell.lower() for cell in cells]
    elif not begins <= set("-0123456789"):
        return None
    elif any("." in cell for cell in cells):
        kind = ConstKind.FLOAT
    if null:
        given = zip(cells, values, strict=True)
        return ALiterals(kind, tuple(None if cell[0] in null else value for cell, value in given))
    return ALiterals(kind, tuple(values))
