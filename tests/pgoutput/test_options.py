"""Options as PostgreSQL's own subscriber writes them (captured, reference 1.3)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidParameterValue
from penstock.pgoutput.options import PgoutputOptions


def test_option_list_of_postgres_subscriber() -> None:
    options = PgoutputOptions(3, ("s1", "P'2", 'no"pe'), streaming="on", two_phase=True)
    assert options.text() == (
        "proto_version '3', streaming 'on', two_phase 'on', "
        'publication_names \'"s1","P\'\'2","no""pe"\''
    )


def test_origin_and_binary_have_their_places() -> None:
    options = PgoutputOptions(4, ("p",), binary=True, streaming="parallel", origin="any")
    assert options.text() == (
        "proto_version '4', streaming 'parallel', origin 'any', "
        "publication_names '\"p\"', binary 'true'"
    )


def test_arguments_of_the_slot_functions() -> None:
    assert PgoutputOptions(1, ("a", "b")).arguments() == (
        "proto_version",
        "1",
        "publication_names",
        '"a","b"',
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"proto_version": 1, "streaming": "on"}, "does not support streaming, need 2"),
        ({"proto_version": 3, "streaming": "parallel"}, "parallel streaming, need 4"),
        ({"proto_version": 2, "two_phase": True}, "two-phase commit, need 3"),
        ({"proto_version": 4, "streaming": "maybe"}, "streaming requires"),
    ],
)
def test_what_the_plugin_would_refuse(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameterValue, match=words):
        PgoutputOptions(**{"publication_names": ("p",), **wrong})
