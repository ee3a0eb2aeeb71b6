"""The rule of docs/names.md."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.lakehouse.names import column_names, folder_name

NAMES = st.text(st.sampled_from("aAbB _;,=.ßé%/"), min_size=1, max_size=6)


def test_plain_names_stay() -> None:
    assert column_names(["id", "größe", "a.b"]) == {"id": "id", "größe": "größe", "a.b": "a.b"}


def test_forbidden_characters_become_underscores() -> None:
    assert column_names(["a b", "x=(y)\n"]) == {"a b": "a_b", "x=(y)\n": "x__y__"}


def test_who_needs_no_replacement_keeps_the_name() -> None:
    assert column_names(["a b", "a_b", "a;b"]) == {"a_b": "a_b", "a b": "a_b_2", "a;b": "a_b_3"}


def test_case_alone_is_no_difference() -> None:
    assert column_names(["Id", "id", "ID"]) == {"Id": "Id", "id": "id_2", "ID": "ID_3"}


def test_columns_keep_the_names_they_have() -> None:
    assert column_names(["ID", "id"], {"id": "id"}) == {"id": "id", "ID": "ID_2"}


@given(st.lists(NAMES, unique=True, max_size=8))
def test_names_are_legal_and_distinct(sources: list[str]) -> None:
    names = column_names(sources)
    assert set(names) == set(sources)
    assert len({name.lower() for name in names.values()}) == len(sources)
    assert not set("".join(names.values())) & set(" ,;{}()\n\t=")


@given(st.lists(NAMES, unique=True, max_size=8))
def test_folders_are_distinct_and_safe(sources: list[str]) -> None:
    folders = {folder_name(source) for source in sources}
    assert len(folders) == len(sources)
    assert not any(f.startswith(("_penstock", ".")) or set(f) & set("/% ") for f in folders)
