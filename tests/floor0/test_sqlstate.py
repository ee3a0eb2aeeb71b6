"""Errors by their SQLSTATE are called as psycopg calls them."""

from __future__ import annotations

import inspect

import psycopg
import pytest

from penstock import sqlstate
from penstock.errors import PenstockError

_NOT_IN_PSYCOPG = {"XX001": "DataCorrupted"}

_CLASSES = [
    kind
    for _, kind in inspect.getmembers(sqlstate, inspect.isclass)
    if issubclass(kind, PenstockError) and kind.__module__ == sqlstate.__name__
]


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda kind: kind.__name__)
def test_the_name_belongs_to_the_sqlstate(kind: type[PenstockError]) -> None:
    code = kind.default_sqlstate
    known = _NOT_IN_PSYCOPG.get(code) or psycopg.errors.lookup(code).__name__
    assert kind.__name__ == known
    assert kind("x").sqlstate == code


def test_each_sqlstate_has_one_class() -> None:
    codes = [kind.default_sqlstate for kind in _CLASSES]
    assert len(set(codes)) == len(codes)
