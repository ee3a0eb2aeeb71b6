"""Partitioned tables of the node that a subscription fills, beside a stock subscriber."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Final

import psycopg
import pytest
from deltalake import DeltaTable

from end_to_end.compare import Row, delta_rows
from end_to_end.local_node import LocalNode
from faults.heavy import HEAVY, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_ROUNDS: Final = 3 if HEAVY else 1
"""Of changes; as many as this in ``make faults``."""

TABLES = """
CREATE TABLE l (id int, kind text, big text, PRIMARY KEY (id, kind));
CREATE TABLE r (id int PRIMARY KEY, v text, big text);
CREATE TABLE h (id bigint PRIMARY KEY, v text);
CREATE TABLE two (day date, id int, v text, PRIMARY KEY (day, id));
CREATE TABLE keyless (id int, v text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
"""
PARTITIONS = """
CREATE TABLE l (own text DEFAULT 'own', kind text, id int, big text, PRIMARY KEY (id, kind))
  PARTITION BY LIST (kind);
CREATE TABLE l_ab (id int NOT NULL, big text, own text, kind text NOT NULL);
ALTER TABLE l ATTACH PARTITION l_ab FOR VALUES IN ('a', 'b');
CREATE TABLE l_rest PARTITION OF l DEFAULT;
CREATE TABLE r (id int PRIMARY KEY, v text, big text) PARTITION BY RANGE (id);
CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (MINVALUE) TO (40);
CREATE TABLE r_40 PARTITION OF r FOR VALUES FROM (40) TO (80);
CREATE TABLE r_80 PARTITION OF r FOR VALUES FROM (80) TO (MAXVALUE);
CREATE TABLE h (id bigint PRIMARY KEY, v text) PARTITION BY HASH (id);
CREATE TABLE h_0 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE h_1 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE h_2 PARTITION OF h FOR VALUES WITH (MODULUS 3, REMAINDER 2);
CREATE TABLE two (day date, id int, v text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE two_23 PARTITION OF two FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE two_24 PARTITION OF two FOR VALUES FROM ('2024-01-01') TO (MAXVALUE)
  PARTITION BY LIST (id);
CREATE TABLE two_24_1 PARTITION OF two_24 FOR VALUES IN (0, 1, 2);
CREATE TABLE two_24_d PARTITION OF two_24 DEFAULT;
CREATE TABLE keyless (id int, v text) PARTITION BY LIST (id);
CREATE TABLE keyless_0 PARTITION OF keyless FOR VALUES IN (0, NULL);
CREATE TABLE keyless_d PARTITION OF keyless DEFAULT;
"""
COLUMNS = {
    "l_ab": "id, kind, big, own",
    "l_rest": "id, kind, big, own",
    **dict.fromkeys(("r_0", "r_40", "r_80"), "id, v, big"),
    **dict.fromkeys(("h_0", "h_1", "h_2", "keyless_0", "keyless_d"), "id, v"),
    **dict.fromkeys(("two_23", "two_24_1", "two_24_d"), "day, id, v"),
}


def changes(dice: random.Random) -> Iterator[str]:
    """Statements; most move some rows between partitions."""
    toast = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) i)"
    for _ in range(12):
        n, m = dice.randrange(120), dice.randrange(120)
        kind = dice.choice("abcd")
        yield dice.choice(
            (
                f"INSERT INTO l VALUES ({n}, '{kind}', {toast}) ON CONFLICT DO NOTHING",
                f"UPDATE l SET kind = '{kind}' WHERE id = {n} AND NOT EXISTS"
                f" (SELECT FROM l x WHERE x.id = {n} AND x.kind = '{kind}')"
                f" AND kind = (SELECT min(kind) FROM l x WHERE x.id = {n})",
                f"DELETE FROM l WHERE id % 7 = {n % 7}",
                f"INSERT INTO r SELECT i, 'v', {toast} FROM generate_series({n}, {n + 9}) i"
                " ON CONFLICT DO NOTHING",
                f"UPDATE r SET id = id + 1000 WHERE id < {n % 60}"
                " AND NOT EXISTS (SELECT FROM r x WHERE x.id = r.id + 1000)",
                f"UPDATE r SET id = -id - 1 WHERE id > {m}",
                f"UPDATE r SET v = '{n}' WHERE id % 3 = {n % 3}",
                f"INSERT INTO h SELECT i * 1000003, 'v' FROM generate_series({n}, {n + 30}) i"
                " ON CONFLICT DO NOTHING",
                f"UPDATE h SET id = -id - {n} WHERE id % 5 = {n % 5} AND id > {n * 1000003}",
                f"DELETE FROM h WHERE id % 4 = {m % 4}",
                f"INSERT INTO two SELECT '2023-12-01'::date + i, i % 5, 'v'"
                f" FROM generate_series({n % 60}, {n % 60 + 20}) i ON CONFLICT DO NOTHING",
                f"UPDATE two SET day = day - 10000, v = '{n}' WHERE day > '2024-01-05'"
                f" AND id = {n % 5}",
                f"INSERT INTO keyless SELECT NULLIF(i % 4, 3), 'v' FROM generate_series(1, {n}) i",
                f"UPDATE keyless SET id = {n % 3} WHERE id = {m % 3}",
                f"DELETE FROM keyless WHERE id = {n % 4}",
                dice.choice(("TRUNCATE l", "TRUNCATE r, h", "TRUNCATE keyless")),
            )
        )


@contextlib.contextmanager
def subscribed(
    node: LocalNode, stock: Database, publisher: Database, options: str = ""
) -> Iterator[None]:
    """Both to the publication ``p``."""
    stock.execute(f"CREATE SUBSCRIPTION of_stock CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.subscribe("s", publisher, "p", options)
        yield
    finally:
        stock.execute("DROP SUBSCRIPTION of_stock")


def caught_up(node: LocalNode, stock: Database, publisher: Database) -> None:
    """Both."""
    target = publisher.value("SELECT pg_current_wal_lsn()")
    node.caught_up("s", publisher)
    synced = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    replayed = (
        f"SELECT bool_and(replay_lsn >= '{target}') FROM pg_stat_replication"
        " WHERE application_name = 'of_stock'"
    )
    wait_until(lambda: stock.value(synced) and publisher.value(replayed), "the server's subscriber")


def run(publisher: Database, dice: random.Random) -> None:
    """Some changes; those that meet a key that is there do nothing."""
    for change in changes(dice):
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            publisher.execute(change)


def leaf_rows(node: LocalNode, leaf: str, columns: str) -> list[Row]:
    """At the last cut, in the order of ``columns``."""
    pin = node.cut().tables["public", leaf]
    fields = [field.name for field in DeltaTable(pin.uri, version=pin.version).schema().fields]
    at = [fields.index(name) for name in columns.split(", ")]
    return sorted((tuple(row[i] for i in at) for row in delta_rows(pin.uri, pin.version)), key=repr)


def compare(node: LocalNode, stock: Database, *roots: str) -> int:
    rows = 0
    for leaf, columns in COLUMNS.items():
        expected = sorted(stock.rows(f"SELECT {columns} FROM {leaf}"), key=repr)
        assert leaf_rows(node, leaf, columns) == expected, leaf
        rows += len(expected)
    for root in roots:
        assert node.node.read(root).count() == stock.value(f"SELECT count(*) FROM {root}"), root
    return rows


@part_of_make_faults
def test_copy_and_stream(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, stock = database_on(17), database_on(18)
    publisher.execute(TABLES + "CREATE PUBLICATION p FOR ALL TABLES")
    dice = random.Random(1)
    run(publisher, dice)
    stock.execute(PARTITIONS)
    node = local_node()
    node.node.sql(PARTITIONS)
    with subscribed(node, stock, publisher):
        caught_up(node, stock, publisher)
        compare(node, stock)
        seen = 0
        for _ in range(_ROUNDS):
            run(publisher, dice)
            caught_up(node, stock, publisher)
            seen += compare(node, stock)
        assert seen > 30 * _ROUNDS
        compare(node, stock, "l", "two", "keyless")


@part_of_make_faults
def test_partitions_come_and_go(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, stock = database_on(17), database_on(18)
    publisher.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 5) i"
    )
    made = (
        "CREATE TABLE t (a int PRIMARY KEY, v text) PARTITION BY RANGE (a);"
        "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (10);"
    )
    stock.execute(made)
    node = local_node()
    node.node.sql(made)
    with subscribed(node, stock, publisher):
        caught_up(node, stock, publisher)
        for both, change in (
            ("CREATE TABLE t_10 PARTITION OF t FOR VALUES FROM (10) TO (20)", "UPDATE t SET a=a+8"),
            ("CREATE TABLE t_20 (v text, a int PRIMARY KEY)", "DELETE FROM t WHERE a = 9"),
            (
                "ALTER TABLE t ATTACH PARTITION t_20 FOR VALUES FROM (20) TO (30)",
                "UPDATE t SET a = a + 9 WHERE a > 11",
            ),
            ("ALTER TABLE t DETACH PARTITION t_0", "DELETE FROM t WHERE a = 21"),
        ):
            stock.execute(both)
            node.node.sql(both)
            publisher.execute(change)
            caught_up(node, stock, publisher)
        for leaf in ("t_10", "t_20"):
            expected = sorted(stock.rows(f"SELECT a, v FROM {leaf}"), key=repr)
            assert leaf_rows(node, leaf, "a, v") == expected
        assert ("public", "t_0") not in node.cut().tables
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
        node.wait_for("s", "another copy", lambda s: s.tables[0].rows_copied == 3)
        node.caught_up("s", publisher)
        assert leaf_rows(node, "t_20", "a, v") == stock.rows("SELECT a, v FROM t_20")


def test_a_row_without_a_partition_stops_as_on_a_server(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher, stock = database_on(17), database_on(18)
    publisher.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
    )
    made = (
        "CREATE TABLE t (a int PRIMARY KEY, v text) PARTITION BY LIST (a);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1, 2);"
    )
    stock.execute(made)
    node = local_node()
    node.node.sql(made)
    with pytest.raises(Exception, match="no partition") as caught:
        stock.execute("INSERT INTO t VALUES (3)")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    publisher.execute("INSERT INTO t VALUES (1, 'a'), (3, 'b')")
    status = node.stopped("s")
    assert status.error == caught.value.diag.message_primary  # type: ignore[attr-defined]
    assert status.error_detail is not None
    assert status.error_detail.startswith(
        str(caught.value.diag.message_detail)  # type: ignore[attr-defined]
    )
    node.node.sql("CREATE TABLE t_3 PARTITION OF t FOR VALUES IN (3)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", publisher)
    assert leaf_rows(node, "t_3", "a, v") == [(3, "b")]
    assert leaf_rows(node, "t_1", "a, v") == [(1, "a")]


def test_what_is_refused(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    publisher = database_on(18)
    publisher.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int); CREATE TABLE t_1 (a int PRIMARY KEY, b int);"
        "CREATE TABLE u (a int PRIMARY KEY, b int); INSERT INTO u VALUES (1, 1);"
        "CREATE PUBLICATION p FOR TABLE t, t_1; CREATE PUBLICATION q FOR TABLE u"
    )
    node = local_node()
    node.node.sql(
        "CREATE TABLE t (a int PRIMARY KEY, b int) PARTITION BY LIST (a);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES IN (1);"
        "CREATE TABLE u (a int, b int) PARTITION BY LIST (b);"
        "CREATE TABLE u_1 PARTITION OF u FOR VALUES IN (1)"
    )
    with pytest.raises(Exception, match=r'cannot use relation "public\.t_1"') as caught:
        node.subscribe("s", publisher, "p")
    assert caught.value.sqlstate == "0A000"  # type: ignore[attr-defined]
    node.subscribe("s", publisher, "q")
    node.wait_for("s", "an error of the copy", lambda s: s.tables[0].error is not None)
    (table,) = node.status("s").tables
    assert table.error == 'cannot use relation "public.u" as logical replication target'
    assert 'partitioned by column "b"' in str(table.error_detail)
