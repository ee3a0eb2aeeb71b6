"""The state machine: what is allowed when, and what an error leads to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocol import authentication as auth
from penstock.protocol import frontend_messages as m
from penstock.protocol.backend_messages import FieldDescription, TransactionStatus
from penstock.protocol.framing import frame
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Limits, Phase
from penstock.protocol.startup import (
    PROTOCOL_3_0,
    PROTOCOL_3_2,
    CancelRequest,
    GssEncRequest,
    SslRequest,
    StartupMessage,
    StartupPacket,
)
from protocol.client_messages import encode_frontend, encode_startup
from protocol.messages import frontend

STARTUP = StartupMessage(PROTOCOL_3_0, (("user", "ada"),))
READY = b"Z\0\0\0\5I"
BIND = m.Bind("", "", (), (), ())


def session(*, latest: int = PROTOCOL_3_2) -> ServerSession:
    return ServerSession(Limits(large_message=20_000), latest_protocol=latest)


def ready(*, walsender: bool = False) -> ServerSession:
    one = session()
    one.feed(encode_startup(STARTUP))
    assert one.next_event() == STARTUP
    one.walsender = walsender
    one.authentication_ok()
    assert one.ready_for_query() == READY
    return one


def say(one: ServerSession, *messages: m.FrontendMessage) -> None:
    one.feed(b"".join(encode_frontend(message) for message in messages))


def fields(response: bytes) -> dict[str, str]:
    """Of the ErrorResponse at the beginning."""
    assert response[:1] == b"E"
    body = response[5 : 1 + int.from_bytes(response[1:5], "big")]
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


def refusal(one: ServerSession) -> tuple[dict[str, str], bytes]:
    """What the client gets for the error that its next message leads to, and what follows it."""
    with pytest.raises(PenstockError) as caught:
        one.next_event()
    response = one.fail(caught.value)
    return fields(response), response[1 + int.from_bytes(response[1:5], "big") :]


def test_encryption_is_asked_for_before_the_startup_packet() -> None:
    one = session()
    for request in (GssEncRequest(), SslRequest()):
        one.feed(encode_startup(request))
        assert one.next_event() == request
        assert one.next_event() is None
        assert one.refuse_encryption() == b"N"
    one.feed(encode_startup(SslRequest()))
    error, _ = refusal(one)
    assert error["M"] == "unsupported frontend protocol 1234.5679: server supports 3.0 to 3.2"
    assert one.closed


def test_tls_begins_with_nothing_in_the_clear_behind_it() -> None:
    one = session()
    one.feed(encode_startup(SslRequest()))
    one.next_event()
    assert one.accept_tls() == b"S"
    one.feed(encode_startup(STARTUP))
    assert one.next_event() == STARTUP
    injected = session()
    injected.feed(encode_startup(SslRequest()) + encode_startup(STARTUP))
    injected.next_event()
    with pytest.raises(ProtocolViolation, match="received unencrypted data after SSL request"):
        injected.accept_tls()


@pytest.mark.parametrize(
    ("asked", "latest", "answer"),
    [
        (PROTOCOL_3_0, PROTOCOL_3_2, b""),
        (PROTOCOL_3_2, PROTOCOL_3_2, b""),
        (PROTOCOL_3_2 + 7, PROTOCOL_3_2, b"v\0\0\0\x0c\0\3\0\2\0\0\0\0"),
        (PROTOCOL_3_2, PROTOCOL_3_0, b"v\0\0\0\x0c\0\3\0\0\0\0\0\0"),
    ],
)
def test_negotiating_the_protocol_version(asked: int, latest: int, answer: bytes) -> None:
    one = session(latest=latest)
    message = StartupMessage(asked, (("user", "ada"),))
    one.feed(encode_startup(message))
    one.next_event()
    assert one.negotiate(message) == answer
    assert one.protocol == min(asked, latest)


def test_protocol_options_that_are_not_known() -> None:
    one = session()
    message = StartupMessage(PROTOCOL_3_0, (("user", "ada"), ("_pq_.new", "1")))
    one.feed(encode_startup(message))
    one.next_event()
    assert one.negotiate(message) == b"v\0\0\0\x15\0\3\0\0\0\0\0\1_pq_.new\0"


def test_a_cancel_request_ends_the_connection() -> None:
    one = session()
    one.feed(encode_startup(CancelRequest(7, b"key!")))
    assert one.next_event() == CancelRequest(7, b"key!")
    assert one.closed
    assert "key!" not in repr(CancelRequest(7, b"key!"))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\0\xa5", b"\0\0\0\0"])
def test_somebody_elses_protocol_is_not_answered(data: bytes) -> None:
    one = session()
    one.feed(data)
    with pytest.raises(ProtocolViolation, match="invalid length of startup packet") as caught:
        one.next_event()
    assert one.fail(caught.value) == b""
    assert one.closed


def test_authentication_takes_one_type_of_message() -> None:
    one = session()
    one.feed(encode_startup(STARTUP))
    one.next_event()
    assert one.next_event() is None
    one.request_sasl(("SCRAM-SHA-256",))
    say(one, m.Query("SELECT 1"))
    error, rest = refusal(one)
    assert error["M"] == "expected SASL response, got message type 81"
    assert (error["S"], error["C"], rest) == ("FATAL", "08P01", b"")
    assert one.closed


def test_a_long_message_before_authentication() -> None:
    one = session()
    one.feed(encode_startup(STARTUP))
    one.next_event()
    one.request_sasl(("SCRAM-SHA-256",))
    one.feed(b"p" + (auth.MAX_SASL_LENGTH + 1).to_bytes(4, "big"))
    error, _ = refusal(one)
    assert error["M"] == "invalid message length"


def test_no_query_without_authentication() -> None:
    one = session()
    one.feed(encode_startup(STARTUP) + encode_frontend(m.Query("SELECT 1")))
    one.next_event()
    assert one.next_event() is None
    with pytest.raises(PenstockError, match="without authentication"):
        one.ready_for_query()


def test_an_error_before_the_first_ready_for_query_is_fatal() -> None:
    one = session()
    one.feed(encode_startup(STARTUP))
    one.next_event()
    one.authentication_ok()
    assert fields(one.fail(PenstockError("no such database", sqlstate="3D000")))["S"] == "FATAL"
    assert one.closed
    assert one.fail(PenstockError("again")) == b""


def test_one_query_at_a_time() -> None:
    one = ready()
    say(one, m.Query("a"), m.Query("b"))
    assert one.next_event() == m.Query("a")
    assert one.next_event() is None
    one.command_complete("A")
    assert one.next_event() is None
    assert one.buffered == 7
    one.transaction_status = TransactionStatus.FAILED
    assert one.ready_for_query() == b"Z\0\0\0\5E"
    assert one.next_event() == m.Query("b")


def test_an_error_in_a_simple_query_is_followed_by_ready() -> None:
    one = ready()
    say(one, m.Query("a"), m.Query("b"))
    one.next_event()
    one.transaction_status = TransactionStatus.IN_TRANSACTION
    response = one.fail(PenstockError("no", detail="d", hint="h"), position=3)
    assert fields(response) == {
        "S": "ERROR", "V": "ERROR", "C": "XX000", "M": "no", "D": "d", "H": "h", "P": "3",
    }  # fmt: skip
    assert response.endswith(b"Z\0\0\0\5T")
    assert one.next_event() == m.Query("b")


def test_an_extended_query_and_its_answers() -> None:
    one = ready()
    messages = (
        m.Parse("", "SELECT", ()), BIND, m.Describe(m.STATEMENT, ""), m.Flush(),
        m.Execute("", 1), m.Execute("", 0), m.Close(m.PORTAL, ""), m.Sync(),
    )  # fmt: skip
    say(one, *messages)
    answers = {
        m.Parse: one.parse_complete,
        m.Bind: one.bind_complete,
        m.Describe: lambda: one.parameter_description([23]) + one.row_description([]),
        m.Execute: lambda: one.command_complete("SELECT 0"),
        m.Close: one.close_complete,
        m.Sync: one.ready_for_query,
    }
    out = b""
    for message in messages:
        assert one.next_event() == message
        if message == m.Execute("", 1):
            out += one.portal_suspended()
        elif not isinstance(message, m.Flush):
            assert one.next_event() is None
            out += answers[type(message)]()
    assert out == (
        b"1\0\0\0\4" b"2\0\0\0\4" b"t\0\0\0\x0a\0\1\0\0\0\x17" b"T\0\0\0\6\0\0"
        b"s\0\0\0\4" b"C\0\0\0\x0dSELECT 0\0" b"3\0\0\0\4"
    ) + READY  # fmt: skip


def test_after_an_error_everything_up_to_sync_is_skipped() -> None:
    one = ready()
    say(one, m.Parse("", "bad", ()), BIND, m.Query("skipped"), m.Execute("", 0), m.Sync(), BIND)
    one.next_event()
    assert fields(one.fail(PenstockError("bad")))["S"] == "ERROR"
    assert one.next_event() == m.Sync()
    assert one.ready_for_query() == READY
    assert one.next_event() == BIND


def test_a_broken_message_of_an_extended_query_is_an_error_like_any_other() -> None:
    one = ready()
    one.feed(frame(b"B", b"\0\0") + encode_frontend(m.Sync()))
    error, rest = refusal(one)
    assert (error["S"], error["M"], rest) == ("ERROR", "insufficient data left in message", b"")
    assert one.next_event() == m.Sync()


def test_terminate_while_skipping() -> None:
    one = ready()
    say(one, BIND, m.Terminate())
    one.next_event()
    one.fail(PenstockError("no"))
    assert one.next_event() == m.Terminate()
    assert one.closed


@pytest.mark.parametrize("kind", [b"p", b"Z", b"\0", b"\xff"])
def test_a_message_that_there_is_not_is_fatal(kind: bytes) -> None:
    one = ready()
    one.feed(kind)
    error, rest = refusal(one)
    assert error["M"] == f"invalid frontend message type {kind[0]}"
    assert (error["S"], rest) == ("FATAL", b"")
    assert one.closed


@pytest.mark.parametrize(
    ("kind", "length"), [(b"Q", 20_001), (b"d", 20_001), (b"S", 10_001), (b"Q", 3), (b"E", -1)]
)
def test_lengths_beyond_the_limit_are_fatal(kind: bytes, length: int) -> None:
    one = ready()
    one.feed(kind + length.to_bytes(4, "big", signed=True))
    error, _ = refusal(one)
    assert (error["S"], error["M"]) == ("FATAL", "invalid message length")


def test_the_fast_path_is_refused() -> None:
    one = ready()
    one.feed(frame(b"F", b"anything"))
    error, rest = refusal(one)
    assert (error["C"], rest) == ("0A000", READY)
    walsender = ready(walsender=True)
    walsender.feed(frame(b"F", b"anything"))
    error, rest = refusal(walsender)
    text = "fastpath function calls not supported in a replication connection"
    assert (error["C"], error["M"], rest) == ("08P01", text, READY)


def test_copy_in() -> None:
    one = ready()
    say(one, m.Query("COPY"), m.CopyData(b"x"), m.Sync(), m.Flush(), m.CopyDone(), m.Query("b"))
    one.next_event()
    assert one.copy_in_response(2) == b"G\0\0\0\x0b\0\0\2\0\0\0\0"
    assert one.next_event() == m.CopyData(b"x")
    assert one.next_event() == m.CopyDone()
    assert one.next_event() is None
    one.command_complete("COPY 1")
    one.ready_for_query()
    assert one.next_event() == m.Query("b")


def test_what_is_left_of_a_copy_that_failed_is_ignored() -> None:
    one = ready()
    say(one, m.Query("COPY"), m.CopyData(b"x"), m.CopyData(b"y"), m.CopyDone(), m.Query("b"))
    one.next_event()
    one.copy_in_response(1)
    one.next_event()
    assert one.fail(PenstockError("bad row")).endswith(READY)
    assert one.next_event() == m.Query("b")


def test_another_message_during_copy_in_is_fatal() -> None:
    one = ready()
    say(one, m.Query("COPY"), m.Query("b"))
    one.next_event()
    one.copy_in_response(1)
    error, _ = refusal(one)
    assert error["M"] == "unexpected message type 0x51 during COPY from stdin"
    assert one.closed


def test_copy_out_lets_the_client_wait() -> None:
    one = ready()
    say(one, m.Query("COPY"), m.Query("b"))
    one.next_event()
    assert one.copy_out_response(1, 1) == b"H\0\0\0\x09\1\0\1\0\1"
    assert one.next_event() is None
    assert one.copy_done() == b"c\0\0\0\4"
    one.command_complete("COPY 0")
    one.ready_for_query()
    assert one.next_event() == m.Query("b")


def streaming() -> ServerSession:
    one = ready(walsender=True)
    say(one, m.Query("START_REPLICATION"))
    one.next_event()
    assert one.copy_both_response() == b"W\0\0\0\7\0\0\0"
    return one


def test_streaming_ends_with_two_tags() -> None:
    one = streaming()
    say(one, m.CopyData(b"r"), m.CopyDone(), m.Query("next"))
    assert one.next_event() == m.CopyData(b"r")
    assert one.next_event() == m.CopyDone()
    assert one.next_event() is None
    tags = b"C\0\0\0\x0bCOPY 0\0" + b"C\0\0\0\x16START_REPLICATION\0"
    assert one.finish_streaming() == b"c\0\0\0\4" + tags + READY
    assert one.next_event() == m.Query("next")


def test_an_error_while_streaming() -> None:
    one = streaming()
    response = one.fail(PenstockError("slot invalidated"))
    assert fields(response)["S"] == "ERROR"
    assert response.endswith(READY)
    say(one, m.CopyData(b"r"), m.CopyDone(), m.Query("next"))
    assert one.next_event() == m.Query("next")


def test_another_message_while_streaming_is_fatal() -> None:
    one = streaming()
    say(one, m.Sync())
    error, _ = refusal(one)
    assert (error["S"], error["M"]) == ("FATAL", 'invalid standby message type "S"')
    leaving = streaming()
    say(leaving, m.Terminate())
    assert leaving.next_event() == m.Terminate()
    assert leaving.closed


def test_the_client_goes_away() -> None:
    for one, data, message in (
        (session(), b"\0\0", "incomplete startup packet"),
        (ready(), b"Q\0\0", "incomplete message from client"),
        (streaming(), b"", "unexpected EOF on standby connection"),
    ):
        one.feed(data)
        one.next_event()
        with pytest.raises(ProtocolViolation, match=message):
            one.end_of_input()
        assert one.closed
    done = ready()
    done.end_of_input()
    assert done.closed


def test_answers_out_of_place_are_our_own_mistake() -> None:
    one = ready()
    for call in (one.parse_complete, one.ready_for_query, one.copy_done, one.authentication_ok):
        with pytest.raises(PenstockError, match="protocol session is READY"):
            call()


def answer(one: ServerSession, event: object, choice: int) -> None:
    """Something legal, or an error, whichever the choice says."""
    match event:
        case SslRequest() | GssEncRequest():
            one.refuse_encryption()
        case StartupMessage():
            one.authentication_ok()
            one.ready_for_query()
        case m.Query() if choice == 0:
            one.copy_in_response(1)
        case m.Query() if choice == 1:
            one.copy_both_response()
        case m.CopyDone():
            one.finish_streaming()
        case m.Execute():
            one.command_complete("X")
        case m.Describe():
            one.row_description([FieldDescription(Attribute("a", 25))])
        case m.Query() | m.Sync():
            one.ready_for_query()
        case m.Parse() | m.Bind() | m.Close() | m.CopyFail():
            one.fail(PenstockError("no"))


CONVERSATION = st.lists(frontend().map(encode_frontend) | st.binary(max_size=12), max_size=12).map(
    b"".join
)


@settings(max_examples=300)
@given(
    st.sampled_from([b"", encode_startup(STARTUP)]),
    CONVERSATION,
    st.integers(1, 40),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_any_bytes_lead_to_events_or_errors_of_ours(
    start: bytes, data: bytes, size: int, choices: list[int]
) -> None:
    """Two sessions, one fed in pieces and one at once, say the same."""
    told = []
    for step in (size, len(start + data) or 1):
        one = session()
        heard: list[object] = []
        for at in range(0, len(start + data), step):
            one.feed((start + data)[at : at + step])
            drive(one, heard, choices)
        assert one.buffered <= 20_001 or one.closed
        told.append((heard, one.phase))
    assert told[0] == told[1]


def drive(one: ServerSession, heard: list[object], choices: list[int]) -> None:
    while not one.closed:
        try:
            event = one.next_event()
            if event is None:
                return
            heard.append(event)
            answer(one, event, choices[len(heard) % len(choices)])
        except PenstockError as error:
            heard.append((error.sqlstate, error.message))
            one.fail(error)


def test_the_phases_in_which_the_client_is_heard() -> None:
    packet: StartupPacket = STARTUP
    one = session()
    phases = [one.phase]
    one.feed(encode_startup(packet))
    one.next_event()
    phases.append(one.phase)
    one.close()
    one.feed(b"more")
    assert phases == [Phase.STARTUP, Phase.STARTING]
    assert (one.phase, one.buffered) == (Phase.CLOSED, 0)
