"""Defaults of columns: what a row holds where nobody gives a value (pg_attrdef).

In: the default as CREATE TABLE on the node had it, kept in the column's metadata: a constant as SQL
writes it, or now(). Out: the value in the column's Arrow type. Rows of a subscription get it in
columns that the publication lacks. Other writers do not know it.
"""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.lakehouse.schema import Column
from penstock.sql.default_grammar import default_text


def default_value(column: Column, now: datetime) -> pa.Scalar:
    """NULL where there is no default. Raises ValueNotRepresentable, ProtocolViolation."""
    text = column.default
    if text is None:
        return pa.scalar(None, column.type)
    return constant(text, column.type_oid, column.typmod, column.type, now)


def constant(text: str, type_oid: int, typmod: int, kind: pa.DataType, now: datetime) -> pa.Scalar:
    """A default as SQL writes it, as a value of a type."""
    raw = default_text(text, now).encode()
    return pa.scalar(pgtypes.find(type_oid).text_value(raw, typmod), kind)


def filled(column: Column, rows: int, now: datetime) -> pa.Array:
    """A whole column of it."""
    return pa.repeat(default_value(column, now), rows)
