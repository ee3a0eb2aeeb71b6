"""Lsn reads and prints what pg_lsn reads and prints."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConnectionFailure, InvalidParameterValue, PenstockError, StorageError
from penstock.lsn import Lsn


@given(st.integers(0, 2**64 - 1))
def test_text_form_round_trips(value: int) -> None:
    assert Lsn.parse(str(Lsn(value))) == value


@pytest.mark.parametrize("text", ["", "0", "0/", "/0", "G/0", "0/123456789", " 0/0"])
def test_bad_text_is_refused_with_the_text_of_pg_lsn_in(text: str) -> None:
    with pytest.raises(
        InvalidParameterValue, match="invalid input syntax for type pg_lsn"
    ) as caught:
        Lsn.parse(text)
    assert caught.value.sqlstate == "22P02"


def test_errors_cross_process_borders_whole() -> None:
    error = StorageError("disk full", detail="d", hint="h", sqlstate="53100")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, StorageError)
    assert (again.message, again.detail, again.hint, again.sqlstate) == (
        "disk full",
        "d",
        "h",
        "53100",
    )
    assert again.report() == "ERROR:  disk full\nDETAIL:  d\nHINT:  h"


def test_every_error_has_a_sqlstate_of_five_characters() -> None:
    def tree(kind: type[PenstockError]) -> list[type[PenstockError]]:
        return [kind, *(x for k in kind.__subclasses__() for x in tree(k))]

    assert all(len(kind.default_sqlstate) == 5 for kind in tree(PenstockError))


def test_an_error_without_a_name_gets_its_statement_where_the_name_is_known() -> None:
    error = ConnectionFailure("m", detail="d", hint="Do this.", sqlstate="57P03", alter="ENABLE")
    again = pickle.loads(pickle.dumps(error)).with_statement('ALTER SUBSCRIPTION "My s"')
    assert isinstance(again, ConnectionFailure)
    assert (again.message, again.detail, again.sqlstate, again.alter) == ("m", "d", "57P03", None)
    assert again.hint == 'Do this. Run ALTER SUBSCRIPTION "My s" ENABLE.'
    assert again.with_statement("x") is again
