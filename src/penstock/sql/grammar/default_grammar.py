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
CURRENT_DATE: Final = "CURRENT_DATE"
LOCALTIMESTAMP: Final = "LOCALTIMESTAMP"
TIMES: Final = frozenset({NOW, CURRENT_DATE, LOCALTIMESTAMP})
"""Defaults that are no constants: the time of the transaction that writes rows."""
_TIME_OF: Final = {
    "SVFOP_CURRENT_TIMESTAMP": NOW,
    "SVFOP_CURRENT_DATE": CURRENT_DATE,
    "SVFOP_LOCALTIMESTAMP": LOCALTIMESTAMP,
}
NEXTVAL: Final = "nextval()"
"""The default of a serial or identity column: the next value of its sequence, which the node's
catalog knows. No other default is written so."""
_NO_CALL: Final = {"funcformat", "location"}
"""The fields of a call without arguments, beside its name."""
BOOLEANS: Final = {"true": "t", "false": "f"}
"""Words that are defaults, and their values."""


def default_constant(node: Json) -> str | None:
    """Return the constant, None for DEFAULT NULL. Raises FeatureNotSupported."""
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
        case {"SQLValueFunction": {"op": operation}} if operation in _TIME_OF:
            return _TIME_OF[operation]
    raise not_supported("DEFAULT with an expression")


def default_text(default: str, now: datetime | None = None) -> str:
    """Return the value in PostgreSQL's text format. ``now``: the time for now(), in UTC."""
    if default in TIMES and now is not None:
        if default == CURRENT_DATE:
            return now.date().isoformat()
        zone = default == NOW
        at = now if zone else now.replace(tzinfo=None)
        return read_timestamp(at.isoformat(sep=" "), zone=zone)
    if default in BOOLEANS:
        return BOOLEANS[default]
    return default[1:-1].replace("''", "'") if default.startswith("'") else default
