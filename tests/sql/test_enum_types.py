"""What a statement knows of the node's enum types; a server's answers are compared elsewhere."""

from __future__ import annotations

from threading import Thread

import pytest

from penstock.enum_type import EnumLabel, EnumType
from penstock.errors import PenstockError
from penstock.sql.builtin.enum_types import enum_name, known_enums, remember_enums
from penstock.sql.builtin.type_cache import is_enum, named_type, types
from penstock.sql.text.quoting import type_name, type_text
from penstock.sql.typed.literals import canonical

COLOR = EnumType(
    16390, "public", "color", 16391, "_color", (EnumLabel(1, 1.0, "red"), EnumLabel(2, 2.0, "a,b"))
)
OTHER = EnumType(16400, "s", "color", 16401, "_color")
DATE = EnumType(16410, "public", "date", 16411, "_date")
ODD = EnumType(16420, "public", "Odd one", 16421, "_Odd one")


def test_types_are_known_within() -> None:
    assert 16390 not in types() and named_type("color") is None
    with known_enums((COLOR, OTHER)):
        assert is_enum(16390) and is_enum(16400) and not is_enum(16391) and not is_enum(25)
        assert (named_type("color"), named_type("color", "s")) == (types()[16390], types()[16400])
        assert named_type("color", "pg_catalog") is None
        assert type_text(16391) == type_name(16391) == "color[]"
        with known_enums(()):
            assert 16390 not in types()
        assert types()[25].name == "text"
    assert 16390 not in types()


def test_another_thread_knows_its_own() -> None:
    found: list[bool] = []

    def session() -> None:
        remember_enums((OTHER,))
        found.extend((is_enum(16400), is_enum(16390)))

    with known_enums((COLOR,)):
        thread = Thread(target=session)
        thread.start()
        thread.join()
        assert found == [True, False] and is_enum(16390) and not is_enum(16400)


def test_names_are_qualified_where_they_mean_something_else() -> None:
    shown = [enum_name(enum) for enum in (COLOR, OTHER, DATE, ODD)]
    assert shown == ["color", "s.color", "public.date", '"Odd one"']
    with known_enums((DATE,)):
        found = named_type("date")
        assert found is not None and found.oid == 1082


def test_values_are_labels_to_the_letter() -> None:
    with known_enums((COLOR, OTHER)):
        assert canonical("a,b", 16390) == "a,b"
        assert canonical('{red, "a,b" ,NULL}', 16391) == '{red,"a,b",NULL}'
        for wrong in ("Red", " red", "", "a"):
            with pytest.raises(PenstockError) as caught:
                canonical(wrong, 16390)
            assert caught.value.sqlstate == "22P02"
            assert caught.value.message == f'invalid input value for enum color: "{wrong}"'
        with pytest.raises(PenstockError, match=r'for enum s\.color: "red"'):
            canonical("red", 16400)
