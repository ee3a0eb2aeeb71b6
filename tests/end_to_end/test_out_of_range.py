"""``out_of_range = null | clamp``: values that no Delta type has need not stop a subscription."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t (id int PRIMARY KEY, d date, ts timestamp, n numeric(6,2), a date[], big text);
CREATE TABLE bag (d date, n numeric(6,2));
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE keys (d date PRIMARY KEY, v int);
INSERT INTO t VALUES (1, 'infinity', '-infinity', 'NaN', '{{2020-01-01}}', 'copied'),
    (2, '2020-02-29', '2020-02-29 01:02:03', 1.5, '{2020-01-01}', 'copied');
INSERT INTO bag VALUES ('infinity', 'NaN'), ('10000-01-01', 1);
CREATE PUBLICATION p FOR ALL TABLES
"""


def _rows(node: LocalNode, table: str) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in node.rows(table))


@pytest.mark.parametrize(("policy", "binary"), [("clamp", "false"), ("null", "true")])
def test_copy_and_stream(
    local_node: Callable[..., LocalNode], database: Database, policy: str, binary: str
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", f"out_of_range = {policy}, binary = {binary}")
    node.caught_up("s", database)
    clamps = policy == "clamp"
    last, first = ("9999-12-31", "0001-01-01") if clamps else ("None", "None")
    start = "0001-01-01 00:00:00" if clamps else "None"
    two = ("2", "2020-02-29", "2020-02-29 01:02:03", "1.50", "(datetime.date(2020, 1, 1),)")
    assert _rows(node, "t") == [
        ("1", last, start, "None", "None", "copied"),
        (*two, "copied"),
    ]
    assert _rows(node, "bag") == sorted([(last, "None"), (last, "1.00")])
    database.execute("UPDATE t SET big = 'changed'; INSERT INTO t VALUES (3, '0044-03-15 BC')")
    database.execute("UPDATE t SET n = 'NaN', ts = 'infinity' WHERE id = 2")
    database.execute("DELETE FROM bag WHERE n = 1; INSERT INTO bag VALUES ('-infinity', 2)")
    node.caught_up("s", database)
    end = "9999-12-31 23:59:59.999999" if clamps else "None"
    assert _rows(node, "t") == [
        ("1", last, start, "None", "None", "changed"),
        ("2", "2020-02-29", end, "None", two[4], "changed"),
        ("3", first, "None", "None", "None", "None"),
    ]
    assert _rows(node, "bag") == sorted([(last, "None"), (first, "2.00")])
    counted = node.node.sql("SELECT values_out_of_range FROM pg_stat_lake_subscription").rows
    assert counted[0][0] >= 8
    assert node.node.verify(subscription="s").equal
    # two keys must not become the same one
    database.execute("INSERT INTO keys VALUES ('infinity', 1)")
    assert "cannot be represented" in str(node.stopped("s").error)


def test_it_is_set_later(local_node: Callable[..., LocalNode], database: Database) -> None:
    """What stopped it goes on."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (1, '2020-01-01'); INSERT INTO t VALUES (2, 'infinity')")
    assert "out_of_range" in str(node.stopped("s").error_hint)
    node.node.sql("ALTER SUBSCRIPTION s SET (out_of_range = clamp)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert _rows(node, "t") == [("1", "2020-01-01"), ("2", "9999-12-31")]


_TYPES = "d date, ts timestamp, tz timestamptz, n numeric(6,2), a date[]"
_ODD = "'infinity', '-infinity', '0044-03-15 01:02:03+00 BC', 'NaN', '{{2020-01-01},{infinity}}'"
_EVEN = "'2020-02-29', '2020-02-29 01:02:03', '2020-02-29 01:02:03+00', 1.5, '{2020-01-01}'"
_CHANGES = f"""
INSERT INTO t VALUES (3, {_ODD}), (4, {_EVEN});
UPDATE t SET d = '10000-01-01', n = 'NaN' WHERE id = 2;
UPDATE t SET big = 'changed' WHERE id = 1;
INSERT INTO bag SELECT 3, {_ODD};
DELETE FROM bag WHERE id = 1;
UPDATE bag SET d = '-infinity' WHERE n <> 'NaN';
INSERT INTO keys VALUES ('-infinity', 2), ('0044-03-15 BC', 3);
UPDATE keys SET v = 4 WHERE d = 'infinity';
DELETE FROM keys WHERE d = '0044-03-15 BC'
"""


@pytest.mark.parametrize(("own", "binary"), [(False, "false"), (True, "true")])
def test_text_holds_them_all(
    local_node: Callable[..., LocalNode], database: Database, own: bool, binary: str
) -> None:
    """``out_of_range = text``, and columns of text that somebody has made: as a stock subscriber
    with such columns, which has the text of every value."""
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {_TYPES}, big text);"
        f"CREATE TABLE bag (id int, {_TYPES}); ALTER TABLE bag REPLICA IDENTITY FULL;"
        "CREATE TABLE keys (d date PRIMARY KEY, v int); INSERT INTO keys VALUES ('infinity', 1);"
        f"INSERT INTO t VALUES (1, {_ODD}), (2, {_EVEN});"
        f"INSERT INTO bag VALUES (1, {_ODD}), (2, {_EVEN}); CREATE PUBLICATION p FOR ALL TABLES"
    )
    node = local_node()
    if own:
        texts = ", ".join(f"{column.split()[0]} text" for column in _TYPES.split(", "))
        node.node.sql(
            f"CREATE TABLE t (id int PRIMARY KEY, {texts}, big text);"
            f"CREATE TABLE bag (id int, {texts}); CREATE TABLE keys (d text PRIMARY KEY, v int)"
        )
    options = f"binary = {binary}, streaming = on" + ("" if own else ", out_of_range = text")
    node.subscribe("s", database, "p", options)

    def same() -> None:
        node.caught_up("s", database)
        for table in ("t", "bag", "keys"):
            wanted = database.rows(f"SELECT * FROM {table}_as_text")
            assert _rows(node, table) == sorted(tuple(map(str, row)) for row in wanted), table

    database.execute("SET timezone = 'UTC'")
    for table, others in (("t", "id, {}, big"), ("bag", "id, {}"), ("keys", "{}, v")):
        names = "d" if table == "keys" else ", ".join(c.split()[0] for c in _TYPES.split(", "))
        shown = ", ".join(f"format('%s', {name}) AS {name}" for name in names.split(", "))
        database.execute(
            f"CREATE VIEW {table}_as_text AS SELECT {others.format(shown)} FROM {table}"
        )
    same()
    database.execute(_CHANGES)
    same()
    if not own:
        database.execute("ALTER TABLE t ADD COLUMN more timestamp")
        database.execute("INSERT INTO t (id, more) VALUES (9, 'infinity')")
        node.caught_up("s", database)
        assert _rows(node, "t")[-1][-1] == "infinity"
        database.execute("ALTER TABLE t DROP COLUMN more CASCADE")
    assert node.node.verify(subscription="s").equal


def test_typed_columns_stay_typed_until_the_table_is_copied_again(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s SET (out_of_range = text)")
    database.execute("INSERT INTO t VALUES (1, '2020-01-01'); INSERT INTO t VALUES (2, 'infinity')")
    assert "to text" in str(node.stopped("s").error_hint)
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
    node.caught_up("s", database)
    assert _rows(node, "t") == [("1", "2020-01-01"), ("2", "infinity")]
    database.execute("UPDATE t SET d = '-infinity' WHERE id = 1")
    node.caught_up("s", database)
    assert _rows(node, "t") == [("1", "-infinity"), ("2", "infinity")]
