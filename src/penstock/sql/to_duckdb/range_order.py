"""The order of ranges (rangetypes.c, range_cmp), of values that are held as their text.

In: SQL of a range's text, as ``range_out`` prints it, and its type. Out: SQL of a value that DuckDB
orders the same way: the empty range, then by the lower bounds, then by the upper ones, where a
missing bound lies beyond every value.
"""

from __future__ import annotations

from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.pgtypes.pg_type import DATE, INT4, INT8, NUMERIC, TIMESTAMP, TIMESTAMPTZ
from penstock.sql.to_duckdb.duckdb_values import DUCKDB, sort_key

SUBTYPES: Final = {
    3904: INT4,
    3906: NUMERIC,
    3908: TIMESTAMP,
    3910: TIMESTAMPTZ,
    3912: DATE,
    3926: INT8,
}
"""pg_range.rngsubtype by rngtypid."""
_BOUND: Final = '"?([^",]*)"?'
_PARTS: Final = simple_quote_literal(rf"([\[(]){_BOUND},{_BOUND}([\])])")
_LOWER: Final = 2
_UPPER: Final = 3


def range_key(text: str, range_type: int) -> str:
    """A struct: DuckDB orders it by its fields. Missing bounds are equal, so that what stands in
    their fields matters not."""
    subtype = SUBTYPES[range_type]
    lower, upper = _part(text, _LOWER), _part(text, _UPPER)
    fields = {
        "full": f"{text} <> 'empty'",
        "bounded_below": f"{lower} <> ''",
        "lower_value": _value(lower, subtype),
        "beyond_lower": f"starts_with({text}, '(')",
        "unbounded_above": f"{upper} = ''",
        "upper_value": _value(upper, subtype),
        "with_upper": f"ends_with({text}, ']')",
    }
    body = ", ".join(f"{name} := {sql}" for name, sql in fields.items())
    return f"CASE WHEN {text} IS NOT NULL THEN struct_pack({body}) END"


def _part(text: str, group: int) -> str:
    return f"regexp_extract({text}, {_PARTS}, {group})"


def _value(bound: str, subtype: int) -> str:
    given = f"nullif({bound}, '')"
    if subtype == NUMERIC:
        return sort_key(given)
    if subtype in (DATE, TIMESTAMP, TIMESTAMPTZ):
        # DuckDB writes (BC) after the date.
        given = rf"regexp_replace({given}, '^(\S+)(.*) BC$', '\1 (BC)\2')"
    return f"CAST({given} AS {DUCKDB[subtype]})"
