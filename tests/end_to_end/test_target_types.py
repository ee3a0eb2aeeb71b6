"""Targets keep their PostgreSQL type: the same tables on the node and on a stock server.

What each type makes of each text is asked of a server in ``lakehouse/test_conversion.py``; here
values go through copy, stream in text and stream in binary, beside a stock subscriber.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from end_to_end.compare import query
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.pgtypes import arrow_type
from penstock.pgtypes.text_output import text_output

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PAIRS = {
    ("text", "int"): ("12", " -7 "),
    ("text", "date"): ("2024-02-29",),
    ("text", "varchar(3)"): ("abc", "ab   "),
    ("text", "char(3)"): ("a", "abc  "),
    ("text", "jsonb"): ('{"b": 1, "a": [1.50]}', "null"),
    ("text", "uuid"): ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",),
    ("text", "inet"): ("10.0.0.1/32", "fe80::1/64"),
    ("text", "numeric"): ("1e3", " 1.50"),
    ("text", "bit(3)"): ("b101",),
    ("text", "boolean"): ("yes", "off"),
    ("text", "time"): ("12:34",),
    ("text", "mood"): ("happy",),
    ("mood", "mood"): ("happy", "sad"),
    ("timestamp", "timestamptz"): ("2024-02-29 12:34:56.789",),
    ("timestamptz", "timestamp"): ("2024-02-29 12:34:56.789+02",),
    ("timestamp", "timestamp(0)"): ("2024-02-29 12:34:56.789",),
    ("timestamp", "date"): ("2024-02-29 12:34:56.789",),
    ("numeric", "double precision"): ("1.26", "NaN"),
    ("numeric", "numeric(40,1)"): ("1.26", "-0.05"),
    ("numeric(10,2)", "numeric(10,1)"): ("1.26",),
    ("numeric(10,2)", "double precision"): ("1.26", "NaN"),
    ("double precision", "numeric(10,1)"): ("0.25",),
    ("int", "varchar(3)"): ("123", "-1"),
    ("int", "boolean"): ("1", "0"),
    ("int[]", "bigint[]"): ("{1,NULL,3}",),
    ("text[]", "varchar(3)[]"): ('{abc,"a b"}',),
    ("jsonb", "json"): ('{"a": 1}',),
    ("bigint", "smallint"): ("7",),
}
_REFUSED = {
    ("text", "varchar(3)"): ("abcd", "22001", "value too long for type character varying(3)"),
    ("text", "jsonb"): ("{bad", "22P02", "invalid input syntax for type json"),
    ("text", "inet"): ("zzz", "22P02", 'invalid input syntax for type inet: "zzz"'),
    ("text", "uuid"): ("nope", "22P02", 'invalid input syntax for type uuid: "nope"'),
    ("text", "numeric"): ("abc", "22P02", 'invalid input syntax for type numeric: "abc"'),
    ("text", "bit(3)"): ("10", "22026", "bit string length 2 does not match type bit(3)"),
    ("text", "mood"): ("angry", "22P02", 'invalid input value for enum mood: "angry"'),
    ("int", "varchar(3)"): ("1234", "22001", "value too long for type character varying(3)"),
    ("numeric", "numeric(40,1)"): ("1e39", "22003", "numeric field overflow"),
}
_CONTEXT = re.compile(
    r"ERROR:  value too long for type character varying\(3\)\n(?:DETAIL.*\n)?"
    r'.*CONTEXT:  processing remote data for replication origin "pg_\d+" during message type '
    r'"INSERT" for replication target relation "public.t" column "c" in transaction (\d+), '
    r"finished at (\S+)"
)
_MOOD = "CREATE TYPE mood AS ENUM ('sad', 'happy')"


def _create(pairs: Any, which: int) -> str:
    columns = ", ".join(f"c{n} {pair[which]}" for n, pair in enumerate(pairs))
    return f"CREATE TABLE t (id int PRIMARY KEY, {columns})"


def _fill(publisher: Database, first: int) -> None:
    for row in (0, 1):
        values = ", ".join(f"'{values[row % len(values)]}'" for values in _PAIRS.values())
        publisher.execute(f"INSERT INTO t VALUES ({first + row}, {values})")
    publisher.execute(f"INSERT INTO t VALUES ({first + 2})")


def _texts(rows: pa.Table, name: str, type_oid: int, typmod: int) -> list[tuple[int, str | None]]:
    """Ids, and what the output function prints of a column."""
    column = rows.column(name).combine_chunks().cast(arrow_type(type_oid, typmod))
    texts = text_output(column, type_oid, typmod).cast(pa.string()).to_pylist()
    return sorted(zip(rows.column("id").to_pylist(), texts, strict=True))


@pytest.mark.parametrize("binary", [False, True])
def test_values_are_those_of_a_stock_subscriber(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], *, binary: bool
) -> None:
    """A stock subscriber cannot convert binary values, so it always gets text."""
    publisher, stock, node = database_on(17), database_on(18), local_node()
    publisher.execute(f"{_MOOD}; {_create(_PAIRS, 0)}; CREATE PUBLICATION p FOR TABLE t")
    _fill(publisher, 1)
    for side in (stock.execute, node.node.sql):
        side(_MOOD)
        side(_create(_PAIRS, 1))
    node.subscribe("s", publisher, "p", f"binary = {str(binary).lower()}")
    stock.execute(f"CREATE SUBSCRIPTION types CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.caught_up("s", publisher)
        _fill(publisher, 11)
        publisher.execute("UPDATE t SET c2 = 'xyz' WHERE id = 1; DELETE FROM t WHERE id = 2")
        node.caught_up("s", publisher)
        wait_until(lambda: stock.value("SELECT count(*) FROM t") == 5, "the stock subscriber", 60)
        wait_until(lambda: stock.value("SELECT c2 = 'xyz' FROM t WHERE id = 1"), "its update", 60)
    finally:
        stock.execute("DROP SUBSCRIPTION types")
    pin = node.cut().tables["public", "t"]
    found = query("SELECT * FROM t", t=DeltaTable(pin.uri, version=pin.version))
    for number, pair in enumerate(_PAIRS):
        name = f"c{number}"
        text = f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END"
        wanted = stock.rows(f"SELECT id, {text} FROM t ORDER BY id")
        (kind,) = stock.rows(
            "SELECT CASE WHEN atttypid < 16384 THEN atttypid::int ELSE 25 END, atttypmod"
            " FROM pg_attribute"
            f" WHERE attrelid = 't'::regclass AND attname = '{name}'"
        )
        assert _texts(found, name, *kind) == wanted, pair
    assert node.node.verify(subscription="s").equal
    # A new copy keeps the types.
    before = _own_types(node)
    assert before[2:5] == ["date", "character varying(3)", "character(3)"]
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
    node.caught_up("s", publisher)
    assert _own_types(node) == before
    assert node.node.verify(subscription="s").equal


def _own_types(node: LocalNode) -> list[str]:
    found = node.node.sql(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    )
    return [str(name) for (name,) in found.rows]


_IDENTITY = "own int GENERATED BY DEFAULT AS IDENTITY"
_WAYS = {
    "history": ("history = true, soft_delete = true, metadata_columns = true", ""),
    "streamed": ("streaming = on", ""),
    "partitions": ("", "PARTITION BY RANGE (id)"),
}


@pytest.mark.parametrize(
    "way", ["history", *(in_make_faults(way, id=way) for way in ("streamed", "partitions"))]
)
def test_every_way_of_changes_converts(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database], way: str
) -> None:
    """Keys of another type, rows that are found by all their columns, TOAST values that are not
    sent again, what the node makes of others."""
    options, partitioned = _WAYS[way]
    publisher, stock, node = database_on(17), database_on(18), local_node()
    publisher.execute(
        f"{_MOOD}; ALTER DATABASE {publisher.name} SET logical_decoding_work_mem = '64kB';"
        "CREATE TABLE t (id text PRIMARY KEY, big text, n numeric, m mood, at text);"
        "CREATE TABLE f (c text, n numeric); ALTER TABLE f REPLICA IDENTITY FULL;"
        "INSERT INTO t VALUES ('1', repeat(md5('1'), 300), 1.26, 'sad', '2024-02-29 12:34:56.7');"
        "CREATE PUBLICATION p FOR TABLE t, f"
    )
    for side in (stock.execute, node.node.sql):
        side(_MOOD)
        side(
            "CREATE TABLE t (id int PRIMARY KEY, big varchar(20000), n numeric(10,1), m mood,"
            " at timestamptz(0), twice int GENERATED ALWAYS AS (id * 2) STORED,"
            f" {_IDENTITY if not partitioned else 'own text'}) {partitioned}"
        )
        side("CREATE TABLE f (c char(3), n numeric(10,1))")
        if partitioned:
            side("CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (100)")
            side("CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (MAXVALUE)")
    node.subscribe("s", publisher, "p", options)
    stock.execute(f"CREATE SUBSCRIPTION types CONNECTION '{publisher.conninfo}' PUBLICATION p")
    wanted = "SELECT id, md5(big), n::text, m::text, at::text, twice FROM t ORDER BY id"
    try:
        node.caught_up("s", publisher)
        with publisher.connect() as connection:
            for change in _CHANGES:
                connection.execute(change)
                node.caught_up("s", publisher)
        last = "SELECT count(*) FROM t WHERE m = 'happy' AND id = 500"
        wait_until(lambda: stock.value(last) == 1, "the stock subscriber", 60)
        expected = stock.rows(wanted)
    finally:
        stock.execute("DROP SUBSCRIPTION types")
    live = "_deleted_at IS NULL" if "soft_delete" in options else "true"
    columns = ("id", "md5(big)", "string(n)", "m", "concat(string(at), '+00')", "twice")
    found = node.node.read("t").where(live).selectExpr(*columns).collect()
    assert sorted(map(tuple, found)) == expected
    rest = node.node.read("f").where(live).selectExpr("c", "string(n)").collect()
    assert sorted(map(tuple, rest)) == sorted(stock.rows("SELECT c, n::text FROM f"))
    assert node.node.verify(subscription="s").equal
    assert node.status("s").error_count == 0


_CHANGES = (
    "INSERT INTO f VALUES ('a', 1.26), ('a ', 1.3), ('b', 2)",
    "UPDATE f SET n = 3.14159 WHERE c = 'b'",
    "DELETE FROM f WHERE c = 'a'",
    "UPDATE t SET n = 2.25 WHERE id = '1'",
    "UPDATE t SET id = '007' WHERE id = '1'",
    "INSERT INTO t SELECT g, md5(g::text), g / 7.0, 'happy', '2024-01-01 00:00:00.5+01'"
    " FROM generate_series(50, 3000) g",
    "DELETE FROM t WHERE id::int > 500",
)


def test_errors_are_those_of_the_input_functions(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """In streams, where each table is parked with its own, and in copies."""
    node = local_node()
    node.node.sql(_MOOD)
    database.execute(_MOOD)
    for number, (sent, kept) in enumerate(_REFUSED):
        database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, c {sent})")
        node.node.sql(f"CREATE TABLE t{number} (id int PRIMARY KEY, c {kept})")
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database)
    for number, (value, _, _) in enumerate(_REFUSED.values()):
        database.execute(f"INSERT INTO t{number} VALUES (1, '{value}')")
    node.wait_for(
        *("s", "parked tables"), lambda status: all(t.state == "p" for t in status.tables), 120
    )
    errors = {table.name: str(table.error) for table in node.status("s").tables}
    for number, (_, _, message) in enumerate(_REFUSED.values()):
        assert message in errors[f"public.t{number}"], errors


def test_an_error_names_its_column_as_a_stock_subscribers(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher, stock, node = database_on(17), database_on(18), local_node()
    publisher.execute(
        "CREATE TABLE t (id int PRIMARY KEY, c text); CREATE TABLE copied (c text);"
        "INSERT INTO copied VALUES ('abcd'); CREATE PUBLICATION p FOR TABLE t;"
        "CREATE PUBLICATION q FOR TABLE copied"
    )
    for side in (stock.execute, node.node.sql):
        side("CREATE TABLE t (id int PRIMARY KEY, c varchar(3))")
        side("CREATE TABLE copied (c varchar(3))")
    node.subscribe("s", publisher, "p")
    node.subscribe("copies", publisher, "q")
    stock.execute(f"CREATE SUBSCRIPTION types CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.caught_up("s", publisher)
        publisher.execute("INSERT INTO t VALUES (1, 'abcd')")
        wait_until(lambda: _CONTEXT.search(stock.server.log()), "the server's error", 60)
    finally:
        stock.execute("DROP SUBSCRIPTION types")
    stopped = node.stopped("s")
    assert stopped.error == "value too long for type character varying(3)"
    assert stopped.error_detail == 'Table "public.t", column "c". The value is "abcd".'
    theirs, ours = (_CONTEXT.search(log) for log in (stock.server.log(), caplog.text))
    assert theirs is not None
    assert ours is not None
    assert ours.groups() == theirs.groups()
    node.wait_for(
        "copies", "the error", lambda status: status.tables[0].error is not None, fails=False
    )
    (copied,) = node.status("copies").tables
    assert copied.error == stopped.error
    assert copied.error_detail == 'Table "public.copied", column "c". The value is "abcd".'


def test_a_type_without_an_input_function_is_refused_by_name(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    node = local_node()
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, c text); CREATE TABLE other (id int);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node.node.sql("CREATE TABLE t (id int PRIMARY KEY, c point)")
    node.subscribe("s", database, "p")
    node.wait_for("s", "the error", lambda status: status.tables[0].error is not None, fails=False)
    error = str(node.status("s").tables[0].error)
    assert error == (
        'column "c" of relation "public.t" cannot be converted to the type of the target\'s column'
    )
    # The hint, to the letter.
    refresh = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
    database.execute("INSERT INTO t VALUES (1, 'x'); ALTER PUBLICATION p SET TABLE other")
    node.node.sql(refresh)
    node.node.sql("DROP TABLE t")
    node.node.sql("CREATE TABLE t (id int PRIMARY KEY, c varchar(1))")
    database.execute("ALTER PUBLICATION p SET TABLE t")
    node.node.sql(refresh)
    node.caught_up("s", database)
    assert node.rows("t") == [(1, "x")]
