"""Names as PostgreSQL reads and quotes them, beside a real server."""

from __future__ import annotations

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.identifiers import split_identifiers, split_qualified, truncate
from penstock.sql.text.keywords import KEY_WORDS
from penstock.sql.text.quoting import quote_identifier

NAMES = ["a", "a$b", "$a", "_a", "1a", "a1", "A", "é", "a b", 'q"', "", "a.b", *sorted(KEY_WORDS)]
QUALIFIED = [
    "a.b", ' A . "B" ', '"a"".b".c', '""', "a..b", ".a", "a.", "", " ", '"a', 'a"b', "a-b.c$d",
    "a b",
    "é.É", "1.2", "a" * 70, '"' + "é" * 40 + '"', "a.b.c.d", '"a"b', "\ta\n.\vb\f",
]  # fmt: skip


def test_names_are_quoted_as_the_server_does(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        for name in NAMES:
            (wanted,) = connection.execute("SELECT quote_ident(%s)", (name,)).fetchone() or ()
            assert quote_identifier(name) == wanted


def test_qualified_names_are_split_as_the_server_does(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        for text in QUALIFIED:
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("SELECT pg_get_serial_sequence(%s, 'x')", (text,))
            message = str(refused.value).splitlines()[0]
            try:
                split_qualified(text)
            except PenstockError:
                assert message == "invalid name syntax", text
            else:
                assert message != "invalid name syntax", text


def test_lists_of_names() -> None:
    assert split_identifiers(' a , "B""c" ,D') == ("a", 'B"c', "d")
    assert split_identifiers(" ") == ()
    assert split_identifiers("a,") is None
    assert split_identifiers('a"b') == ('a"b',)


@pytest.mark.parametrize(("name", "kept"), [("é" * 40, "é" * 31), ("a" * 64, "a" * 63)])
def test_long_names_are_cut_at_a_character(name: str, kept: str) -> None:
    assert truncate(name) == (kept, f'identifier "{name}" will be truncated to "{kept}"')
