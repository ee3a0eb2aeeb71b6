"""The rule of docs/names.md."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.lakehouse.names import (
    column_names,
    earlier_folder_name,
    folder_name,
    written_names,
)
from penstock.relation import qualified

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


def test_plain_names_are_folders() -> None:
    for name in ("orders", "Orders", "order-items", "größe", "a.b", "t_1-2"):
        assert folder_name(name) == name


PATH_NAMES = st.one_of(
    st.text(st.sampled_from("aAb _;,=.ßé%/-09"), min_size=1, max_size=6),
    st.sampled_from(["_delta_log", "_change_data", "_SUCCESS", "..", "_", "a=1", "a%3D1"]),
    st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text and text.isprintable()),
)
FOLDER_LIKE = st.recursive(PATH_NAMES, lambda names: names.map(folder_name), max_leaves=3)


@given(st.lists(st.one_of(FOLDER_LIKE, PATH_NAMES.map(earlier_folder_name)), unique=True))
def test_folders_are_distinct_and_safe(sources: list[str]) -> None:
    folders = {folder_name(source) for source in sources}
    assert len(folders) == len(sources)
    assert not any(f.startswith(("_", ".")) or set(f) & set("/%= \\:*?") for f in folders)


@given(st.lists(st.tuples(PATH_NAMES, PATH_NAMES), unique=True, min_size=2))
def test_texts_of_different_tables_differ(tables: list[tuple[str, str]]) -> None:
    assert len({qualified(*table) for table in tables}) == len(tables)


@given(st.text('ab."', min_size=1, max_size=5), st.text('ab."', min_size=1, max_size=5))
def test_texts_are_read_as_they_were_written(schema: str, table: str) -> None:
    assert written_names(qualified(schema, table)) == [(schema, table)]
    assert (schema, table) in written_names(f"{schema}.{table}") or '"' in schema + table
