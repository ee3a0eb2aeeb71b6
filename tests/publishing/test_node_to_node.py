"""PostgreSQL -> node -> node: every type of docs/types.md, in the copy and in the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_VALUES: Final[dict[str, tuple[str, str]]] = {
    "smallint": ("-32768", "7"),
    "integer": ("2147483647", "8"),
    "bigint": ("-9223372036854775808", "9"),
    "real": ("'NaN'", "0.1"),
    "double precision": ("'-Infinity'", "1e-300"),
    "numeric(10,2)": ("-12345678.91", "0.01"),
    "numeric(5,-2)": ("-123400", "500"),
    "numeric(2,5)": ("0.00012", "-0.00099"),
    "numeric(50,2)": ("1e40", "-0.01"),
    "numeric": ("'NaN'", "123456789012345678901234567890.000000000000000000000000000012300"),
    "boolean": ("true", "false"),
    "text": (r"E'tab\t \\ ''quote'' \n é 😀'", "''"),
    "varchar(20)": ("'  blanks  '", "'NULL'"),
    "char(5)": ("'ab'", "'é'"),
    "name": ("'a name'", "'other'"),
    "bytea": (r"'\x00ff5c'", "''"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "timestamp": ("'1999-12-31 23:59:59.999999'", "'0001-01-01'"),
    "timestamptz": ("'2024-02-29 12:00:00.5+05:30'", "'9999-12-31 23:59:59.999999+00'"),
    "uuid": ("'00000000-0000-0000-0000-00000000000f'", "gen_random_uuid()"),
    "json": ("""'{"a":  1, "a": [null]}'""", "'null'"),
    "jsonb": ("""'{"b": 1.50, "a": "\\u00e9\\n"}'""", "'[]'"),
    "time": ("'23:59:59.999999'", "'24:00'"),
    "timetz": ("'12:00:00+05:30'", "'00:00:00.1-12'"),
    "interval": ("'1 year -2 mons +3 days -04:05:06.789'", "'0'"),
    "inet": ("'10.0.0.1'", "'2001:db8::1/64'"),
    "money": ("'-1234.56'", "'0.01'"),
    "bit(3)": ("B'101'", "B'000'"),
    "point": ("'(1.5,-0.1)'", "'(1e300,0)'"),
    "int4range": ("'[1,5)'", "'empty'"),
    "tsvector": ("'a:1A fat:2,3'", "''"),
    "mood": ("'sad'", "'very happy'"),
    "flag": ("true", "false"),
    "padded": ("'ab'", "'c'"),
    "pair": ("'(1,\"a,b\")'", "'(,)'"),
}
"""By type: values of two rows, as SQL. The last four are a database's own: an enum, domains, a
composite type."""

_TYPES: Final = """
CREATE TYPE mood AS ENUM ('sad', 'very happy');
CREATE DOMAIN flag AS boolean;
CREATE DOMAIN padded AS char(4);
CREATE TYPE pair AS (a integer, b text);
"""


def script() -> str:
    """The tables ``one`` and ``many`` (arrays), with the rows that are copied."""
    columns, arrays, first, second, many = [], [], [], [], []
    for number, (kind, (a, b)) in enumerate(_VALUES.items()):
        columns.append(f"c{number} {kind}")
        arrays.append(f"c{number} {kind}[]")
        first.append(f"({a})::{kind}")
        second.append(f"({b})::{kind}")
        many.append(f"ARRAY[{a}, NULL, {b}]::{kind}[]")
    nulls = ", ".join(["NULL"] * len(_VALUES))
    empty = ", ".join(["'{}'"] * len(_VALUES))
    return f"""{_TYPES}
CREATE TABLE one (id integer PRIMARY KEY, {", ".join(columns)});
CREATE TABLE many (id integer PRIMARY KEY, {", ".join(arrays)});
INSERT INTO one VALUES (1, {", ".join(first)}), (2, {", ".join(second)}), (3, {nulls});
INSERT INTO many VALUES (1, {", ".join(many)}), (2, {empty}), (3, {nulls});
"""


@pytest.fixture(scope="module")
def follower(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """A node that subscribes to the node."""
    with LocalNode(tmp_path_factory.mktemp("follower") / "node", spark) as started:
        yield started


@part_of_make_faults
def test_every_type_comes_through_two_nodes(
    lake: LakeNode, follower: LocalNode, database_on: Callable[..., Database]
) -> None:
    source = database_on(18)
    source.execute(script())
    source.execute("CREATE PUBLICATION p FOR ALL TABLES")
    lake.node.sql(f"CREATE SUBSCRIPTION types CONNECTION '{source.conninfo}' PUBLICATION p")
    arrived(lake, source)
    # Both nodes work on the two cores of one session: a task that copies waits for a task that is
    # copied from, so there is one copy at a time.
    lake.execute("CREATE PUBLICATION types FOR TABLE public.one")
    quoted = lake.conninfo().replace("'", "''")
    follower.node.sql(f"CREATE SUBSCRIPTION types CONNECTION '{quoted}' PUBLICATION types")
    equal(lake, follower, "the copy", "one")
    lake.execute("ALTER PUBLICATION types ADD TABLE public.many")
    follower.node.sql("ALTER SUBSCRIPTION types REFRESH PUBLICATION")
    equal(lake, follower, "the copy", "many")
    for table in ("one", "many"):
        columns = ", ".join(f"c{number}" for number in range(len(_VALUES)))
        source.execute(
            f"INSERT INTO {table} SELECT id + 10, {columns} FROM {table};"
            f"UPDATE {table} SET id = id + 100 WHERE id IN (1, 12);"
            f"UPDATE {table} t SET ({columns}) = (SELECT {columns} FROM {table} WHERE id = 2)"
            " WHERE id = 11; DELETE FROM {table} WHERE id = 3".replace("{table}", table)
        )
    arrived(lake, source)
    equal(lake, follower, "the stream", "one", "many")
    verified = follower.node.verify(subscription="types")
    assert verified.equal, verified
    follower.node.sql("DROP SUBSCRIPTION types")
    lake.node.sql("DROP SUBSCRIPTION types")


def arrived(lake: LakeNode, source: Database) -> None:
    target = source.value("SELECT pg_current_wal_flush_lsn()::text")
    wait_until(lambda: lake.node.cut("types") is not None, "the first cut")
    lake.node.wait_for(target, subscription="types", timeout=90)


def equal(lake: LakeNode, follower: LocalNode, what: str, *tables: str) -> None:
    """Wait until the follower has the node's rows, all columns of them."""
    for table in tables:
        wanted = rows_of(lake, table)
        assert len(wanted) >= 3
        wait_until(
            lambda table=table, wanted=wanted: rows_of(follower, table) == wanted,  # type: ignore[misc]
            f"{what} of {table}: {follower.status('types')}",
        )


def rows_of(node: LakeNode | LocalNode, table: str) -> Counter[str]:
    cut = node.node.cut("types")
    if cut is None or ("public", table) not in cut.tables:
        return Counter()
    pin = cut.tables["public", table]
    frame = node.node.spark.read.format("delta").option("versionAsOf", pin.version).load(pin.uri)
    return Counter(map(repr, frame.collect()))
