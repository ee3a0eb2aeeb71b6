"""Options of a subscriber: servers of 14 to 18 take and refuse them as we do, word by word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import VERSIONS
from penstock.errors import PenstockError
from penstock.pgoutput.options import PgoutputOptions, parse_parameters

PROTO, NAMES = ("proto_version", "1"), ("publication_names", "p")
EMPTY = [[PROTO, ("publication_names", text)] for text in ("", " ")]
"""Refused by us always; 17 and newer publish nothing then."""
LISTS = [
    "a", "A, b", '"A",b', ' "a""b" , c ', "a,", ",a", "a,,b", "a b", '"a', '"a"b', "a\tb",
    '""', "a.b", "é", "É", '"' + "x" * 80 + '"', "x" * 80, "a , b", '"a" "b"', "\na\n,\nb\n",
    "a\x0b,b", 'a"b', "'a'",
]  # fmt: skip
VERSIONS_SENT = [
    "0", "1", "2", "3", "4", "5", "-1", "+1", " 1", "1 ", "01", "0x1", "1.0", "", " ", "x", "-0",
    "4294967295", "4294967296", "18446744073709551615", "18446744073709551616", "9" * 40, "1_0",
    "-18446744073709551615", "-18446744073709551614", "\t1", "- 1", "٣",
]  # fmt: skip
BOOLEANS = ["", "true", "TRUE", "on", "off", "false", "t", "yes", "1", "0", "On ", "parallel", "x"]
CASES: list[list[tuple[str, str]]] = [
    [],
    [PROTO],
    [NAMES],
    [PROTO, NAMES],
    [NAMES, PROTO],
    [PROTO, PROTO, NAMES],
    [PROTO, NAMES, NAMES],
    [("nonsense", "1"), PROTO, NAMES],
    [PROTO, NAMES, ("Binary", "on")],
    [PROTO, ("binary", "x"), ("nonsense", "x")],
    [("proto_version", "9"), ("publication_names", '"')],
    [("proto_version", "1"), ("streaming", "on"), NAMES],
    [("proto_version", "2"), ("streaming", "on"), NAMES],
    [("proto_version", "3"), ("streaming", "parallel"), NAMES],
    [("proto_version", "4"), ("streaming", "parallel"), NAMES],
    [("proto_version", "4"), ("streaming", "PARALLEL"), NAMES],
    [("proto_version", "2"), ("two_phase", "on"), NAMES],
    [("proto_version", "3"), ("two_phase", "on"), NAMES],
    [("proto_version", "1"), ("two_phase", "off"), NAMES],
    [("proto_version", "1"), ("streaming", "off"), NAMES],
    *([("proto_version", text), NAMES] for text in VERSIONS_SENT),
    *([PROTO, ("publication_names", text)] for text in LISTS),
    *(
        [("proto_version", "4"), NAMES, (name, text)]
        for name in ("binary", "messages", "two_phase", "streaming")
        for text in BOOLEANS
    ),
    *(
        [("proto_version", "3"), NAMES, ("origin", text)]
        for text in ("none", "any", "NONE", "Any", "", "x", " none")
    ),
    [("proto_version", "3"), NAMES, ("origin", "none"), ("origin", "none")],
    [("proto_version", "3"), NAMES, ("binary", "on"), ("binary", "on")],
]
Verdict = tuple[str, str] | None


def theirs(connection: psycopg.Connection[Any], pairs: list[tuple[str, str]]) -> Verdict:
    flat = [text for pair in pairs for text in pair]
    try:
        connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('options', NULL, NULL,"
            " VARIADIC %s::text[])",
            (flat,),
        )
    except psycopg.Error as error:
        return str(error.sqlstate), str(error.diag.message_primary)
    return None


def ours(pairs: list[tuple[str, str]], version: int) -> Verdict:
    try:
        parse_parameters(pairs, version)
    except PenstockError as error:
        return error.sqlstate, error.message
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_server_says_the_same(database_on: Callable[..., Database], version: int) -> None:
    database = database_on(version)
    connection = database.connect()
    connection.execute("SELECT pg_create_logical_replication_slot('options', 'pgoutput')")
    wrong = [
        (pairs, expected, got)
        for pairs in (CASES if version >= 17 else [*CASES, *EMPTY])
        if (expected := theirs(connection, pairs)) != (got := ours(pairs, version))
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_what_they_mean() -> None:
    pairs = [
        ("proto_version", "4"),
        ("publication_names", 'A, "B""c"'),
        ("streaming", "parallel"),
        ("binary", "on"),
        ("origin", "NONE"),
        ("messages", None),
        ("two_phase", "true"),
    ]
    assert parse_parameters(pairs, 18) == PgoutputOptions(
        4,
        ("a", 'B"c'),
        binary=True,
        streaming="parallel",
        two_phase=True,
        origin="none",
        messages=True,
    )
    assert parse_parameters(pairs[:2], 18) == PgoutputOptions(4, ("a", 'B"c'))
