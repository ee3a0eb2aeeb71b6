"""Tables that an option is for: texts that come back as they are meant."""

from __future__ import annotations

import pytest

from penstock.catalog.pg_subscription import TableChoice, read_choice
from penstock.errors import InvalidParameterValue


@pytest.mark.parametrize("value", ["true", "on", 1, None, True])
def test_every_table(value: object) -> None:
    choice = read_choice("history", value)
    assert ("any", "table") in choice and str(choice) == "true"


@pytest.mark.parametrize("value", ["false", "off", 0, False])
def test_none(value: object) -> None:
    choice = read_choice("history", value)
    assert not choice and ("any", "table") not in choice and str(choice) == "false"


@pytest.mark.parametrize(
    ("text", "names", "shown"),
    [
        ("Orders", {("public", "orders")}, "public.orders"),
        ('b.t, "A,x"."y""."', {("b", "t"), ("A,x", 'y".')}, '"A,x"."y"".", b.t'),
        ('"true"', {("public", "true")}, 'public."true"'),
    ],
)
def test_some(text: str, names: set[tuple[str, str]], shown: str) -> None:
    choice = read_choice("history", text)
    assert choice == TableChoice(names=frozenset(names))
    assert str(choice) == shown
    assert read_choice("history", shown) == choice
    assert all(name in choice for name in names) and ("public", "other") not in choice


@pytest.mark.parametrize("text", ["", "a,,b", "a.b.c", "a, public.a", '"a', "a b", "a,"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameterValue, match='invalid value for parameter "history"'):
        read_choice("history", text)
