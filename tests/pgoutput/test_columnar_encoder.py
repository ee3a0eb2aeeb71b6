"""All rows at once, or one by one: the same bytes, and the decoder reads them again."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar_encoder import (
    EncodedColumn,
    delete_messages,
    insert_messages,
    update_messages,
)
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import NULL, Binary, Cell, Text, TupleData
from penstock.protocol.copy_both import insert_int32, xlog_data, xlog_data_head

OID = 2**32 - 7
CELLS = st.none() | st.binary(max_size=5) | st.just(b"x" * 300)
Header = tuple[Lsn, int]
HEADERS = st.tuples(st.integers(0, 2**64 - 1).map(Lsn), st.integers(0, 2**60))
XIDS = st.none() | st.integers(0, 2**32 - 1)


@st.composite
def tables(draw: st.DrawFn, rows: int) -> list[EncodedColumn]:
    """Columns of so many rows, some of them slices of longer ones."""
    columns = []
    for _ in range(draw(st.integers(0, 4))):
        cells = draw(st.lists(CELLS, min_size=rows, max_size=rows))
        array = pa.array([b"before", None, *cells, b"behind"], pa.binary()).slice(2, rows)
        if draw(st.booleans()):
            array = pa.array(cells, pa.binary())
        columns.append(EncodedColumn(array, draw(st.booleans())))
    return columns


def tuple_of(columns: Sequence[EncodedColumn], row: int) -> TupleData:
    def cell(column: EncodedColumn) -> Cell:
        raw = column.cells[row].as_py()
        if raw is None:
            return NULL
        return Binary(raw) if column.binary else Text(raw)

    return tuple(cell(column) for column in columns)


def same(made: bytes, wanted: Sequence[m.Message], header: Header) -> None:
    assert made == b"".join(xlog_data(*header, encode(message)) for message in wanted)


def read_again(made: bytes, wanted: Sequence[m.Message], xid: int | None) -> None:
    decoder = Decoder(2)
    if xid is not None:
        decoder.decode(encode(m.StreamStart(xid, True)))
    found = []
    while made:
        end = 1 + int.from_bytes(made[1:5], "big")
        found.append(decoder.decode(made[5 + 25 : end]))
        made = made[end:]
    assert found == list(wanted)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 6), HEADERS, XIDS)
def test_inserts(data: st.DataObject, rows: int, header: Header, xid: int | None) -> None:
    new = data.draw(tables(rows))
    wanted = [m.Insert(OID, tuple_of(new, row), xid=xid) for row in range(rows)]
    made = insert_messages(OID, new, rows, xlog_data_head(*header))
    if xid is not None:
        made = insert_int32(made, rows, 1, xid)  # as pgoutput does in a streamed block
    same(made, wanted, header)
    read_again(made, wanted, xid)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 6), HEADERS, XIDS, st.sampled_from(m.OldTuple))
def test_deletes(
    data: st.DataObject, rows: int, header: Header, xid: int | None, kind: m.OldTuple
) -> None:
    old = data.draw(tables(rows))
    wanted = [m.Delete(OID, tuple_of(old, row), kind, xid=xid) for row in range(rows)]
    made = delete_messages(OID, old, kind, rows, xlog_data_head(*header))
    if xid is not None:
        made = insert_int32(made, rows, 1, xid)  # as pgoutput does in a streamed block
    same(made, wanted, header)
    read_again(made, wanted, xid)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 6), HEADERS, XIDS, st.none() | st.sampled_from(m.OldTuple))
def test_updates(
    data: st.DataObject, rows: int, header: Header, xid: int | None, kind: m.OldTuple | None
) -> None:
    new = data.draw(tables(rows))
    old = None if kind is None else data.draw(tables(rows))
    wanted = [
        m.Update(
            OID, tuple_of(new, row), None if old is None else tuple_of(old, row), kind, xid=xid
        )
        for row in range(rows)
    ]
    made = update_messages(OID, new, rows, xlog_data_head(*header), old=old, kind=kind)
    if xid is not None:
        made = insert_int32(made, rows, 1, xid)  # as pgoutput does in a streamed block
    same(made, wanted, header)
    read_again(made, wanted, xid)


def test_rows_without_columns() -> None:
    messages = insert_messages(OID, [], 3, xlog_data_head(Lsn(1), 0))
    same(messages, [m.Insert(OID, ())] * 3, (Lsn(1), 0))


@pytest.mark.parametrize("rows", [0, 1, 70_000])
def test_many_rows(rows: int) -> None:
    cells = pa.array([None if i % 7 == 0 else b"%d" % i for i in range(rows)], pa.binary())
    made = insert_messages(OID, [EncodedColumn(cells)] * 2, rows, xlog_data_head(Lsn(7), 1))
    wanted = [NULL if raw is None else Text(raw) for raw in cells.to_pylist()]
    out = [xlog_data(Lsn(7), 1, encode(m.Insert(OID, (cell, cell)))) for cell in wanted]
    assert made == b"".join(out)
