"""Frames of CopyBoth and rows of COPY, against what PostgreSQL sends."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_postgres import Database
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.protocol.backend_messages import copy_data
from penstock.protocol.copy_both import (
    HotStandbyFeedback,
    StandbyStatusUpdate,
    decode_standby_message,
    keepalive,
    xlog_data,
)
from penstock.protocol.copy_columns import BINARY_END, BINARY_HEADER, with_binary_header
from protocol.client_messages import (
    PrimaryKeepalive,
    XLogData,
    binary_messages,
    binary_row,
    decode_sender_message,
    status_update,
    text_row,
)

LSN = st.integers(0, 2**64 - 1).map(Lsn)
TIME = st.integers(-(2**63) + EPOCH_MICROSECONDS, 2**63 - 1)


@given(LSN, LSN, LSN, TIME, st.booleans())
def test_a_status_update_and_its_pieces(
    write: Lsn, flush: Lsn, apply: Lsn, time: int, reply: bool
) -> None:
    update = StandbyStatusUpdate(write, flush, apply, time, reply)
    payload = status_update(update)
    assert len(payload) == 34
    assert decode_standby_message(payload) == update
    for size in range(len(payload)):
        with pytest.raises(ProtocolViolation):
            decode_standby_message(payload[:size])
    with pytest.raises(ProtocolViolation, match="invalid message format"):
        decode_standby_message(payload + b"x")


def test_hot_standby_feedback() -> None:
    payload = b"h" + struct.pack("!qIIII", 5, 1, 2, 3, 2**32 - 1)
    read = decode_standby_message(payload)
    assert read == HotStandbyFeedback(EPOCH_MICROSECONDS + 5, 1, 2, 3, 2**32 - 1)
    for size in range(len(payload)):
        with pytest.raises(ProtocolViolation):
            decode_standby_message(payload[:size])


@given(st.binary(max_size=40))
def test_any_bytes_from_a_receiver(payload: bytes) -> None:
    try:
        decode_standby_message(payload)
    except ProtocolViolation as error:
        assert error.sqlstate == "08P01"


def test_another_message_of_a_receiver() -> None:
    with pytest.raises(ProtocolViolation, match='unexpected message type "z"'):
        decode_standby_message(b"z")
    with pytest.raises(ProtocolViolation, match="no data left in message"):
        decode_standby_message(b"")


@given(LSN, TIME, st.binary(max_size=20))
def test_what_a_walsender_sends(lsn: Lsn, time: int, payload: bytes) -> None:
    message = xlog_data(lsn, time, payload)
    assert message == copy_data(message[5:])
    assert decode_sender_message(message[5:]) == XLogData(lsn, lsn, time, payload)
    for reply in (False, True):
        alive = keepalive(lsn, time, reply_requested=reply)
        assert len(alive) == 18
        assert decode_sender_message(alive) == PrimaryKeepalive(lsn, time, reply)
    with pytest.raises(ProtocolViolation):
        decode_sender_message(alive + b"x")


ROWS: list[list[str | None]] = [
    ["plain", "", None],
    ["tab\tnew\nline", "back\\slash\\N", "\\"],
    ["".join(map(chr, range(1, 32))), "\x7f é €", "\\."],
    [None, None, None],
]


@pytest.mark.parametrize("binary", [False, True])
def test_the_rows_that_the_server_sends(database: Database, binary: bool) -> None:
    connection = database.connect()
    connection.execute("CREATE TABLE r (n int, a text, b text, c text)")
    for number, row in enumerate(ROWS):
        connection.execute("INSERT INTO r VALUES (%s, %s, %s, %s)", (number, *row))
    query = "COPY (SELECT a, b, c FROM r ORDER BY n) TO STDOUT"
    if binary:
        query += " WITH (FORMAT binary)"
    with connection.cursor().copy(query) as copy:
        theirs = [bytes(data) for data in copy]
    cells = [[None if c is None else c.encode() for c in row] for row in ROWS]
    if not binary:
        assert [text_row(row) for row in cells] == theirs
        return
    ours = with_binary_header(binary_messages(cells)) + BINARY_END
    assert ours == b"".join(map(copy_data, theirs))
    assert theirs[0] == BINARY_HEADER + binary_row(cells[0])


def test_copies_without_rows_or_columns(database: Database) -> None:
    connection = database.connect()
    connection.execute("CREATE TABLE none (); INSERT INTO none DEFAULT VALUES")
    with connection.cursor().copy("COPY none TO STDOUT") as copy:
        assert [bytes(data) for data in copy] == [text_row([])]
    connection.execute("DELETE FROM none")
    with connection.cursor().copy("COPY none TO STDOUT (FORMAT binary)") as copy:
        assert copy_data(b"".join(map(bytes, copy))) == with_binary_header(BINARY_END)
