"""An item of ORDER BY as DuckDB orders the way PostgreSQL does.

In: a sort key with its compiled value. Out: SQL; types whose order is another one are refused.
"""

from __future__ import annotations

from typing import Final

from penstock.pgtypes.pg_type import BPCHAR, NUMERIC
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_operators import PLAIN
from penstock.sql.to_duckdb.duckdb_values import (
    Value,
    comparable,
    refused,
)
from penstock.sql.to_duckdb.range_order import SUBTYPES, range_key
from penstock.sql.typed.coercion import element
from penstock.sql.typed.query_nodes import SortKey

_ORDERED: Final = PLAIN | {NUMERIC, BPCHAR}


def order_by(key: SortKey, value: Value) -> str:
    """``value``: of the key's node. Raises FeatureNotSupported."""
    if value.type in SUBTYPES:
        return f"{range_key(value.sql, value.type)} {_direction(key)}"
    if value.type not in _ORDERED and not is_enum(value.type):
        # NULL elements go where NULL does, which is right for the usual two orders only.
        usual = key.nulls_first == key.descending
        if element(value.type) not in _ORDERED or not usual:
            raise refused(f"ORDER BY of {type_name(value.type)}")
    return f"{comparable(value, value)[0]} {_direction(key)}"


def in_own_order(value: Value) -> bool:
    """Whether the value itself is what it is ordered by."""
    return value.type not in SUBTYPES and comparable(value, value)[0] == value.sql


def _direction(key: SortKey) -> str:
    direction = "DESC" if key.descending else "ASC"
    return f"{direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
