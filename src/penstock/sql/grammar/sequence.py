"""Columns with a sequence: GENERATED ... AS IDENTITY, and its options (gram.y, SeqOptElem).

In: raw nodes. Out: frozen values with the options as they were written. ``penstock.commands``
checks them and works out the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.sql.grammar.names import def_elems, not_supported, option_text
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sqlstate import InvalidTextRepresentation

SequenceOption = tuple[str, int | bool | None]
"""``increment``, ``start``, ``minvalue``, ``maxvalue``, ``cache``, ``cycle``; the value is None for
NO MINVALUE and NO MAXVALUE."""

_REFUSED: Final = {
    "as": "AS type",
    "owned_by": "OWNED BY",
    "sequence_name": "SEQUENCE NAME",
    "logged": "LOGGED",
    "unlogged": "UNLOGGED",
    "restart": "RESTART",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """GENERATED kind AS IDENTITY (options); ``kind``: as pg_attribute.attidentity."""

    kind: str
    options: tuple[SequenceOption, ...] = ()


def identity(raw: RawNode) -> Identity:
    """Read a Constraint. Raises FeatureNotSupported."""
    kind = raw.take("generated_when")
    return Identity(kind, tuple(_option(name, node) for name, node in def_elems(raw)))


def _option(name: str, node: Json | None) -> SequenceOption:
    if name in _REFUSED:
        raise not_supported(f"{_REFUSED[name]} of an identity column's sequence")
    if node is None:
        return name, None
    if name == "cycle":
        return name, option_text(node) == "true"
    text = str(option_text(node))
    try:
        return name, int(text)
    except ValueError:
        raise InvalidTextRepresentation(f'invalid input syntax for type bigint: "{text}"') from None
