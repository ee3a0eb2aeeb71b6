"""Array literals: ``{1,2,NULL,"a b"}`` (arrayfuncs.c, array_in and array_out).

In: the text, and what reads an element. Out: the text that array_out prints. One dimension; more
of them, and bounds of their own, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError

_ITEM: Final = re.compile(
    r'\s*(?:"((?:[^"\\]|\\.)*)"|((?:[^",{}\\\s]|\\.|\s+(?=[^\s,}]))+))\s*([,}])', re.DOTALL
)
_QUOTED: Final = re.compile(r'[\s",{}\\]')


def split_array(text: str) -> list[str | None]:
    """The elements of an array's text, None for NULL. Raises 22P02."""
    body = text.strip()
    if not body.startswith("{"):
        if body.startswith("["):
            raise FeatureNotSupported("array constants with bounds are not supported")
        raise _malformed(text, 'Array value must start with "{" or dimension information.')
    if re.fullmatch(r"\{\s*\}", body):
        return []
    if re.match(r"\{\s*\{", body):
        raise FeatureNotSupported("array constants of more than one dimension are not supported")
    items: list[str | None] = []
    at, end = 1, ","
    while end == ",":
        match = _ITEM.match(body, at)
        if match is None:
            open_end = not body.endswith("}")
            raise _malformed(text, "Unexpected end of input." if open_end else None)
        quoted, plain, end = match[1], match[2], match[3]
        if quoted is None and plain.upper() == "NULL":
            items.append(None)
        else:
            raw = plain if quoted is None else quoted
            items.append(re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL))
        at = match.end()
    if at != len(body):
        raise _malformed(text, "Junk after closing right brace.")
    return items


def join_array(items: list[str | None]) -> str:
    """array_out: elements in quotes where they need them."""
    return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"


def read_array(text: str, canonical: Callable[[str], str]) -> str:
    """The text that array_out prints, with every element read."""
    items = split_array(text)
    return join_array([None if item is None else canonical(item) for item in items])


def _quoted(item: str) -> str:
    if item and not _QUOTED.search(item) and item.upper() != "NULL":
        return item
    return '"' + re.sub(r'(["\\])', r"\\\1", item) + '"'


def _malformed(text: str, detail: str | None = None) -> PenstockError:
    return PenstockError(f'malformed array literal: "{text}"', detail=detail, sqlstate="22P02")
