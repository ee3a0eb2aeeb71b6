"""Every type through a real server, its slot and its snapshot, against what the server says.

psycopg's own loaders say what a value is; for types that stay text it is the output function.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.string import TextLoader

from fix_postgres import Database
from penstock.errors import ValueNotRepresentable
from penstock.pgoutput.columnar import ColumnarDecoder, DecodedChunk
from penstock.pgoutput.options import PgoutputOptions
from penstock.pgtypes import arrow_type, binary_supported, find
from penstock.protocol.copy_block import TRAILER, block_of
from penstock.protocol.copy_columns import BINARY_HEADER
from pgoutput.strategies import chunk_of
from pgtypes.server_values import ARRAYS, OTHERS, SCALARS, TYPES_OF_OTHERS, UNFIT

SETTINGS = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"
    " -c timezone=Europe/Amsterdam"
)
"""As a subscriber sets them; the zone is the publisher's own and had seconds before 1937."""

Tables = list[tuple[str, list[str]]]
"""A type and its values for each table."""

DECODED: Tables = [*SCALARS.items(), *ARRAYS.items()]


class Publisher:
    """A database with one table per type, published, and a slot from before the first row."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self.database = database
        self.types = [name for name, _ in tables]
        self.connection = database.connect(options=SETTINGS)
        self.connection.execute(TYPES_OF_OTHERS)
        self.run("CREATE PUBLICATION p FOR ALL TABLES")
        for number, name in enumerate(self.types):
            self.run(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {name})")
        self.run("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
        for number, (name, values) in enumerate(tables):
            self.run(f"INSERT INTO t{number} VALUES (0, NULL)")
            for row, value in enumerate(values, 1):
                typed = value if value.startswith("ARRAY[") else f"$q${value}$q$::{name}"
                self.run(f"INSERT INTO t{number} VALUES ({row}, {typed})")

    def run(self, sql: str) -> None:
        self.connection.execute(sql)

    def messages(self, binary: bool) -> list[bytes]:
        options = PgoutputOptions(1, ("p",), binary=binary).arguments()
        rows = self.connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('types', NULL, NULL,"
            " VARIADIC %s::text[])",
            (list(options),),
            binary=True,
        ).fetchall()
        return [data for (data,) in rows]

    def decode(self, binary: bool, number: int | None = None) -> DecodedChunk:
        """All changes, or those of one table."""
        messages = self.messages(binary)
        if number is not None:
            found = self.connection.execute(f"SELECT 't{number}'::regclass::oid").fetchone()
            assert found is not None
            mine = found[0].to_bytes(4, "big")
            messages = [m for m in messages if m[:1] in b"RI" and m[1:5] == mine]
        return ColumnarDecoder(find).decode(chunk_of(messages))

    def values(self, number: int, expression: str = "v") -> list[Any]:
        cursor = self.connection.execute(f"SELECT {expression} FROM t{number} ORDER BY id")
        return [value for (value,) in cursor.fetchall()]


@pytest.fixture
def publisher(
    database: Database,
) -> Callable[[Tables], Publisher]:
    return lambda tables: Publisher(database, tables)


def keep_json_text(connection: psycopg.Connection[Any]) -> None:
    for name in ("json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)


def expected(value: Any, kind: str) -> Any:
    """psycopg's value as ours: uuid and numeric that no decimal holds are text."""
    if isinstance(value, list):
        return [expected(element, kind) for element in value]
    if isinstance(value, float) and kind.startswith("real"):
        return struct.unpack("!f", struct.pack("!f", value))[0]
    return str(value) if isinstance(value, UUID) else value


def same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, float):
        alike = math.isnan(got) if math.isnan(wanted) else got == wanted
        return alike and math.copysign(1, got) == math.copysign(1, wanted)
    if isinstance(wanted, Decimal) and isinstance(got, str):
        return got == str(wanted)
    return bool(got == wanted)


def said_by_server(publisher: Publisher, number: int, kind: str) -> list[Any]:
    if kind.startswith("numeric") and "string" in str(
        arrow_type(1700, typmod_of(publisher, number))
    ):
        return publisher.values(number, "v::text[]" if kind.endswith("[]") else "v::text")
    if kind.startswith("char"):
        return publisher.values(number)
    return [expected(value, kind) for value in publisher.values(number)]


def typmod_of(publisher: Publisher, number: int) -> int:
    ((typmod,),) = publisher.connection.execute(
        "SELECT atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'v'",
        (f"t{number}",),
    ).fetchall()
    return int(typmod)


@pytest.mark.parametrize("binary", [False, True])
def test_changes_hold_what_the_server_says(publisher: Any, binary: bool) -> None:
    source = publisher(DECODED)
    keep_json_text(source.connection)
    changes = {change.relation.name: change for change in source.decode(binary).changes}
    for number, kind in enumerate(source.types):
        got = changes[f"t{number}"].new.column("v").to_pylist()
        wanted = said_by_server(source, number, kind)
        assert same(got, wanted), (kind, got, wanted)


def test_snapshot_holds_what_the_server_says(publisher: Any) -> None:
    source = publisher([*DECODED, *OTHERS.items()])
    keep_json_text(source.connection)
    for number, kind in enumerate(source.types):
        got = copied(source, number).to_pylist()
        if kind in OTHERS:
            wanted = [None, *source.values(number, "format('%s', v)")[1:]]
        else:
            wanted = said_by_server(source, number, kind)
        assert same(got, wanted), (kind, got, wanted)


def copied(source: Publisher, number: int) -> Any:
    """Column ``v`` as the snapshot reads it: the copy expression, COPY, the copied column."""
    ((oid, typmod),) = source.connection.execute(
        "SELECT atttypid::int8, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attname = 'v'",
        (f"t{number}",),
    ).fetchall()
    family = find(oid)
    query = f"SELECT {family.copy_expression('v', typmod)} FROM t{number} ORDER BY id"
    with source.connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
        rows = [bytes(row) for row in copy]
    rows[0] = rows[0][len(BINARY_HEADER) :]
    assert rows.pop() == TRAILER
    (cells,) = block_of(b"".join(rows), [len(row) for row in rows]).cells(1)
    column = family.copy_column(cells, typmod)
    assert column.type == arrow_type(oid, typmod)
    column.validate(full=True)
    return column


def test_other_types_are_the_text_of_their_output_function(publisher: Any) -> None:
    source = publisher([*OTHERS.items()])
    changes = {change.relation.name: change for change in source.decode(False).changes}
    for number, kind in enumerate(source.types):
        change = changes[f"t{number}"]
        assert not binary_supported(change.relation.attributes[1].type_oid)
        wanted = [None, *source.values(number, "format('%s', v)")[1:]]
        assert change.new.column("v").to_pylist() == wanted, kind


def test_what_the_target_cannot_hold_is_refused_everywhere(publisher: Any) -> None:
    source = publisher([(kind, [value]) for kind, values in UNFIT.items() for value in values])
    for number, kind in enumerate(source.types):
        for binary in (False, True):
            decoded = source.decode(binary, number)
            (unreadable,) = decoded.unreadable
            assert not decoded.changes and unreadable.relation.name == f"t{number}"
            assert unreadable.error.detail == f'Table "public.t{number}", column "v".', kind
        with pytest.raises(ValueNotRepresentable):
            copied(source, number)
