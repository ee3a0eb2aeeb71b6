"""ALTER TABLE ... REPLICA IDENTITY while a subscription runs: rows before, at and after the change
are found, in one batch and over batches, with restarts between, beside a stock subscriber.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import ConnectionFailure
from penstock.failpoint import BEFORE_CUT

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SYNCED = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
_MADE = (
    "CREATE TABLE {0} (a int NOT NULL, b int NOT NULL, c text, big text);"
    "ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL;"
    "CREATE UNIQUE INDEX {0}_a ON {0} (a); CREATE UNIQUE INDEX {0}_b ON {0} (b);"
    "CREATE UNIQUE INDEX {0}_ab ON {0} (a, b);"
)
_INSERT = (
    "INSERT INTO {0} SELECT i, 1000 - i, 'c' || i, repeat('x' || i, 2000)"
    " FROM generate_series({1}, {2}) i;"
)
_USING = "ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_{1};"
_FULL = "ALTER TABLE {0} REPLICA IDENTITY FULL;"
_CHANGES = (
    "UPDATE {0} SET c = c || '{1}' WHERE a % 3 = 0;"
    "UPDATE {0} SET b = b + 10000 WHERE a % 7 = {1};"
    "UPDATE {0} SET a = a + 1000 * {1} WHERE a % 5 = {1};"
    "DELETE FROM {0} WHERE a % 11 = {1};"
    "INSERT INTO {0} SELECT 100000 * {1} + i, -100000 * {1} - i, 'new', 'y'"
    " FROM generate_series(1, 5) i;"
)


def _changes(table: str, number: int) -> str:
    return _CHANGES.format(table, number)


# What a stock subscriber with the local identity of the second member follows, too.
_BESIDE = {
    "within": (
        _USING.format("within", "a"),
        (
            _changes("within", 1) + _USING.format("within", "ab") + _changes("within", 2),
            _FULL.format("within") + _changes("within", 3) + _USING.format("within", "a"),
            _changes("within", 4),
            "ALTER TABLE within ADD PRIMARY KEY (a, b);"
            "ALTER TABLE within REPLICA IDENTITY DEFAULT;" + _changes("within", 5),
        ),
    ),
    "other": (
        _USING.format("other", "b"),
        (
            _INSERT.format("other", 200, 210) + _USING.format("other", "b") + _changes("other", 1),
            _changes("other", 2) + _FULL.format("other") + _changes("other", 3),
            _changes("other", 4) + _USING.format("other", "b") + "TRUNCATE other;",
            _INSERT.format("other", 1, 9) + _changes("other", 5),
        ),
    ),
    "bag": (
        _USING.format("bag", "b"),
        (
            _changes("bag", 1) + _USING.format("bag", "b") + _changes("bag", 2),
            _changes("bag", 3) + _FULL.format("bag") + _changes("bag", 4),
            "ALTER TABLE bag REPLICA IDENTITY NOTHING;" + _INSERT.format("bag", 300, 305),
            _USING.format("bag", "b") + _changes("bag", 5),
        ),
    ),
}
# Where its rows are known by b before, and by a then, a stock subscriber stops.
_ALONE = (
    _changes("twin", 1) + _USING.format("twin", "b") + _changes("twin", 2),
    _USING.format("twin", "a") + _changes("twin", 3) + _USING.format("twin", "b"),
    _changes("twin", 4)
    + "DROP INDEX twin_a; UPDATE twin SET a = 1 WHERE a % 2 = 1;"
    + "UPDATE twin SET c = 'same' WHERE a = 1 AND b < 900;",
    "ALTER TABLE twin ADD PRIMARY KEY (a, b); ALTER TABLE twin REPLICA IDENTITY DEFAULT;"
    "UPDATE twin SET b = -b WHERE a = 1; DELETE FROM twin WHERE b = -993;",
)
_TABLES = (*_BESIDE, "twin")


@pytest.fixture
def stock(database_on: Callable[..., Database]) -> Iterator[Database]:
    server = database_on(18)
    yield server
    server.execute("DROP SUBSCRIPTION IF EXISTS stock")


def _setup(database: Database, stock: Database) -> None:
    for table in _TABLES:
        identity = _FULL.format(table) if table == "bag" else _USING.format(table, "a")
        database.execute(_MADE.format(table) + identity + _INSERT.format(table, 1, 60))
    for table, (identity, _) in _BESIDE.items():
        stock.execute(_MADE.format(table) + identity)
    database.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(_BESIDE)}")
    database.execute("CREATE PUBLICATION q FOR TABLE twin")


def _subscribe(node: LocalNode, stock: Database, database: Database, options: str) -> None:
    node.subscribe("s", database, "p, q", options)
    _subscribe_stock(stock, database)
    node.caught_up("s", database)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)


def _subscribe_stock(stock: Database, database: Database) -> None:
    """Its slot comes first: on one server the command would wait for its own transaction's end."""
    slot = f"stock_{database.name}"
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    stock.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{database.conninfo}' PUBLICATION p"
        f" WITH (slot_name = '{slot}', create_slot = false)"
    )


