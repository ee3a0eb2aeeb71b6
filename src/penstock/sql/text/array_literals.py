"""Array literals: ``{1,2,NULL,"a b"}`` (arrayfuncs.c, array_in and array_out).

The caller passes a function that reads one element; the array is printed again as array_out does.
Arrays have one dimension; more dimensions and explicit bounds are refused. ``pgtypes.array`` reads
whole columns of arrays from the wire, where array_out wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sqlstate import InvalidTextRepresentation

_BLANK: Final = re.compile(r"[ \t\n\r\f\v]*")
_IN_QUOTES: Final = re.compile(r'"((?:[^"\\]++|\\.)*+)"[ \t\n\r\f\v]*', re.DOTALL)
_PLAIN: Final = re.compile(r'(?:[^"{},\\]++|\\.)++', re.DOTALL)
_BLANKS: Final = " \t\n\r\f\v"
_NEEDS_QUOTES: Final = re.compile(r'[ \t\n\r\f\v",{}\\]')
_NULL: Final = "NULL"
_END: Final = "Unexpected end of input."
_QUOTING: Final = "Incorrectly quoted array element."


def split_array(text: str) -> list[str | None]:
    """Return the elements of an array's text, None for NULL. Raises 22P02, 0A000."""
    return list(_elements(text))


def _elements(text: str) -> Iterator[str | None]:
    """Yield elements in order, so that the first bad element raises, as in ReadArrayStr."""
    at = _after_blanks(text, 0)
    if text[at : at + 1] == "[":
        raise FeatureNotSupported("array constants with bounds are not supported")
    if text[at : at + 1] != "{":
        raise _malformed(text, 'Array value must start with "{" or dimension information.')
    some, complete, at = False, False, _after_blanks(text, at + 1)
    while (character := text[at : at + 1]) != "}":
        if character == "":
            raise _malformed(text, _END)
        if character in ",{" and (character == ",") != complete:
            raise _malformed(text, f'Unexpected "{character}" character.')
        if character == "{":
            raise FeatureNotSupported("multidimensional array constants are not supported")
        if character == ",":
            complete, at = False, _after_blanks(text, at + 1)
            continue
        item, at = _quoted_item(text, at) if character == '"' else _plain_item(text, at)
        if complete:
            raise _malformed(text, "Unexpected array element.")
        yield item
        some = complete = True
    if some and not complete:
        raise _malformed(text, 'Unexpected "}" character.')
    if _after_blanks(text, at + 1) != len(text):
        raise _malformed(text, "Junk after closing right brace.")


def join_array(items: Iterable[str | None]) -> str:
    """Print an array as array_out does: elements are quoted only where they must be."""
    return "{" + ",".join(_NULL if item is None else _quoted(item) for item in items) + "}"


def read_array(text: str, canonical: Callable[[str], str]) -> str:
    """Return the text that array_out prints; ``canonical`` reads each element."""
    return join_array(None if item is None else canonical(item) for item in _elements(text))


def _after_blanks(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _quoted_item(text: str, at: int) -> tuple[str, int]:
    """Return the quoted element at ``at``, and where the next token begins."""
    match = _IN_QUOTES.match(text, at)
    if match is None or match.end() == len(text):
        raise _malformed(text, _END)
    if text[match.end() : match.end() + 1] not in (",", "{", "}"):
        raise _malformed(text, _QUOTING)
    return _unescaped(match[1]), match.end()


def _plain_item(text: str, at: int) -> tuple[str | None, int]:
    """Return the unquoted element at ``at``, and where the next token begins.

    Trailing blanks are not part of the element.
    """
    match = _PLAIN.match(text, at)
    end = at if match is None else match.end()
    stop = text[end : end + 1]
    if stop in ("", "\\"):
        raise _malformed(text, _END)
    if stop == '"':
        raise _malformed(text, _QUOTING)
    if stop == "{":
        raise _malformed(text, 'Unexpected "{" character.')
    trimmed = text[at:end].rstrip(_BLANKS)
    if (len(trimmed) - len(trimmed.rstrip("\\"))) % 2:  # the backslash escapes a blank
        trimmed = text[at : at + len(trimmed) + 1]
    return (None if trimmed.upper() == _NULL else _unescaped(trimmed)), end


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _quoted(item: str) -> str:
    if item and not _NEEDS_QUOTES.search(item) and item.upper() != _NULL:
        return item
    return '"' + re.sub(r'(["\\])', r"\\\1", item) + '"'


def _malformed(text: str, detail: str) -> PenstockError:
    return InvalidTextRepresentation(f'malformed array literal: "{text}"', detail=detail)
