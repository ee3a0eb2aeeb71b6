"""ORDER BY of ranges, beside a server."""

from __future__ import annotations

from itertools import product

import pytest

from executor.lake_oracle import LakeOracle
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_DAYS = ("-infinity", "0044-03-15 BC", "1999-12-31", "2000-01-01", "10000-01-01", "infinity")
_TIMES = ("-infinity", "0044-03-15 12:00:00.5 BC", "2000-01-01 00:00:00", "infinity")
_RANGES = {
    "int4range": ("-2147483648", "-1", "9", "10"),
    "int8range": ("-9223372036854775808", "9", "10"),
    "numrange": ("-Infinity", "-1.50", "9", "10", "1e40", "Infinity", "NaN"),
    "daterange": _DAYS,
    "tsrange": _TIMES,
    "tstzrange": _TIMES,
}


def test_ranges_are_ordered_as_by_a_server(database: Database) -> None:
    with database.connect() as connection:
        oracle = LakeOracle(connection)
        for type_, values in _RANGES.items():
            texts: list[str | None] = [None, "empty"]
            bounds = ["", *(f'"{value}"' for value in values)]
            for left, lower, upper, right in product("[(", bounds, bounds, "])"):
                ordered = not lower or not upper or bounds.index(lower) <= bounds.index(upper)
                if ordered:
                    texts.append(f"{left}{lower},{upper}{right}")
            rows = [[str(number), text] for number, text in enumerate(texts)]
            oracle.create(f"of_{type_}", {"n": "int", "r": type_}, rows)
            for order in ("", " DESC", " NULLS FIRST", " DESC NULLS LAST"):
                query = f"SELECT n, r FROM of_{type_} ORDER BY r{order}, n"
                assert oracle.compare(query) == "equal", oracle.tally
