"""Rows of the state store as records: forms of values, and columns that older versions lack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import pytest
from sqlalchemy import BigInteger, Column, Connection, String, create_engine, insert

from penstock.catalog.metadata import LIST, ColumnForm, Null, StoredTable, enum_form


class State(Enum):
    NEW = "n"
    OLD = "o"


@dataclass(frozen=True, slots=True)
class Span:
    first: int
    last: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    option: Annotated[str, Column("option", String)] = "plain"
    shape: Annotated[str, Column("shape", String), Null("round")] = "square"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing(Base):
    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    names: Annotated[tuple[str, ...], Column("names", String), LIST] = ()
    state: Annotated[State, Column("state", String(1)), enum_form(State)] = State.NEW
    span: Annotated[
        Span | None,
        (Column("first", BigInteger), Column("last", BigInteger)),
        ColumnForm(lambda span: (span.first, span.last), Span, also=("oid",)),
    ] = None
    unstored: int = 0


THINGS = StoredTable("penstock_test_thing", Thing, Column("more", String))
THINGS.table.metadata.remove(THINGS.table)


@pytest.fixture
def connection() -> Connection:
    connection = create_engine("sqlite://").connect()
    THINGS.table.create(connection)
    return connection


def test_a_record_comes_back(connection: Connection) -> None:
    full = Thing(oid=1, option="x", names=("ä", "b"), state=State.OLD, span=Span(2, 3, 1))
    THINGS.insert(connection, full, Thing(oid=2), more="m")
    assert THINGS.all(connection) == (full, Thing(oid=2))
    assert THINGS.find(connection, THINGS.c.names == '["ä", "b"]') == full
    assert THINGS.find(connection, THINGS.c.oid == 3) is None


def test_columns_of_a_base_come_last() -> None:
    own = ["oid", "names", "state", "first", "last"]
    assert THINGS.c.keys() == [*own, "option", "shape", "more"]


def test_what_an_older_version_has_not_written_has_its_default(connection: Connection) -> None:
    connection.execute(insert(THINGS.table).values(oid=1))
    assert THINGS.all(connection) == (Thing(oid=1, shape="round"),)
    assert THINGS.record({"oid": 1}) == Thing(oid=1, shape="round")


def test_a_change_finds_its_row_by_the_key(connection: Connection) -> None:
    THINGS.insert(connection, Thing(oid=1), Thing(oid=2))
    assert THINGS.update(connection, Thing(oid=2, option="y"))
    assert not THINGS.update(connection, Thing(oid=3))
    assert not THINGS.update(connection, Thing(oid=1, option="y"), THINGS.c.option == "y")
    THINGS.delete(connection, THINGS.c.oid == 1)
    assert THINGS.all(connection) == (Thing(oid=2, option="y"),)
