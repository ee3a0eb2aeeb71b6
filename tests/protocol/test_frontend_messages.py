"""Messages of a client: whole, in pieces, cut off, and broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocol import authentication as auth
from penstock.protocol import frontend_messages as m
from penstock.protocol.encoding import UTF8, find_encoding
from penstock.protocol.framing import Frame, FrameReader, frame
from penstock.protocol.frontend_messages import decode_frontend
from penstock.protocol.startup import StartupMessage, decode_startup
from protocol.client_messages import encode_frontend, encode_startup
from protocol.messages import LATIN1, frontend, startup

LIMIT = 1 << 20


def frames(reader: FrameReader) -> list[Frame]:
    found = []
    while (one := reader.next_frame(lambda kind: LIMIT)) is not None:
        found.append(one)
    return found


@given(st.lists(frontend(), max_size=4), st.integers(1, 30))
def test_messages_split_anywhere_are_read_whole(
    messages: list[m.FrontendMessage], size: int
) -> None:
    data = b"".join(encode_frontend(message) for message in messages)
    reader = FrameReader()
    read = []
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        read += [decode_frontend(one) for one in frames(reader)]
    assert read == messages
    assert reader.buffered == 0


@given(frontend(LATIN1))
def test_text_in_another_encoding(message: m.FrontendMessage) -> None:
    latin1 = find_encoding("iso-8859-1")
    reader = FrameReader()
    reader.feed(encode_frontend(message, latin1))
    (one,) = frames(reader)
    assert decode_frontend(one, latin1) == message


@given(frontend())
def test_a_message_cut_short_is_refused(message: m.FrontendMessage) -> None:
    """At each length of the payload: an error of ours, or another message."""
    data = encode_frontend(message)
    payload = data[5:]
    for size in range(len(payload)):
        try:
            cut = decode_frontend(Frame(data[0], payload[:size]))
        except PenstockError as error:
            assert error.sqlstate in ("08P01", "22021", "22023")
        else:
            assert isinstance(cut, m.CopyData | m.CopyFail)


@given(frontend(), st.binary(min_size=1, max_size=3))
def test_bytes_behind_a_message_are_refused(message: m.FrontendMessage, more: bytes) -> None:
    data = encode_frontend(message)
    one = Frame(data[0], data[5:] + more)
    if isinstance(message, m.CopyData | m.CopyDone | m.CopyFail | m.Terminate):
        decode_frontend(one)
    else:
        with pytest.raises(ProtocolViolation, match="invalid message format"):
            decode_frontend(one)


@given(st.integers(0, 255), st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error_of_ours(kind: int, payload: bytes) -> None:
    try:
        decode_frontend(Frame(kind, payload))
    except PenstockError as error:
        assert error.sqlstate in ("08P01", "22021", "22023")


@given(startup(), st.integers(1, 30))
def test_startup_packets(packet: object, size: int) -> None:
    data = encode_startup(packet)  # type: ignore[arg-type]
    reader = FrameReader()
    bodies: list[bytes] = []
    for at in range(0, len(data), size):
        assert not bodies
        reader.feed(data[at : at + size])
        if (body := reader.next_startup(10_000)) is not None:
            bodies.append(body)
    assert [decode_startup(body) for body in bodies] == [packet]


@given(startup())
def test_a_startup_packet_cut_short_is_refused(packet: object) -> None:
    body = encode_startup(packet)[4:]  # type: ignore[arg-type]
    for size in range(4, len(body)):
        try:
            cut = decode_startup(body[:size])
        except PenstockError as error:
            assert error.sqlstate in ("08P01", "22021")
        else:
            # A cancel key may have any length, and the empty name ends a list of parameters.
            assert not isinstance(cut, StartupMessage)


@given(st.binary(min_size=4, max_size=60))
def test_any_bytes_are_a_startup_packet_or_an_error_of_ours(body: bytes) -> None:
    for start in (b"", b"\0\3\0\0"):
        try:
            decode_startup(start + body)
        except PenstockError as error:
            assert error.sqlstate in ("08P01", "22021", "0A000")


@pytest.mark.parametrize("length", [-1, 0, 3, 101, 2**31 - 1])
def test_a_length_that_cannot_be_is_refused_with_the_header(length: int) -> None:
    reader = FrameReader()
    reader.feed(b"Q" + length.to_bytes(4, "big", signed=True))
    with pytest.raises(ProtocolViolation, match="invalid message length"):
        reader.next_frame(lambda kind: 100)


@pytest.mark.parametrize("length", [-1, 0, 7, 10_005, 0x16030100, 2**31 - 1])
def test_a_length_of_a_startup_packet_that_cannot_be(length: int) -> None:
    reader = FrameReader()
    reader.feed(length.to_bytes(4, "big", signed=True))
    with pytest.raises(ProtocolViolation, match="invalid length of startup packet"):
        reader.next_startup(10_000)


def test_many_small_messages_behind_one_another() -> None:
    """A quarter of a million at once: linear, and the buffer is given back."""
    reader = FrameReader()
    reader.feed(frame(b"S") * 250_000)
    assert len(frames(reader)) == 250_000
    assert reader.buffered == 0


def test_no_secret_in_a_repr() -> None:
    shown = [
        m.Query("ALTER ROLE r PASSWORD 'hidden'"),
        m.Parse("s", "ALTER ROLE r PASSWORD 'hidden'", ()),
        m.Bind("", "s", (), (b"hidden",), ()),
        Frame(ord("p"), b"hidden"),
        auth.SaslInitialResponse("SCRAM-SHA-256", b"hidden"),
        auth.SaslResponse(b"hidden"),
    ]
    assert "hidden" not in repr(shown)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("utf8", b"\xff", 'invalid byte sequence for encoding "UTF8": 0xff'),
        ("utf8", b"a\xe2\x28\xa1", 'invalid byte sequence for encoding "UTF8": 0xe2 0x28 0xa1'),
        ("sql_ascii", b"\xc3", 'invalid byte sequence for encoding "UTF8": 0xc3'),
        ("win1252", b"\x81", 'invalid byte sequence for encoding "WIN1252": 0x81'),
    ],
)
def test_text_that_is_none(name: str, raw: bytes, message: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_frontend(Frame(ord("Q"), raw + b"\0"), find_encoding(name))
    assert (caught.value.sqlstate, caught.value.message) == ("22021", message)


def test_characters_without_an_equivalent() -> None:
    with pytest.raises(PenstockError) as caught:
        find_encoding("LATIN1").encode("5 €")
    assert caught.value.sqlstate == "22P05"
    assert caught.value.message == (
        'character with byte sequence 0xe2 0x82 0xac in encoding "UTF8"'
        ' has no equivalent in encoding "LATIN1"'
    )
    assert find_encoding("latin-1").encode_lossy("5 €") == b"5 ?"
    assert UTF8.encode_lossy("\ud800") == b"?"
