"""The option schema_change: what becomes of a table that changes at the publisher."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import InvalidParameterValue
from penstock.failpoint import BEFORE_CUT

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_CHANGES = {
    "dropped": "ALTER TABLE dropped DROP COLUMN v",
    "renamed": "ALTER TABLE renamed RENAME v TO other",
    "widened": "ALTER TABLE widened ALTER n TYPE bigint; UPDATE widened SET n = 1 << 40",
    "retyped": "ALTER TABLE retyped ALTER n TYPE text USING 'n' || n",
    "identity": "ALTER TABLE identity REPLICA IDENTITY FULL; UPDATE identity SET v = 'full'",
    "key": "ALTER TABLE key DROP CONSTRAINT key_pkey, ADD PRIMARY KEY (n)",
    "swapped": "ALTER TABLE swapped RENAME v TO x; ALTER TABLE swapped RENAME w TO v;"
    " ALTER TABLE swapped RENAME x TO w",
    "one": "ALTER TABLE one RENAME TO other_one",
    "moved": "ALTER TABLE moved SET SCHEMA elsewhere",
    "again": "DROP TABLE again; CREATE TABLE again (k text PRIMARY KEY, v int)",
    "listed": "ALTER PUBLICATION p SET TABLE {}, listed (id, v)",
    "bag": "ALTER TABLE bag DROP COLUMN w",
    "added": "ALTER TABLE added ADD COLUMN c int",
    "still": "UPDATE still SET v = 'now'",
}
_AFTER = {"one": "public.other_one", "moved": "elsewhere.moved"}
_COLUMNS = {"listed": ("id", "v")}


def _setup() -> str:
    made = (
        f"CREATE TABLE {name} (id int NOT NULL, v text, w text, n int NOT NULL);"
        f"INSERT INTO {name} SELECT i, 'v' || i, 'w' || i, i + 100 FROM generate_series(1, 9) i;"
        + (
            f"ALTER TABLE {name} REPLICA IDENTITY FULL;"
            if name == "bag"
            else f"ALTER TABLE {name} ADD CONSTRAINT {name}_pkey PRIMARY KEY (id);"
        )
        for name in _CHANGES
    )
    return f"{''.join(made)} CREATE SCHEMA elsewhere; CREATE PUBLICATION p FOR TABLE {_all()}"


def _all() -> str:
    return ", ".join(_CHANGES)


def _now() -> str:
    """Names of the published tables by the end, but the one with a list."""
    return ", ".join(_AFTER.get(name, name) for name in _CHANGES if name != "listed")


def _write(database: Database, number: int) -> None:
    """A change of each kind to each table, under the names that it has by now."""
    for table, names in _columns(database).items():
        key = "id" if "id" in names else "k"
        values = ", ".join(f"{number}" for _ in names)
        database.execute(f"INSERT INTO {table} VALUES ({values})")
        database.execute(f"DELETE FROM {table} WHERE {key} = '{number - 3}'")


def _columns(database: Database) -> dict[str, list[str]]:
    rows = database.rows(
        "SELECT c.oid::regclass::text, array_agg(attname::text ORDER BY attnum) FROM pg_class c"
        " JOIN pg_attribute a ON attrelid = c.oid AND attnum > 0 AND NOT attisdropped"
        " WHERE c.oid IN (SELECT prrelid FROM pg_publication_rel) GROUP BY 1"
    )
    return {str(table): list(names) for table, names in rows}


def _equal(node: LocalNode, database: Database) -> None:
    for name in _CHANGES:
        schema, table = _AFTER.get(name, f"public.{name}").split(".")
        with database.connect() as connection:
            columns = _COLUMNS.get(name) or tuple(
                _columns(database)[f"{schema}.{table}".removeprefix("public.")]
            )
            wanted = publisher_rows(connection, f"{schema}.{table}", columns=columns)
        found = node.node.read((schema, table)).select(*columns).collect()
        assert sorted(map(tuple, found), key=repr) == sorted(wanted, key=repr), table


@pytest.mark.parametrize("on_error", ["stop", pytest.param("park", marks=part_of_make_faults)])
def test_follow(local_node: Callable[..., LocalNode], database: Database, on_error: str) -> None:
    database.execute(_setup())
    node = local_node()
    node.subscribe("s", database, "p", f"schema_change = follow, on_table_error = {on_error}")
    node.caught_up("s", database)
    # All in one batch, with changes before and after.
    node.node.stop()
    _write(database, 20)
    for name, change in _CHANGES.items():
        change = change.format(_now()) if name == "listed" else change
        database.execute(f"BEGIN; {change}; COMMIT")
        if name == "again":
            database.execute("ALTER PUBLICATION p ADD TABLE again")
    _write(database, 30)
    node.node.start()
    node.caught_up("s", database, timeout=240)
    _equal(node, database)
    # And they follow.
    _write(database, 40)
    database.execute("UPDATE widened SET n = n + 1; UPDATE other_one SET v = 'last'")
    node.caught_up("s", database)
    _equal(node, database)
    shown = node.node.sql("SELECT schema_change, stopped FROM pg_stat_lake_subscription").rows
    assert [tuple(row) for row in shown] == [("follow", False)]


def test_follow_meets_the_change_again_where_the_publisher_is_lost(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the change and the record of its copy, and between the copy and the stream."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p", "schema_change = follow")
    node.caught_up("s", database)
    database.execute("ALTER TABLE t ALTER n TYPE text; INSERT INTO t VALUES (2, 'two')")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [(1, "1"), (2, "two")]
    # While it is copied again it changes again.
    done: list[str] = []

    def once(name: str) -> None:
        if name == BEFORE_CUT and not done:
            done.append(name)
            database.execute("ALTER TABLE t ALTER n TYPE int USING id; INSERT INTO t VALUES (9, 9)")

    monkeypatch.setattr("penstock.subscription.apply.failpoint", once)
    database.execute("ALTER TABLE t ALTER n TYPE bytea USING ''; INSERT INTO t VALUES (3, 'x')")
    node.caught_up("s", database)
    database.execute("DELETE FROM t WHERE id = 2")
    node.caught_up("s", database)
    with database.connect() as connection:
        assert sorted(node.rows("t")) == sorted(publisher_rows(connection, "public.t"))


def test_stop(local_node: Callable[..., LocalNode], database_on: Callable[..., Database]) -> None:
    """What a stock subscriber says of columns that it lacks; ALTER SUBSCRIPTION goes on."""
    publisher, stock, node = database_on(17), database_on(18), local_node()
    for side in (publisher.execute, stock.execute):
        side("CREATE TABLE t (id int PRIMARY KEY, v text)")
    publisher.execute("INSERT INTO t VALUES (1, 'a'); CREATE PUBLICATION p FOR TABLE t")
    node.subscribe("s", publisher, "p", "schema_change = stop")
    stock.execute(f"CREATE SUBSCRIPTION stops CONNECTION '{publisher.conninfo}' PUBLICATION p")
    try:
        node.caught_up("s", publisher)
        publisher.execute('ALTER TABLE t ADD COLUMN b int, ADD COLUMN "C" varchar(3)')
        publisher.execute("INSERT INTO t VALUES (2, 'b', 3, 'c')")
        message = (
            'logical replication target relation "public.t" is missing replicated columns: "b", "C"'
        )
        status = node.stopped("s")
        assert status.error == message
        assert 'ALTER TABLE public.t ADD COLUMN b integer, ADD COLUMN "C" character varying(3)' in (
            str(status.error_hint)
        )
        wait_until(lambda: message in stock.server.log(), "the server's error")
        assert node.rows("t") == [(1, "a")]
    finally:
        stock.execute("DROP SUBSCRIPTION stops")
    node.node.sql("ALTER SUBSCRIPTION s SET (schema_change = add)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", publisher)
    assert sorted(node.rows("t")) == [(1, "a", None, None), (2, "b", 3, "c")]
    with pytest.raises(InvalidParameterValue, match="schema_change"):
        node.node.sql("ALTER SUBSCRIPTION s SET (schema_change = guess)")
