"""The option schema_change: what becomes of a table that changes at the publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from end_to_end.after_copy import after_first_copy
from end_to_end.compare import publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
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


def _equal(node: LocalNode, database: Database, names: Iterable[str] = tuple(_CHANGES)) -> None:
    for name in names:
        schema, table = _AFTER.get(name, f"public.{name}").split(".")
        with database.connect() as connection:
            columns = _COLUMNS.get(name) or tuple(
                _columns(database)[f"{schema}.{table}".removeprefix("public.")]
            )
            wanted = publisher_rows(connection, f"{schema}.{table}", columns=columns)
        found = node.node.read((schema, table)).select(*columns).collect()
        assert sorted(map(tuple, found), key=repr) == sorted(wanted, key=repr), table


def _change(database: Database) -> None:
    """Each table, with changes before and after."""
    _write(database, 20)
    for name, change in _CHANGES.items():
        change = change.format(_now()) if name == "listed" else change
        database.execute(f"BEGIN; {change}; COMMIT")
        if name == "again":
            database.execute("ALTER PUBLICATION p ADD TABLE again")
    _write(database, 30)


def _subscribed(
    node: LocalNode,
    database: Database,
    options: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The changes come all in one batch, or all between the copy and the stream."""
    database.execute(_setup())
    if place == "copy":
        changed = after_first_copy(monkeypatch, lambda: _change(database))
        node.subscribe("s", database, "p", options)
        changed()
        return
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)
    node.node.stop()
    _change(database)
    node.node.start()


@pytest.mark.parametrize(
    ("on_error", "place"),
    [
        in_make_faults("stop", "batch"),
        in_make_faults("park", "batch"),
        in_make_faults("stop", "copy"),
    ],
)
def test_follow(
    local_node: Callable[..., LocalNode],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    on_error: str,
    place: str,
) -> None:
    node, options = local_node(), f"schema_change = follow, on_table_error = {on_error}"
    _subscribed(node, database, options, place, monkeypatch)
    node.caught_up("s", database, timeout=240)
    _equal(node, database)
    # And they follow.
    _write(database, 40)
    database.execute("UPDATE widened SET n = n + 1; UPDATE other_one SET v = 'last'")
    node.caught_up("s", database)
    _equal(node, database)
    shown = node.node.sql("SELECT schema_change, stopped FROM pg_stat_lake_subscription").rows
    assert [tuple(row) for row in shown] == [("follow", False)]


_GONE = 'column "{}" of relation "public.{}" is no longer published'
_RETYPED = 'column "n" of relation "public.{}" has changed its type'
_STOPS = {
    "dropped": _GONE.format("v", "dropped"),
    "renamed": _GONE.format("v", "renamed"),
    "widened": _RETYPED.format("widened"),
    "retyped": _RETYPED.format("retyped"),
    "identity": None,  # the primary key is the target's key still
    "key": None,  # its rows are known by the new one
    "swapped": 'relation "public.swapped" was changed at the publisher in a way that its changes'
    " do not tell",
    "one": 'logical replication target relation "public.other_one" does not exist',
    "moved": 'logical replication target relation "elsewhere.moved" does not exist',
    "again": 'relation "public.again" is not the one that was copied',
    "listed": _GONE.format("w", "listed"),
    "bag": _GONE.format("w", "bag"),
    "added": None,
    "still": None,
}
"""What becomes of each table with ``add``; with ``stop`` an added column stops, too."""


@part_of_make_faults
@pytest.mark.parametrize("place", ["batch", "copy"])
@pytest.mark.parametrize("option", ["add", "stop"])
def test_what_stops(
    local_node: Callable[..., LocalNode],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    place: str,
) -> None:
    """Each table by itself: the others go on."""
    node, options = local_node(), f"schema_change = {option}, on_table_error = park"
    _subscribed(node, database, options, place, monkeypatch)
    node.caught_up_but_parked("s", database)
    lacks = 'logical replication target relation "public.added" is missing replicated column: "c"'
    wanted = _STOPS | ({"added": lacks} if option == "stop" else {})
    found = {t.name.removeprefix("public."): t.error for t in node.status("s").tables}
    assert found == wanted
    names = [name for name, error in wanted.items() if error is None]
    _equal(node, database, names)
    # And as the hint says.
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.caught_up("s", database)
    _equal(node, database)


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
