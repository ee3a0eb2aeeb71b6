"""Rows of a server as Arrow arrays, by the product's own reader of texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus

from penstock.pgtypes import arrow_type, find


def arrow_arrays(
    connection: psycopg.Connection[Any], query: str, types: Iterable[tuple[int, int]]
) -> list[pa.Array]:
    """``types``: oid and typmod of each column."""
    result = connection.pgconn.exec_(query.encode())
    assert result.status == ExecStatus.TUPLES_OK, result.error_message
    arrays = []
    for number, (oid, typmod) in enumerate(types):
        family = find(oid)
        cells = (result.get_value(row, number) for row in range(result.ntuples))
        values = [None if cell is None else family.text_value(cell, typmod) for cell in cells]
        arrays.append(pa.array(values, arrow_type(oid, typmod)))
    return arrays
