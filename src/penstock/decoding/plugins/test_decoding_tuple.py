"""A tuple as test_decoding prints it (test_decoding.c, tuple_to_stringinfo, print_literal).

In: a tuple, or columns of many. Out: the text behind ``INSERT:``, of one row or of all rows, which
a property test keeps equal.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoding.relation_data import AttributeData, RelationData
from penstock.decoding.tuple_columns import Tuple, TupleColumn, TupleColumns, Unsent
from penstock.pgtypes.pg_type import BIT, BOOL, FLOATS, INTEGERS, NUMERIC, OID, VARBIT

_BARE: Final = INTEGERS | FLOATS | {NUMERIC, OID}
_BITS: Final = frozenset({BIT, VARBIT})
_UNCHANGED: Final = "unchanged-toast-datum"
_NULL: Final = "null"

Pieces = list[pa.Array | str]
"""Parts of a text of every row: the same in each, or one for each."""


def tuple_text(relation: RelationData, row: Tuple, *, skip_nulls: bool) -> str:
    """Of one row."""
    parts = []
    for index, attribute in enumerate(relation.attributes):
        value = row.text(index)
        if value is Unsent.NOT_SENT or (value is None and skip_nulls):
            continue
        if value is Unsent.UNCHANGED_TOAST:
            shown = _UNCHANGED
        else:
            shown = _NULL if value is None else _literal(attribute.type_oid, str(value))
        parts.append(_head(attribute) + shown)
    return "".join(parts)


def tuple_pieces(columns: TupleColumns, *, skip_nulls: bool) -> Pieces:
    """The same of all rows."""
    pieces: Pieces = []
    for attribute, column in zip(columns.relation.attributes, columns.columns, strict=True):
        if column is not None:
            pieces += _column(attribute, column, skip_nulls)
    return pieces


def joined(pieces: Pieces, rows: int) -> pa.Array:
    """The pieces of each row in a row."""
    merged: Pieces = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, str) for piece in merged):
        return pa.repeat(pa.scalar("".join(map(str, merged))), rows)
    arguments = [pa.scalar(p) if isinstance(p, str) else p for p in merged]
    return pc.binary_join_element_wise(*arguments, pa.scalar(""))


def _head(attribute: AttributeData) -> str:
    return f" {attribute.quoted_name}[{attribute.type_name}]:"


def _literal(type_oid: int, text: str) -> str:
    if type_oid in _BARE:
        return text
    if type_oid in _BITS:
        return f"B'{text}'"
    if type_oid == BOOL:
        return "true" if text == "t" else "false"
    return "'" + text.replace("'", "''") + "'"


def _column(attribute: AttributeData, column: TupleColumn, skip_nulls: bool) -> Pieces:
    head = _head(attribute)
    if column.unchanged is None and column.text.null_count == len(column.text):
        return [] if skip_nulls else [head + _NULL]
    pieces = [head, *_literals(attribute.type_oid, column.text)]
    if column.text.null_count == 0:
        return pieces
    text = joined(pieces, len(column.text))  # null where a piece of it is
    text = pc.fill_null(text, "" if skip_nulls else head + _NULL)
    if column.unchanged is not None:
        text = pc.if_else(pa.array(column.unchanged), head + _UNCHANGED, text)
    return [text]


def _literals(type_oid: int, text: pa.Array) -> Pieces:
    if type_oid in _BARE:
        return [text]
    if type_oid in _BITS:
        return ["B'", text, "'"]
    if type_oid == BOOL:
        return [pc.if_else(pc.equal(text, "t"), "true", "false")]
    if pc.any(pc.match_substring(text, "'")).as_py():
        text = pc.replace_substring(text, "'", "''")
    return ["'", text, "'"]
