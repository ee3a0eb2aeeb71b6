"""Literals of json and jsonb (json.c, jsonb.c).

In: a literal's text. Out: what the output functions print. json stays as it was written; jsonb has
its keys in order, each once, and numbers as numeric prints them.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from penstock.sql.text.number_literals import read_numeric
from penstock.sqlstate import InvalidTextRepresentation, UntranslatableCharacter

_SURROGATES = range(0xD800, 0xE000)


class _Number(str):
    """A number, as it was written."""


def read_json(text: str) -> str:
    """Raises PenstockError (22P02)."""
    _loaded(text)
    return text


def read_jsonb(text: str) -> str:
    """Raises PenstockError (22P02, 22P05)."""
    return _printed(_loaded(text))


def _loaded(text: str) -> Any:
    def wrong(_: str) -> NoReturn:
        raise ValueError

    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=wrong)
    except (ValueError, RecursionError):
        raise InvalidTextRepresentation("invalid input syntax for type json") from None


def _printed(value: Any) -> str:
    match value:
        case _Number():
            return read_numeric(value)
        case str():
            return _string(value)
        case list():
            return f"[{', '.join(map(_printed, value))}]"
        case dict():
            ordered = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0]))
            shown = (f"{_string(name)}: {_printed(inner)}" for name, inner in ordered)
            return "{" + ", ".join(shown) + "}"
    return json.dumps(value)


def _string(text: str) -> str:
    if "\0" in text:
        raise UntranslatableCharacter("unsupported Unicode escape sequence")
    if any(ord(character) in _SURROGATES for character in text):
        raise InvalidTextRepresentation("invalid input syntax for type json")
    return json.dumps(text, ensure_ascii=False)
