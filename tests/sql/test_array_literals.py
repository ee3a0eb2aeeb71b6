"""Array literals beside a real server: what array_in reads and refuses, what array_out prints."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.embedded import EmbeddedPostgres
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.text.array_literals import join_array, read_array

INSIDE = st.text(st.sampled_from(list('{},"\\ anulN\t\vé')), max_size=8)


def _ours(text: str) -> tuple[str, str | None]:
    try:
        return read_array(text, str), None
    except FeatureNotSupported:
        return "unsupported", None
    except PenstockError as error:
        return str(error.message), error.detail


def _theirs(connection: psycopg.Connection[tuple[str]], text: str) -> tuple[str, str | None]:
    try:
        row = connection.execute("SELECT %s::text[]::text", (text,)).fetchone()
    except psycopg.Error as error:
        return str(error.diag.message_primary), error.diag.message_detail
    assert row is not None
    return row[0], None


def test_array_literals_are_read_as_the_server_reads_them(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:

        @settings(max_examples=600, deadline=None)
        @given(st.one_of(INSIDE, INSIDE.map("{{{}}}".format), INSIDE.map("{{{}".format)))
        @example("{a,}")
        @example(r"{a\,b}")
        @example('{"a" "b"}')
        @example('{"a"')
        @example('{"a"b}')
        @example('{a"b"}')
        @example(r"{\null, null ,NULL,\ }")
        @example("{a b , c}")
        @example("{a\\")
        @example(r"{a\}")
        @example("{a{}}")
        @example("{,}")
        @example("{} x")
        def check(text: str) -> None:
            ours = _ours(text)
            if ours[0] != "unsupported":
                assert ours == _theirs(connection, text)

        check()


@pytest.mark.parametrize(
    "item", ["", "a", "NULL", "nUll", "a b", "\v", '"', "\\", "{", ",", "é", "\u2003"]
)
def test_elements_are_printed_as_the_server_prints_them(
    postgres: EmbeddedPostgres, item: str
) -> None:
    with psycopg.connect(postgres.conninfo()) as connection:
        row = connection.execute("SELECT ARRAY[%s,NULL]::text", (item,)).fetchone()
        assert row == (join_array([item, None]),)
