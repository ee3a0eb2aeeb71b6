"""Messages one by one: bytes from the reference, round trips, and everything that is no message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar import ColumnarDecoder
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import NULL, UNCHANGED, Binary, Text
from penstock.pgtypes import find
from penstock.relation import Relation, ReplicaIdentity
from pgoutput.strategies import CHANGES, OTHERS, chunk_of

GOLDEN: list[tuple[str, m.Message]] = [
    (
        "42 00000000 0153B560 000303B02BE15854 000002DF",
        m.Begin(Lsn(0x153B560), 0x000303B02BE15854, 0x2DF),
    ),
    (
        "43 00 00000000 0153B560 00000000 0153B590 000303B02BE15854",
        m.Commit(Lsn(0x153B560), Lsn(0x153B590), 0x000303B02BE15854),
    ),
    ("4F 00000000 0153B560 65617374 00", m.Origin(Lsn(0x153B560), "east")),
    (
        "59 00004008 7075626C696300 6D6F6F6400",
        m.TypeMessage(0x4008, "public", "mood"),
    ),
    (
        "52 00004018 7075626C696300 743300 66 0002 01 6100 00000017 FFFFFFFF"
        "00 6200 000006A4 00120008",
        m.RelationMessage(
            Relation(
                0x4018,
                "public",
                "t3",
                ReplicaIdentity.FULL,
                (Attribute("a", 23, key=True), Attribute("b", 1700, 0x120008)),
            )
        ),
    ),
    (
        "52 000004F2 00 6F6400 64 0000",
        m.RelationMessage(Relation(0x4F2, "pg_catalog", "od", ReplicaIdentity.DEFAULT, ())),
    ),
    (
        "49 00004018 4E 0004 74 00000001 31 6E 75 62 00000002 00FF",
        m.Insert(0x4018, (Text(b"1"), NULL, UNCHANGED, Binary(b"\0\xff"))),
    ),
    (
        "55 00004018 4B 0002 74 00000001 32 6E 4E 0002 74 00000001 33 75",
        m.Update(0x4018, (Text(b"3"), UNCHANGED), (Text(b"2"), NULL), m.OldTuple.KEY),
    ),
    ("55 00004018 4E 0001 6E", m.Update(0x4018, (NULL,))),
    (
        "44 00004018 4B 0002 74 00000001 32 6E",
        m.Delete(0x4018, (Text(b"2"), NULL), m.OldTuple.KEY),
    ),
    ("44 00004018 4F 0001 6E", m.Delete(0x4018, (NULL,), m.OldTuple.ROW)),
    ("54 00000002 03 00004000 00004018", m.Truncate((0x4000, 0x4018), True, True)),
    (
        "4D 01 00000000 0153B560 7000 00000002 6869",
        m.LogicalMessage(True, Lsn(0x153B560), "p", b"hi"),
    ),
]

STREAMED: list[tuple[str, m.Message]] = [
    ("53 000002E3 01", m.StreamStart(0x2E3, True)),
    ("49 000002E4 00004018 4E 0001 6E", m.Insert(0x4018, (NULL,), xid=0x2E4)),
    ("54 000002E4 00000001 00 00004018", m.Truncate((0x4018,), xid=0x2E4)),
    ("45", m.StreamStop()),
    ("41 000002E3 000002E4", m.StreamAbort(0x2E3, 0x2E4)),
    (
        "63 000002E3 00 00000000 0153B560 00000000 0153B590 0000000000000001",
        m.StreamCommit(0x2E3, Lsn(0x153B560), Lsn(0x153B590), 1),
    ),
]


@pytest.mark.parametrize(("text", "message"), GOLDEN)
def test_frames_of_the_reference(text: str, message: m.Message) -> None:
    payload = bytes.fromhex(text)
    assert Decoder().decode(payload) == message
    assert encode(message) == payload


def test_frames_of_a_streamed_transaction() -> None:
    decoder = Decoder(2)
    for text, message in STREAMED:
        assert decoder.decode(bytes.fromhex(text)) == message
        assert encode(message) == bytes.fromhex(text)


@pytest.mark.parametrize("kind", [*CHANGES, *OTHERS])
def test_what_was_encoded_is_decoded(kind: str) -> None:
    @given({**CHANGES, **OTHERS}[kind])
    @settings(max_examples=50, deadline=None)
    def run(message: Any) -> None:
        assert encode(message)[:1] == kind.encode()
        assert Decoder(4, parallel=True).decode(encode(message)) == message

    run()


@pytest.mark.parametrize("kind", [*CHANGES, *OTHERS])
def test_truncated_messages_are_refused_at_each_length(kind: str) -> None:
    @given({**CHANGES, **OTHERS}[kind])
    @settings(max_examples=30, deadline=None)
    def run(message: Any) -> None:
        whole = encode(message)
        for size in range(len(whole)):
            with pytest.raises(ProtocolViolation):
                Decoder(4, parallel=True).decode(whole[:size])
        with pytest.raises(ProtocolViolation):
            Decoder(4, parallel=True).decode(whole + b"\0")

    run()


@given(st.binary(max_size=40), st.sampled_from("BCORYIUDTMSEcAbPKrp"))
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_message_or_a_protocol_violation(garbage: bytes, kind: str) -> None:
    for payload in (garbage, kind.encode() + garbage):
        try:
            message = Decoder(4).decode(payload)
        except ProtocolViolation:
            continue
        assert message is not None


def test_unknown_messages_have_postgres_words() -> None:
    with pytest.raises(ProtocolViolation, match=r'message type "\?\?\? \(122\)"'):
        Decoder().decode(b"z")
    with pytest.raises(ProtocolViolation, match=r"\(83\)"):
        Decoder(1).decode(bytes.fromhex("53 000002E3 01"))
    with pytest.raises(ProtocolViolation, match=r"\(83\)"):
        ColumnarDecoder(find).decode(chunk_of([b"S\0\0\0\1\1"]))


def test_stream_blocks_do_not_nest() -> None:
    decoder = Decoder(2)
    with pytest.raises(ProtocolViolation, match="STREAM STOP message without STREAM START"):
        decoder.decode(b"E")
    decoder.decode(encode(m.StreamStart(1, True)))
    with pytest.raises(ProtocolViolation, match="duplicate STREAM START message"):
        decoder.decode(encode(m.StreamStart(2, True)))