def _equal(node: LocalNode, database: Database, stock: Database) -> None:
    database.wait_confirmed(f"stock_{database.name}", 60)
    live = (lambda rows: [r[:4] for r in rows if r[-1] is None]) if _soft(node) else list
    with database.connect() as connection, stock.connect() as other:
        for table in _TABLES:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, live(node.rows(table)))), str(lack)
            if table in _BESIDE:
                found = publisher_rows(other, f"public.{table}")
                assert not (lack := difference(table, wanted, found)), str(lack)


def _soft(node: LocalNode) -> bool:
    return len(node.rows("twin")[0]) > 4


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (15, ""),
        (18, ""),
        (14, "history = true"),
        in_make_faults(16, "soft_delete = true"),
        in_make_faults(17, "history = true, soft_delete = true"),
    ],
)
def test_changes_before_at_and_after_another_identity(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    stock: Database,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    options: str,
) -> None:
    """In one batch that comes twice, its cut being lost, and then over batches."""
    database, node = database_on(version), local_node()
    _setup(database, stock)
    _subscribe(node, stock, database, options)
    tables = node.cut().tables
    failures: list[str] = []

    def fail_once(name: str) -> None:
        if name == BEFORE_CUT and not failures:
            failures.append(name)
            raise ConnectionFailure("the connection was lost before the cut")

    stories = [*(steps for _, steps in _BESIDE.values()), _ALONE]
    node.node.stop()
    monkeypatch.setattr("penstock.subscription.apply.failpoint", fail_once)
    for steps in zip(*(story[:2] for story in stories), strict=True):
        for step in steps:
            database.execute(step)
    node.node.start()
    node.caught_up("s", database)
    assert failures
    _equal(node, database, stock)
    for steps in zip(*(story[2:] for story in stories), strict=True):
        for step in steps:
            database.execute(step)
        node.caught_up("s", database)
        node.node.stop()
        node.node.start()
    _equal(node, database, stock)
    # Nothing was copied again.
    now = node.cut().tables
    assert {name: pin.uri for name, pin in now.items()} == {n: p.uri for n, p in tables.items()}
    assert all(now[name].version > pin.version for name, pin in tables.items())


