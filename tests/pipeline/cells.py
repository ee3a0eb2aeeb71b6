"""Rows as cells of pgoutput: decoded from pieces of a stream, or made of what others read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import NULL, Binary, Cell, Message, RelationMessage, Text, TupleData
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.registry import type_of_arrow
from penstock.pgtypes.text_output import text_output
from penstock.protocol.framing import FrameReader
from penstock.walsender.feed import Portion
from protocol.client_messages import XLogData, decode_sender_message

Cells = tuple[Cell, ...]


def messages_of(piece: Portion) -> Iterator[Message]:
    """As a client reads them."""
    reader, decoder = FrameReader(), Decoder(4)
    reader.feed(piece.data)
    while (frame := reader.next_frame(lambda _: 1 << 30)) is not None:
        data = decode_sender_message(frame.payload)
        assert isinstance(data, XLogData)
        message = decoder.decode(data.payload)
        assert not isinstance(message, RelationMessage)
        yield message
    assert reader.buffered == 0


def cells_of(rows: pa.Table, *, binary: bool = False) -> Counter[Cells]:
    """What a subscriber has of these rows."""
    columns: list[list[Cell]] = []
    for column in rows.columns:
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
        array = array.cast(_plain(array.type))
        oid, typmod = type_of_arrow(array.type)
        sent_binary = binary and has_binary_output(oid, array.type)
        output, kind = (binary_output, Binary) if sent_binary else (text_output, Text)
        raw = _out(output, array, oid, typmod)
        columns.append([NULL if cell is None else kind(cell) for cell in raw])
    return Counter(zip(*columns, strict=True))


def _out(output: Any, array: pa.Array, oid: int, typmod: int) -> list[bytes | None]:
    found: list[bytes | None] = output(array, oid, typmod).to_pylist()
    return found


def _plain(kind: pa.DataType) -> pa.DataType:
    """As Spark gives it: delta-rs gives views of texts."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind


def with_columns(rows: Counter[Cells], old: Sequence[str], new: Sequence[str]) -> Counter[Cells]:
    """ALTER TABLE at the subscriber: columns that are new are NULL."""
    found: Counter[Cells] = Counter()
    for row, count in rows.items():
        values = dict(zip(old, row, strict=True))
        found[tuple(values.get(name, NULL) for name in new)] += count
    return found


def whole(row: TupleData) -> Cells:
    assert all(isinstance(cell, Text | Binary) or cell is NULL for cell in row)
    return tuple(row)


def shown(row: TupleData) -> str:
    """Cells by their text; binary ones as bytes."""
    return ",".join(
        cell.raw.decode()
        if isinstance(cell, Text)
        else repr(cell.raw)
        if isinstance(cell, Binary)
        else ""
        for cell in row
    )


def kind_of(change: str) -> str:
    return change[0]
