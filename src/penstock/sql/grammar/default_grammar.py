"""DEFAULT of a column: a constant, or the time of writing (gram.y, ColConstraintElem).

In: a raw node. Out: the constant as SQL writes it. Other expressions are refused by name (0A000).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.sql.grammar.names import constant, not_supported
from penstock.sql.grammar.raw_node import Json
from penstock.sql.text.datetime_literals import read_timestamp

NOW: Final = "now()"
"""The one default that is no constant: the time at which rows are written."""
_NO_CALL: Final = {"funcformat", "location"}
"""What the node of a call without arguments has beside its name."""
BOOLEANS: Final = {"true": "t", "false": "f"}
"""Words that are defaults, and their values."""


def default_constant(node: Json) -> str | None:
    """None for DEFAULT NULL. Raises FeatureNotSupported."""
    match node:
        case {"A_Const": fields}:
            value = constant(node)
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, str) and "sval" in fields:
                return simple_quote_literal(value)
            return None if value is None else str(value)
        case {"FuncCall": {"funcname": [{"String": {"sval": "now"}}], **more}} if not (
            more.keys() - _NO_CALL
        ):
            return NOW
        case {"SQLValueFunction": {"op": "SVFOP_CURRENT_TIMESTAMP"}}:
            return NOW
    raise not_supported("DEFAULT with an expression")


def default_text(default: str, now: datetime | None = None) -> str:
    """The value in PostgreSQL's text format. ``now``: what NOW stands for."""
    if default == NOW and now is not None:
        return read_timestamp(now.isoformat(sep=" "), zone=True)
    if default in BOOLEANS:
        return BOOLEANS[default]
    return default[1:-1].replace("''", "'") if default.startswith("'") else default
