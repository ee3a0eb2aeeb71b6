"""Strategies for messages of a client, for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.protocol import frontend_messages as m
from penstock.protocol.startup import (
    PROTOCOL_3_0,
    CancelRequest,
    GssEncRequest,
    SslRequest,
    StartupMessage,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
LATIN1 = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=20)
_FORMATS = st.lists(st.sampled_from([0, 1]), max_size=3).map(tuple)
_KIND = st.sampled_from([m.STATEMENT, m.PORTAL])


@st.composite
def binds(draw: st.DrawFn, text: st.SearchStrategy[str]) -> m.Bind:
    values = draw(st.lists(st.none() | st.binary(max_size=20), max_size=5))
    formats = draw(st.sampled_from([(), (0,), (1,), (1,) * len(values)]))
    return m.Bind(draw(text), draw(text), formats, tuple(values), draw(_FORMATS))


def frontend(text: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[m.FrontendMessage]:
    oids = st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)
    return st.one_of(
        st.builds(m.Query, text),
        st.builds(m.Parse, text, text, oids),
        binds(text),
        st.builds(m.Describe, _KIND, text),
        st.builds(m.Execute, text, st.integers(-(2**31), 2**31 - 1)),
        st.builds(m.Close, _KIND, text),
        st.builds(m.CopyData, st.binary(max_size=50)),
        st.builds(m.CopyFail, text),
        st.sampled_from([m.Sync(), m.Flush(), m.CopyDone(), m.Terminate()]),
    )


def startup() -> st.SearchStrategy[object]:
    name = TEXT.filter(bool)
    parameters = st.lists(st.tuples(name, TEXT), max_size=5).map(tuple)
    minor = st.integers(PROTOCOL_3_0, PROTOCOL_3_0 + 20)
    key = st.binary(min_size=1, max_size=256)
    return st.one_of(
        st.builds(StartupMessage, minor, parameters),
        st.builds(CancelRequest, st.integers(-(2**31), 2**31 - 1), key),
        st.sampled_from([SslRequest(), GssEncRequest()]),
    )