def test_a_streamed_transaction_with_another_identity(
    local_node: Callable[..., LocalNode], database: Database, stock: Database
) -> None:
    database.execute("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    database.execute("SELECT pg_reload_conf()")
    try:
        node = local_node()
        _setup(database, stock)
        _subscribe(node, stock, database, "streaming = parallel")
        stories = [*(steps for _, steps in _BESIDE.values()), _ALONE]
        for steps in zip(*stories, strict=True):
            database.execute(f"BEGIN; {''.join(steps)} COMMIT")
        node.caught_up("s", database)
        _equal(node, database, stock)
    finally:
        database.execute("ALTER SYSTEM RESET logical_decoding_work_mem")
        database.execute("SELECT pg_reload_conf()")


_NOT_SENT = (
    "publisher did not send replica identity column expected by the logical replication target "
    'relation "public.t"'
)


def _stock_said(stock: Database, text: str, since: int) -> None:
    def said() -> bool:
        return text in stock.server.log_path.read_text("utf-8", "replace")[since:]

    wait_until(said, "the stock subscriber's error", 60)


def test_rows_that_the_new_identity_does_not_find(
    local_node: Callable[..., LocalNode],
    database: Database,
    stock: Database,
) -> None:
    """INSERTs go on; an UPDATE stops in PostgreSQL's words, until the table was copied again."""
    database.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX t_b ON t (b);"
        "CREATE UNIQUE INDEX t_a ON t (a); INSERT INTO t VALUES (1, -1), (2, -2);"
        "CREATE PUBLICATION p FOR TABLE t;" + _USING.format("t", "a")
    )
    made = "CREATE TABLE t (a int, b int, PRIMARY KEY (a))"
    node = local_node()
    stock.execute(made)
    node.node.sql(made)
    _subscribe_one(node, stock, database)
    database.execute("UPDATE t SET b = -20 WHERE a = 2")
    database.execute(_USING.format("t", "b"))
    database.execute("INSERT INTO t VALUES (4, -4)")
    node.caught_up("s", database)
    database.wait_confirmed(f"stock_{database.name}", 60)
    size = len(stock.server.log_path.read_text("utf-8", "replace"))
    database.execute("UPDATE t SET b = -40 WHERE a = 4")
    status = node.stopped("s")
    _stock_said(stock, _NOT_SENT, size)
    assert status.error == _NOT_SENT
    hint = r"ALTER SUBSCRIPTION s REFRESH PUBLICATION, and then ALTER SUBSCRIPTION s ENABLE\."
    assert re.search(hint, str(status.error_hint))
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    database.execute("UPDATE t SET a = 10 WHERE a = 1; DELETE FROM t WHERE a = 2")
    node.caught_up("s", database)
    with database.connect() as connection:
        assert not difference("t", publisher_rows(connection, "public.t"), node.rows("t"))


def _subscribe_one(node: LocalNode, stock: Database, database: Database) -> None:
    node.subscribe("s", database, "p")
    _subscribe_stock(stock, database)
    node.caught_up("s", database)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)


def test_identities_that_other_rows_have(
    local_node: Callable[..., LocalNode], database: Database, database_on: Callable[..., Database]
) -> None:
    """Rows of two shards are not one publisher's, and what was made to fit is not its value."""
    shards = (database, database_on(17))
    for number, shard in enumerate(shards):
        shard.execute(
            "CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL); CREATE UNIQUE INDEX t_b ON t (b);"
            "CREATE TABLE clamped (a int PRIMARY KEY, d date NOT NULL UNIQUE);"
            f"INSERT INTO t VALUES ({number}, 5); INSERT INTO clamped VALUES (1, 'infinity');"
            "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION c FOR TABLE clamped"
        )
    node = local_node()
    for name, shard, options in zip(("s", "other"), shards, ("", "copy_data = false"), strict=True):
        node.subscribe(name, shard, "p", options)
        node.caught_up(name, shard)
    node.subscribe("c", database, "c", "out_of_range = clamp")
    node.caught_up("c", database)
    shards[1].execute("INSERT INTO t VALUES (2, -5)")
    node.caught_up("other", shards[1])
    for shard in shards:
        shard.execute(
            _USING.format("t", "b") + "INSERT INTO t VALUES (10 + (SELECT a FROM t LIMIT 1), 6)"
        )
    node.caught_up("s", database)
    node.caught_up("other", shards[1])
    database.execute("UPDATE t SET b = 50 WHERE b = 5")
    assert node.stopped("s").error == _NOT_SENT
    database.execute(
        "ALTER TABLE clamped REPLICA IDENTITY USING INDEX clamped_d_key; DELETE FROM clamped"
    )
    # Values of an identity are not made to fit: rows would not be found by them.
    told = 'value "infinity" of type date cannot be represented in the target'
    assert node.stopped("c").error == told
