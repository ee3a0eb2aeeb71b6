r"""Arrays in text format (array_out): ``{1,NULL,"a \"quoted\" one",""}``.

In: cells, or one value. Out: the elements as cells in a buffer of their own, without quotes and
backslashes. An element is quoted where it is empty, says NULL, or holds braces, commas, quotes,
backslashes or blanks; within quotes a backslash keeps the next character. No type with another
delimiter than the comma (box) has a family.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.pgtypes.gather import contiguous

_QUOTE, _BACKSLASH, _COMMA = ord('"'), ord("\\"), ord(",")
_OPEN, _CLOSE = ord("{"), ord("}")
_NULL = np.frombuffer(b"NULL", np.uint8)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^"\\{},]+)', re.DOTALL)
_DECORATED = re.compile(rb"(?:\[-?\d+:-?\d+\])+=\{")


def text_dimensions(raw: bytes) -> bool:
    """Whether the value has subscripts of its own or is nested."""
    if _DECORATED.match(raw):
        return True
    return _QUOTED.sub(b"", raw).startswith(b"{{")


def text_raws(raw: bytes) -> list[bytes | None] | None:
    """Texts of the elements of one value; None where it is malformed. The readable reference."""
    if raw == b"{}":
        return []
    if not (raw.startswith(b"{") and raw.endswith(b"}")):
        return None
    raws: list[bytes | None] = []
    at, end = 1, len(raw) - 1
    while True:
        match = _ELEMENT.match(raw, at, end)
        if match is None:
            return None
        quoted, bare = match.groups()
        if bare is None:
            raws.append(re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL))
        else:
            raws.append(None if bare == b"NULL" else bare)
        at = match.end()
        if at == end:
            return raws
        if raw[at] != _COMMA:
            return None
        at += 1


def text_elements(cells: Cells) -> tuple[NDArray[np.int64], Cells] | None:
    """Number of elements per cell, and all elements as cells; None where a cell is no plain array.

    Quotes and backslashes are found for all rows at once: a character is escaped behind an odd run
    of backslashes, and it is within quotes where an odd number of quotes lies before it. Both hold
    across rows, since every row ends outside of quotes.
    """
    data, ends = contiguous(cells)
    begin, end = ends[:-1], ends[1:]
    present = np.ones(len(cells), np.bool_) if cells.null is None else ~cells.null
    if ((end - begin)[present] < 2).any():
        return None
    if (data[begin[present]] != _OPEN).any() or (data[end[present] - 1] != _CLOSE).any():
        return None
    keep, bare = _unquote(data)
    if not keep[end[present] - 1].all() or not bare[end[present] - 1].all():
        return None
    braces = bare & ((data == _OPEN) | (data == _CLOSE))
    if int(braces.sum()) != 2 * int(present.sum()):
        return None
    filled = present & (end - begin > 2)
    commas = np.flatnonzero(bare & (data == _COMMA))
    counts = np.where(filled, 1, 0).astype(np.int64)
    row_of_comma = np.searchsorted(ends, commas, side="right") - 1
    counts += np.bincount(row_of_comma, minlength=len(cells))
    # Where elements begin: behind an opening brace or a comma; where they end: before the next.
    starts = np.sort(np.concatenate((begin[filled], commas)), kind="stable") + 1
    stops = np.sort(np.concatenate((commas, end[filled] - 1)), kind="stable")
    quoted = data[np.minimum(starts, len(data) - 1)] == _QUOTE
    if not _well_formed(data, keep, starts, stops, quoted):
        return None
    return counts, _compact(data, keep, starts, stops, quoted)


def _unquote(data: NDArray[np.uint8]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which characters belong to values, and which lie outside of quotes."""
    backslash = data == _BACKSLASH
    if backslash.any():
        index = np.arange(len(data))
        run = index - np.maximum.accumulate(np.where(backslash, -1, index))
        escaped = np.zeros(len(data), np.bool_)
        escaped[1:] = run[:-1] % 2 == 1
    else:
        escaped = backslash
    quote = (data == _QUOTE) & ~escaped
    bare = np.cumsum(quote, dtype=np.int64) % 2 == 0
    return ~quote & ~(backslash & ~escaped), bare & ~quote


def _well_formed(
    data: NDArray[np.uint8],
    keep: NDArray[np.bool_],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    quoted: NDArray[np.bool_],
) -> bool:
    """No empty element without quotes; quotes only as the first and the last character."""
    if (stops <= starts).any() or (data[stops[quoted] - 1] != _QUOTE).any():
        return False
    quotes = int(((data == _QUOTE) & ~keep).sum())
    return quotes == 2 * int(quoted.sum())


def _compact(
    data: NDArray[np.uint8],
    keep: NDArray[np.bool_],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    quoted: NDArray[np.bool_],
) -> Cells:
    """The elements' cells, in a buffer that has no quotes and no escaping backslashes."""
    size = stops - starts
    null = ~quoted & (size == len(_NULL))
    for offset, character in enumerate(_NULL):
        null &= data[np.minimum(starts + offset, len(data) - 1)] == character
    if keep.all():
        return Cells(data, starts, size, null)
    position = np.zeros(len(data) + 1, np.int64)
    np.cumsum(keep, out=position[1:])
    begin = position[starts]
    return Cells(data[keep], begin, position[stops] - begin, null)
