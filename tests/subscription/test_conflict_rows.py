"""Rows of the conflicts table: whatever a value is, its text is JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

from penstock.subscription.conflicts import row_json


def test_every_value_is_json() -> None:
    """What JSON has not is what to_jsonb makes of it, or its text."""
    row = {
        "nan": float("nan"),
        "ends": [float("inf"), float("-inf"), 0.5, None],
        "bytes": b"\x00\xff",
        "many": [b"a", [b""]],
        "money": Decimal("1.50"),
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "text": 'ä"',
    }

    def none(_name: str) -> None:
        raise AssertionError("a name that JSON has not")

    assert json.loads(str(row_json(row)), parse_constant=none) == {
        "nan": "NaN",
        "ends": ["Infinity", "-Infinity", 0.5, None],
        "bytes": "\\x00ff",
        "many": ["\\x61", ["\\x"]],
        "money": "1.50",
        "time": "2026-01-02 00:00:00+00:00",
        "text": 'ä"',
    }
    assert row_json(None) is None
