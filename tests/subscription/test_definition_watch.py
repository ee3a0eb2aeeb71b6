"""What is known of a table's definition, read from a real server and written down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pytest

from fix_postgres import Database
from penstock.catalog.pg_subscription import KEEP
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherUpgrade
from penstock.lsn import INVALID, Lsn
from penstock.subscription import definition_watch
from penstock.subscription.definition_watch import (
    DefinitionWatch,
    Difference,
    Fill,
    FillKind,
    HeldColumns,
    Known,
    LeafQuestions,
    compare,
    first_known,
    questions,
)
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.table_definition import (
    CameWith,
    Definitions,
    SeenTransactions,
    read_definitions,
)
from subscription.no_definitions import a_subscription, no_definitions


@dataclass
class Target:
    """A table as the watch sees it."""

    rel: SubscriptionRel
    held: HeldColumns
    marker: Lsn | None = None


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with Publisher.connect(database.conninfo, "looks") as publisher:
        yield publisher.connection


def target_of(database: Database, table: str) -> Target:
    oid = int(database.value(f"SELECT '{table}'::regclass::oid::bigint"))
    state = SubscriptionRelState.READY
    rel = SubscriptionRel(1, "public", table, state, None, sync_id=table, relid=oid)
    return Target(rel, HeldColumns(frozenset(("id",))))


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (
            "ALTER TABLE t ALTER b TYPE int USING id",
            'ALTER TABLE has computed new values for column "b"',
        ),
        (
            "ALTER TABLE t DROP b; ALTER TABLE t ADD b int",
            'Column "b" is another one: the former was dropped or renamed',
        ),
    ],
)
def test_a_column_that_was_added_here_since_the_last_look(
    database: Database, connection: Connection, statements: str, reason: str
) -> None:
    """Its rows have what that look has found, and not what the publisher has made of them since."""
    database.execute("CREATE TABLE t (id int, v text); CREATE PUBLICATION p FOR TABLE t")
    oid = int(database.value("SELECT 't'::regclass::oid::bigint"))

    def read() -> Definitions:
        found = read_definitions(connection, ["p"], [oid])
        assert found is not None
        return found

    def look(known: Known, *names: str) -> Difference:
        return compare(
            known, read(), oid, HeldColumns(frozenset(names)), ["p"], questions(connection)
        )

    known = first_known(read(), oid, ["id", "v"])
    database.execute("ALTER TABLE t ADD b int")
    known = look(known, "id", "v").known
    assert [fill.kind for fill in known.fills.values()] == [FillKind.NULL]
    for statement in statements.split(";"):
        database.execute(statement)
    found = look(known, "id", "v", "b")
    assert found.reasons == (reason,)


def test_a_look_is_written_down_again_after_a_time(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older than its transaction is old after a restart, too."""
    database.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE plain (id int);"
        "CREATE PUBLICATION p FOR TABLE root, plain WITH (publish_via_partition_root)"
    )
    saved: list[tuple[str, Known]] = []
    watch = DefinitionWatch(
        a_subscription(),
        lambda rel, text: saved.append((rel.table, Known.parse(text))),
        lambda: connection,
    )
    targets = [target_of(database, "root"), target_of(database, "plain")]
    watch.begin(connection, targets, INVALID)
    first = dict(saved)
    assert set(first) == {"root", "plain"}
    database.execute("INSERT INTO root VALUES (1)")
    watch.look(targets, INVALID)
    assert len(saved) == 2
    monkeypatch.setattr(definition_watch, "SAVE_INTERVAL", 0.0)
    watch.look(targets, INVALID)
    ((name, known),) = saved[2:]
    assert name == "root"
    assert known.xid > first["root"].xid


def test_a_look_covers_the_transactions_that_it_could_see(
    database: Database, connection: Connection
) -> None:
    """A commit record is in the WAL before others see what the transaction has done."""
    database.execute("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t")
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    target = target_of(database, "t")
    with database.connect(autocommit=False) as other:
        other.execute("ALTER TABLE t ADD COLUMN late int")
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        watch.begin(connection, [target], INVALID)
        assert watch.covers(target, INVALID, [xid - 1])
        assert not watch.covers(target, INVALID, [xid - 1, xid])
        other.execute("COMMIT")
    assert not watch.covers(target, INVALID, [xid])
    watch.look([target], INVALID, [xid])
    assert watch.covers(target, INVALID, [xid])
    assert not watch.covers(target, Lsn(1 << 60), [xid])


class Looks:
    """Looks at one table of a database, by the publications p and q."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._oid = int(database.value(f"SELECT '{table}'::regclass::oid::bigint"))
        names = database.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0", [self._oid]
        )
        self._held = HeldColumns(frozenset(name for (name,) in names))
        self._known: Known | None = None
        self.look()

    def look(self, role: str = "") -> Difference:
        """What differs from the look before, as it is written down between two looks."""
        with Publisher.connect(self._database.conninfo, "looks") as publisher:
            connection = publisher.connection
            if role:
                connection.query(f"SET ROLE {role}")
            found = read_definitions(connection, ["p", "q"], [self._oid])
            assert found is not None
            known = self._known or first_known(found, self._oid, self._held.names)
            ask = questions(connection)
            held, which = self._held, ["p", "q"]
            difference = compare(Known.parse(known.text()), found, self._oid, held, which, ask)
        self._known = difference.known
        return difference

    def after(self, *statements: str) -> str:
        """What a look says after some statements."""
        for statement in statements:
            self._database.execute(statement)
        found = self.look()
        return ". ".join((*found.reasons, *found.notices))


TREE = """
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE branch PARTITION OF root FOR VALUES FROM (0) TO (20) PARTITION BY RANGE (id);
CREATE TABLE leaf PARTITION OF branch FOR VALUES FROM (0) TO (10);
INSERT INTO leaf VALUES (1, 'a');
"""
LEFT = "it is in none of the subscription's publications any more"
BACK = "For a time the table was in none of the publications"


@pytest.mark.parametrize("version", [14, 18])
def test_whose_name_changes_of_partitions_have(
    database_on: Callable[..., Database], version: int
) -> None:
    """Those that are sent under another name are none of the table's."""
    database = database_on(version)
    database.execute(f"{TREE} CREATE PUBLICATION p FOR TABLE root; CREATE PUBLICATION q")
    by_root = "ALTER PUBLICATION p SET (publish_via_partition_root = {})"
    leaf = Looks(database, "leaf")
    assert leaf.after(by_root.format("true")) == LEFT
    root, branch = Looks(database, "root"), Looks(database, "branch")
    assert leaf.after(by_root.format("false")) == BACK
    assert root.look().notices == (LEFT,)
    assert root.after("UPDATE root SET v = 'b'") == ""
    assert root.after(by_root.format("true")) == BACK
    assert root.after(by_root.format("false"), by_root.format("true")).endswith("for a time")
    assert branch.look().reasons == branch.look().notices == ()
    assert root.after("ALTER PUBLICATION p OWNER TO CURRENT_USER") == ""


@pytest.mark.parametrize("version", [14, 18])
def test_a_partition_that_was_out_of_a_published_tree(
    database_on: Callable[..., Database], version: int
) -> None:
    database = database_on(version)
    database.execute(f"{TREE} CREATE PUBLICATION p FOR TABLE root; CREATE PUBLICATION q")
    leaf = Looks(database, "leaf")
    bounds = {"leaf": "FROM (0) TO (10)", "branch": "FROM (0) TO (20)"}
    for child, parent in (("leaf", "branch"), ("branch", "root")):
        detach = f"ALTER TABLE {parent} DETACH PARTITION {child}"
        attach = f"ALTER TABLE {parent} ATTACH PARTITION {child} FOR VALUES {bounds[child]}"
        assert leaf.after(detach, "UPDATE leaf SET v = 'b'", attach) == (
            "The table was detached from its partitioned table and attached again"
        )
        assert leaf.after(detach) == LEFT
        assert leaf.after(attach) == BACK
    assert leaf.after("ALTER TABLE leaf ALTER v SET STATISTICS 10", "VACUUM FULL leaf") == ""


@pytest.mark.parametrize("version", [14, 18])
def test_a_partition_whose_detaching_has_not_ended(
    database_on: Callable[..., Database], version: int
) -> None:
    """Others do not see it in the table any more; it ends when they have ended."""
    database = database_on(version)
    options = "WITH (publish_via_partition_root)"
    database.execute(f"{TREE} CREATE PUBLICATION p FOR TABLE root {options}; CREATE PUBLICATION q")
    root = Looks(database, "root")
    with database.connect(autocommit=False) as reader:
        reader.execute("SELECT FROM root")
        with database.connect() as other, pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("SET lock_timeout = '200ms'")
            other.execute("ALTER TABLE branch DETACH PARTITION leaf CONCURRENTLY")
        assert root.after() == 'Partition "leaf" was dropped or detached'
    assert root.after("ALTER TABLE branch DETACH PARTITION leaf FINALIZE") == ""


@pytest.mark.parametrize("version", [14, 18])
def test_a_table_that_was_not_logged(database_on: Callable[..., Database], version: int) -> None:
    """Its changes are not in the WAL; a table that is published by its name cannot be one."""
    database = database_on(version)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');"
        "CREATE PUBLICATION p FOR ALL TABLES; CREATE PUBLICATION q"
    )
    t = Looks(database, "t")
    unlogged, logged = "ALTER TABLE t SET UNLOGGED", "ALTER TABLE t SET LOGGED"
    assert t.after(unlogged, "UPDATE t SET v = 'b'", logged) == (
        "ALTER TABLE has rewritten it, as SET UNLOGGED and SET LOGGED do"
    )
    assert t.after(unlogged) == LEFT
    assert t.after(logged) == BACK
    # what leaves rows as they are
    assert t.after("VACUUM FULL t", "CLUSTER t USING t_pkey", "TRUNCATE t", "REINDEX TABLE t") == ""


@pytest.mark.parametrize("version", [14, 18])
def test_a_table_of_fixed_width_that_is_written_anew(
    database_on: Callable[..., Database], version: int
) -> None:
    """Its rows tell who has done so: it has no TOAST table. VACUUM FULL writes the catalog's row of
    a column again that was added with a default."""
    database = database_on(version)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
        "ALTER TABLE t ADD c int NOT NULL DEFAULT 5; CREATE PUBLICATION p FOR TABLE t;"
        "CREATE PUBLICATION q"
    )
    t = Looks(database, "t")
    assert t.after("VACUUM FULL t") == ""
    assert t.after("ALTER TABLE t ALTER c SET STATISTICS 10", "CLUSTER t USING t_pkey") == ""
    computed = "ALTER TABLE t ALTER c TYPE int USING 7"
    assert t.after(computed) == 'ALTER TABLE has computed new values for column "c"'
    assert t.after("VACUUM FULL t") == ""


def test_a_table_that_was_in_another_schema(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA other;"
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public; CREATE PUBLICATION q"
    )
    t = Looks(database, "t")
    away, back = "ALTER TABLE t SET SCHEMA other", "ALTER TABLE other.t SET SCHEMA public"
    assert t.after(away, back).startswith("The table was in another schema")
    assert t.after(away) == LEFT
    assert t.after(back) == BACK
    assert t.after("ALTER TABLE t OWNER TO pg_monitor", "GRANT SELECT ON t TO PUBLIC") == ""


def test_another_publication_that_publishes_more(database: Database) -> None:
    """Rows that nobody had published before are not sent."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION q;"
        "CREATE PUBLICATION p FOR TABLE t WHERE (id < 5)"
    )
    t = Looks(database, "t")
    more = 'publication "q" publishes other changes of it'
    assert t.after("ALTER PUBLICATION q ADD TABLE t") == more
    # q has all of it from now on
    assert t.after("ALTER PUBLICATION p DROP TABLE t") == ""
    assert t.after("ALTER PUBLICATION p ADD TABLE t WHERE (id < 9)") == ""


def test_a_default_that_partitions_hold_no_more_by_itself(database: Database) -> None:
    """VACUUM FULL keeps the TOAST table, and writes the value into all rows."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE TABLE other PARTITION OF root FOR VALUES FROM (20) TO (30);"
        "INSERT INTO other VALUES (20, 'b')"
    )
    root = Looks(database, "root")
    added = "ALTER TABLE root ADD {0} int DEFAULT 5; ALTER TABLE root ALTER {0} DROP DEFAULT"
    said = 'Added column "{}" has values that were not sent'
    assert root.after(added.format("c"), "VACUUM FULL leaf", "VACUUM FULL other") == said.format(
        "c"
    )
    made = "CREATE TABLE new PARTITION OF branch FOR VALUES FROM (10) TO (20)"
    assert said.format("d") in root.after(
        *(made, "INSERT INTO root VALUES (11)", added.format("d")),
        *("VACUUM FULL new", "VACUUM FULL leaf", "VACUUM FULL other"),
    )


@pytest.mark.parametrize("version", [14, 18])
def test_a_default_that_all_partitions_hold(
    database_on: Callable[..., Database], version: int
) -> None:
    """Those that are made later have rows with values of their own."""
    database = database_on(version)
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    root = Looks(database, "root")
    made = "CREATE TABLE {} PARTITION OF root FOR VALUES FROM ({}) TO ({})"
    assert (
        root.after(
            *(made.format("earlier", 20, 30), "INSERT INTO root VALUES (21)"),
            *("ALTER TABLE root ADD w text DEFAULT 'it''s'", "ALTER TABLE root ADD n int"),
            *(made.format("later", 30, 40), "INSERT INTO root VALUES (31)"),
        )
        == ""
    )
    known = root.look().known
    assert known.fill("w") == Fill(FillKind.CONSTANT, "it's")
    assert known.fill("n").kind is FillKind.NULL
    # some rows have another value
    database.execute("CREATE TABLE own (id int PRIMARY KEY, v text, w text, n int)")
    database.execute("ALTER TABLE own ADD z int DEFAULT 4")
    assert root.after(
        "ALTER TABLE root ADD z int DEFAULT 5",
        "ALTER TABLE root ATTACH PARTITION own FOR VALUES FROM (40) TO (50)",
    ) == ('Added column "z" has values that were not sent')


def test_a_truncate_that_comes_before_it_can_be_seen(
    database: Database, connection: Connection
) -> None:
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    with database.connect(autocommit=False) as other:
        other.execute("TRUNCATE root")
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        watch.truncated(root, [(1, xid)], NO_ROWS)
        assert watch.look([root], INVALID) == []
        other.execute("COMMIT")
    assert watch.look([root], Lsn(1 << 60)) == []
    database.execute("TRUNCATE leaf")
    ((_, found),) = watch.look([root], Lsn(1 << 60))
    assert found.reasons == ('Partition "leaf" was emptied',)


NO_ROWS = (np.array([], np.int64), np.array([], np.int64))
EMPTIED = 'Partition "leaf" was emptied'


@pytest.mark.parametrize(
    ("first", "filled", "then", "found"),
    [
        # what nobody sends removes rows that were sent
        ("TRUNCATE root", "another", "TRUNCATE leaf", EMPTIED),
        ("TRUNCATE root; INSERT INTO root VALUES (2)", "itself", "TRUNCATE leaf", EMPTIED),
        (
            "TRUNCATE root",
            "another",
            "TRUNCATE leaf; GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC",
            EMPTIED,
        ),
        # what leaves them
        ("TRUNCATE root", "another", "GRANT SELECT ON leaf TO PUBLIC", None),
        ("SAVEPOINT a; TRUNCATE root; RELEASE a", "another", "SELECT", None),
        (
            "SAVEPOINT a; TRUNCATE root; INSERT INTO root VALUES (2); RELEASE a",
            "itself",
            "SELECT",
            None,
        ),
        ("TRUNCATE root", "nobody", "TRUNCATE leaf", None),
    ],
)
@pytest.mark.parametrize("away", [False, True])
def test_what_follows_a_truncate_that_was_sent(
    database: Database,
    connection: Connection,
    *,
    first: str,
    filled: str,
    then: str,
    found: str | None,
    away: bool,
) -> None:
    """``away``: the stream tells it after a look has seen everything."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)

    def run(statements: str) -> int:
        with database.connect() as other:
            other.execute(f"BEGIN; {statements}")
            ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
            other.execute("COMMIT")
        return int(xid)

    xids = [run(first)]
    rows = {"nobody": [], "itself": xids[:1], "another": []}[filled]
    if filled == "another":
        rows = [run("INSERT INTO root VALUES (3)")]
    for each in then.split(";"):
        run(each)
    if away:
        assert watch.look([root], INVALID) == []
    watch.truncated(root, [(1, xids[0])], NO_ROWS)
    places = np.arange(2, 2 + len(rows))
    watch.truncated(root, [], (places, np.array(rows, np.int64)))
    differences = [difference for _, difference in watch.look([root], Lsn(1 << 60))]
    assert [each.reasons for each in differences] == ([] if found is None else [(found,)])


def test_a_transaction_from_before_a_truncate_that_was_sent(
    database: Database, connection: Connection
) -> None:
    """Its number is lower, and its rows came after all."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    with database.connect(autocommit=False) as other:
        ((earlier,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        xid = truncate(database)
        other.execute("INSERT INTO root VALUES (3)")
        other.execute("COMMIT")
    database.execute("TRUNCATE leaf")
    watch.truncated(root, [(1, xid)], (np.array([2]), np.array([earlier])))
    ((_, found),) = watch.look([root], Lsn(1 << 60))
    assert found.reasons == (EMPTIED,)


def test_a_partition_that_was_not_logged_after_a_truncate_that_was_sent(
    database: Database, connection: Connection
) -> None:
    """TRUNCATE keeps its TOAST table."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    watch.truncated(root, [(1, truncate(database))], NO_ROWS)
    for statement in (
        "ALTER TABLE leaf SET UNLOGGED",
        "INSERT INTO root VALUES (3)",
        "ALTER TABLE leaf SET LOGGED",
    ):
        database.execute(statement)
    ((_, found),) = watch.look([root], Lsn(1 << 60))
    assert found.reasons == (
        'ALTER TABLE has rewritten partition "leaf", as SET UNLOGGED and SET LOGGED do',
    )


def truncate(database: Database) -> int:
    """Truncate the table, and return the number of the transaction."""
    with database.connect(autocommit=False) as other:
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        other.execute("TRUNCATE root")
        other.execute("COMMIT")
    return int(xid)


def truncate_and_fill(database: Database) -> int:
    """Do it in a subtransaction, and return the number of the whole transaction."""
    with database.connect(autocommit=False) as other:
        ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
        other.execute("SAVEPOINT a")
        other.execute("TRUNCATE root; INSERT INTO root VALUES (2)")
        other.execute("RELEASE a")
        other.execute("COMMIT")
    return int(xid)


def test_a_conflict_beside_a_truncate_that_was_sent(
    database: Database, connection: Connection
) -> None:
    """The batch with the TRUNCATE has it, before the stream has reached the look that saw it."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    xid = truncate_and_fill(database)
    watch.truncated(root, [(1, xid)], (np.array([2]), np.array([xid])))
    assert watch.look([root], INVALID) == []
    assert watch.unproven(root) is None
    database.execute("TRUNCATE leaf")
    assert watch.look([root], INVALID) == []
    error = watch.unproven(root)
    assert error is not None and EMPTIED in f"{error.detail}"


def test_a_truncate_that_was_sent_and_partitions_that_others_have_locked(
    database: Database, connection: Connection
) -> None:
    """The rows that tell it cannot be read: that is no answer yet."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    xid = truncate_and_fill(database)
    watch.truncated(root, [(1, xid)], (np.array([2]), np.array([xid])))
    with database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE root IN ACCESS EXCLUSIVE MODE")
        for reached in (INVALID, Lsn(1 << 60)):
            assert watch.look([root], reached) == []
            assert watch.unproven(root) is None
    assert watch.look([root], Lsn(1 << 60)) == []


@pytest.mark.parametrize("reached", [True, False])
def test_sessions_that_end_before_the_stream_has_reached_their_look(
    database: Database, connection: Connection, *, reached: bool
) -> None:
    """The rows that tell it are updated before there is a session that lives longer. ``reached``:
    the stream reaches the look of the first session before."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    root = target_of(database, "root")

    def session(applied: Lsn) -> DefinitionWatch:
        def save(rel: SubscriptionRel, text: str) -> None:
            root.rel = replace(root.rel, definition=text)

        watch = DefinitionWatch(a_subscription(), save, lambda: connection)
        assert watch.begin(connection, [root], applied) == []
        return watch

    def end() -> Lsn:
        return Lsn.parse(str(database.value("SELECT pg_current_wal_lsn()")))

    session(INVALID)
    xid = truncate_and_fill(database)
    watch = session(INVALID)  # sees the files, and ends
    seen = end()
    database.execute("SELECT pg_logical_emit_message(true, 'more', 'WAL')")
    watch.truncated(root, [(1, xid)], (np.array([2]), np.array([xid])))
    watch = session(seen if reached else INVALID)
    database.execute("UPDATE root SET v = 'b'")
    assert watch.look([root], Lsn(1 << 60)) == []


LIKE_ROOT = (
    "CREATE TABLE l (LIKE root INCLUDING ALL);"
    "ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)"
)
"""As pg_partman makes a partition."""
WITH_ROWS = 'Partition "l" was attached with rows'


class Watched:
    """A watch of root in a session, and what the stream tells it."""

    def __init__(self, database: Database, connection: Connection) -> None:
        database.execute(
            f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
        )
        self._database, self._connection = database, connection
        self._root = target_of(database, "root")
        self.session(INVALID)

    def session(self, applied: Lsn, upgrade: PublisherUpgrade | None = None) -> None:
        def save(rel: SubscriptionRel, text: str) -> None:
            self._root.rel = replace(self._root.rel, definition=text)

        subscription = replace(a_subscription(), upgraded=upgrade)
        self._watch = DefinitionWatch(subscription, save, lambda: self._connection)
        assert self._watch.begin(self._connection, [self._root], applied) == []

    def run(self, statements: str) -> int:
        """Run it as one transaction, and return its number."""
        with self._database.connect() as other:
            other.execute(f"BEGIN; {statements}")
            ((xid,),) = other.execute("SELECT txid_current() % 4294967296").fetchall()
            other.execute("COMMIT")
        return int(xid)

    def told(self, *xids: int, at: int = 10, leaf: str | None = "l") -> None:
        """Transactions in commit order; the first one names the leaf."""
        sent = {(at + n, xid) for n, xid in enumerate(xids)}
        oid = self._database.value(f"SELECT '{leaf}'::regclass::oid::bigint") if leaf else 0
        self._watch.told(self._root, {int(oid): at}, sent)

    def look(self, applied: Lsn = INVALID) -> tuple[str, ...]:
        found = self._watch.look([self._root], applied)
        return tuple(reason for _, difference in found for reason in difference.reasons)

    def end(self) -> tuple[str, ...]:
        """What a look says once the stream has brought everything."""
        return self.look(Lsn(1 << 60))

    def conflict(self) -> str:
        error = self._watch.unproven(self._root)
        return "" if error is None else f"{error.detail}"


@pytest.fixture
def watched(database: Database, connection: Connection) -> Watched:
    return Watched(database, connection)


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_came_by_the_root_of_a_partition_that_was_made_and_attached(
    watched: Watched, *, restarts: bool
) -> None:
    """Their commands have lower numbers than that of ATTACH, as if they were of its transaction."""
    watched.run(LIKE_ROOT)
    xids = [watched.run(f"INSERT INTO root VALUES ({i})") for i in range(30, 34)]
    assert watched.look() == ()
    watched.told(*xids[:2])
    if restarts:
        watched.session(INVALID)
    watched.told(*xids[2:3], at=20)
    watched.told(*xids[3:], at=30, leaf=None)
    assert watched.look() == ()
    watched.run("INSERT INTO root VALUES (35)")
    assert watched.end() == ()


@pytest.mark.parametrize("upgraded", [False, True])
def test_a_transaction_from_before_a_partition_was_made_and_attached(
    database: Database, connection: Connection, *, upgraded: bool
) -> None:
    """Nobody could write to it before: rows with a lower number came by the root, too.
    ``upgraded``: pg_upgrade has made it, in which they may be as old as they like."""
    watched = Watched(database, connection)
    with database.connect(autocommit=False) as other:
        other.execute("SELECT txid_current()")
        watched.run(LIKE_ROOT)
        other.execute("INSERT INTO root VALUES (30)")
        other.execute("COMMIT")
    if upgraded:
        watched.session(INVALID, PublisherUpgrade(INVALID, watched.run("SELECT")))
    assert watched.end() == ((WITH_ROWS,) if upgraded else ())


@pytest.mark.parametrize(
    "told",
    [
        # nothing of it; not the rows; before there was a row of the partition
        *((), ("another",), ("filled", "another")),
    ],
)
def test_rows_of_others_that_came_with_a_partition(
    database: Database, watched: Watched, told: tuple[str, ...]
) -> None:
    """Since the last look, in a transaction with rows of the root."""
    database.execute("CREATE TABLE l (id int PRIMARY KEY, v text)")
    xids = {"filled": watched.run("INSERT INTO l VALUES (30); INSERT INTO root VALUES (5)")}
    watched.run("ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)")
    xids["another"] = watched.run("INSERT INTO root VALUES (31)")
    assert watched.look() == ()
    if told:
        watched.told(*(xids[name] for name in told[:-1]), at=10, leaf=None)
        watched.told(xids[told[-1]], at=20)
    assert "was attached" in watched.conflict()
    assert watched.end() == (WITH_ROWS,)


def test_a_partition_whose_rows_may_not_be_read(database: Database) -> None:
    """The reason says what to grant."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    root = Looks(database, "root")
    database.execute("CREATE TABLE l (id int PRIMARY KEY, v text)")
    with database.connect() as other:
        other.execute("ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)")
    found = root.look("pg_monitor")
    assert found.reasons == ('Partition "l" was attached, and its rows cannot be read',)


def test_rows_of_before_the_last_look_that_came_with_a_partition(
    database: Database, watched: Watched
) -> None:
    database.execute("CREATE TABLE l (id int PRIMARY KEY, v text); INSERT INTO l VALUES (30)")
    assert watched.look() == ()
    watched.run("ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)")
    assert watched.look() == (WITH_ROWS,)


def test_rows_that_came_with_a_partition_and_are_updated(
    database: Database, watched: Watched
) -> None:
    """The stream tells who has updated them, and that they are missing here."""
    filled = "INSERT INTO l VALUES (30)"
    watched.run(LIKE_ROOT.replace(";", f";{filled};", 1))
    xid = watched.run("UPDATE root SET v = 'b' WHERE id = 30")
    assert watched.look() == ()
    watched.told(xid)
    assert WITH_ROWS in watched.conflict()
    assert watched.look() == ()
    assert WITH_ROWS in watched.conflict()


@pytest.mark.parametrize(
    "then", ["DROP TABLE l", "ALTER TABLE root DETACH PARTITION l", "detached and attached again"]
)
def test_a_partition_that_goes_before_the_stream_has_told_its_rows(
    watched: Watched, then: str
) -> None:
    watched.run(LIKE_ROOT)
    xid = watched.run("INSERT INTO root VALUES (30)")
    assert watched.look() == ()
    if then.startswith("detached"):
        watched.run("ALTER TABLE root DETACH PARTITION l; DELETE FROM l")
        watched.run("ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)")
    else:
        watched.run(then)
    watched.told(xid, leaf=None)
    assert len(watched.look()) == 1


def test_a_partition_that_was_attached_and_emptied(database: Database) -> None:
    """Its rows were sent meanwhile."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE TABLE l (id int PRIMARY KEY, v text); CREATE TABLE k (id int PRIMARY KEY, v text);"
        "INSERT INTO k VALUES (41, 'a'); TRUNCATE k"
    )
    root = Looks(database, "root")
    attach = "ALTER TABLE root ATTACH PARTITION {} FOR VALUES FROM ({}) TO ({})"
    assert root.after(attach.format("k", 40, 50), "INSERT INTO root VALUES (41)") == ""
    assert root.after(attach.format("l", 30, 40), "INSERT INTO root VALUES (31)", "TRUNCATE l") == (
        'Partition "l" was emptied'
    )


@pytest.mark.parametrize("version", [14, 18])
def test_a_partition_that_was_filled_and_lost_a_column(
    database_on: Callable[..., Database], version: int
) -> None:
    """In the transaction that has made and attached it: its rows came with it."""
    database = database_on(version)
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    root = Looks(database, "root")
    made = "CREATE TABLE l (id int NOT NULL, w int, v text); INSERT INTO l VALUES (31, 1, 'a')"
    attached = "ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)"
    assert root.after(f"BEGIN; {made}; ALTER TABLE l DROP w; {attached}; COMMIT") == (
        'Partition "l" was attached with rows'
    )


@pytest.mark.parametrize("version", [14, 18])
def test_a_partition_that_is_not_logged(database_on: Callable[..., Database], version: int) -> None:
    """Rows of the table that go there are not in the WAL."""
    database = database_on(version)
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE UNLOGGED TABLE l (id int PRIMARY KEY, v text)"
    )
    root = Looks(database, "root")
    said = 'changes of partition "{}" are not sent, as it is not logged'
    back = 'Partition "leaf" was not logged for a time'
    made = "CREATE UNLOGGED TABLE m PARTITION OF root FOR VALUES FROM (20) TO (30)"
    assert root.after(made, "INSERT INTO root VALUES (21)") == said.format("m")
    attached = "ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40)"
    assert root.after(attached) == said.format("l")
    assert root.after("ALTER TABLE leaf SET UNLOGGED") == said.format("leaf")
    assert root.after("UPDATE root SET v = 'b'", "TRUNCATE leaf") == ""
    assert root.after("ALTER TABLE leaf SET LOGGED") == back


def test_a_partition_whose_tree_was_in_another_schema(database: Database) -> None:
    """A schema publishes what is below its tables, wherever that lies."""
    database.execute(
        "CREATE SCHEMA a; CREATE SCHEMA b;"
        "CREATE TABLE a.root (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE b.leaf PARTITION OF a.root DEFAULT;"
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA a; CREATE PUBLICATION q"
    )
    leaf = Looks(database, "b.leaf")
    away, back = "ALTER TABLE a.root SET SCHEMA b", "ALTER TABLE b.root SET SCHEMA a"
    assert leaf.after(away, "INSERT INTO b.root VALUES (1)", back) == (
        "A partitioned table above it was in another schema, or had another name, for a time"
    )
    assert leaf.after("ALTER TABLE a.root OWNER TO pg_monitor") == ""
    assert leaf.after(away) == LEFT
    assert leaf.after(back) == BACK


def test_a_text_that_was_written_before_it_had_all_fields(
    database: Database, connection: Connection
) -> None:
    """Nothing differs for that reason."""
    database.execute(
        f"{TREE} ALTER TABLE root ADD w int DEFAULT 5;"
        "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    root = target_of(database, "root")
    texts: list[str] = []
    DefinitionWatch(
        a_subscription(), lambda rel, text: texts.append(text), lambda: connection
    ).begin(connection, [root], INVALID)
    stored = json.loads(texts[0])
    del stored["pending"], stored["doubts"]
    for leaf in stored["raw"]["leaves"]:
        leaf[4] = [name for name, _ in leaf[4]]
    stored["raw"]["links"] = [link[:5] for link in stored["raw"]["links"]]
    root.rel = replace(root.rel, definition=json.dumps(stored))
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    assert watch.begin(connection, [root], INVALID) == []


def test_a_look_at_many_partitions_takes_a_moment(database: Database) -> None:
    """Of 10,000, not 10,000 times 10,000."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    known = Looks(database, "root").look().known
    (leaf,), links = known.raw["leaves"], known.raw["links"]
    (link,) = (each for each in links if each[0] == leaf[0])
    oids = range(leaf[0], leaf[0] + 10_000)
    raw = {
        **known.raw,
        "leaves": [[oid, *leaf[1:2], oid, *leaf[3:]] for oid in oids],
        "links": [*links, *([oid, *link[1:]] for oid in oids)],
    }
    seen = SeenTransactions(known.xid)
    found = Definitions(known.lsn, known.lsn, known.xid, seen, {16384: raw}, known.publications)
    nobody = LeafQuestions(lambda *leaf: CameWith(), lambda leaf, xid: True)
    before = first_known(found, 16384, ["id"])
    began = time.process_time()
    difference = compare(before, found, 16384, HeldColumns(frozenset(("id",))), ["p"], nobody)
    assert difference.reasons == ()
    watch = no_definitions()
    target = target_of(database, "root")
    watch.accept(target, difference)
    assert not any(watch.sent(target, oid, "leaf") for oid in oids)
    assert time.process_time() - began < 3


def test_rows_that_are_kept_are_told_of_once(
    database: Database, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Each batch may have changes of a partition that is gone."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root)"
    )
    keeps = replace(a_subscription(), unsent_changes=KEEP)
    watch = DefinitionWatch(keeps, lambda rel, text: None, lambda: connection)
    root = target_of(database, "root")
    watch.begin(connection, [root], INVALID)
    gone = ((3, "one"), (3, "one"), (4, "another"), (3, "one"))
    assert not any(watch.sent(root, leaf, name) for leaf, name in gone)
    told = [record.getMessage() for record in caplog.records]
    assert ["one" in text for text in told] == [True, False]


def test_a_partition_that_others_have_locked(database: Database) -> None:
    """All tables wait for a look, so it does not wait: the next one asks again."""
    database.execute(
        f"{TREE} CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE TABLE l (id int PRIMARY KEY, v text); INSERT INTO l VALUES (30, 'a');"
        "CREATE TABLE b (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE bl PARTITION OF b DEFAULT; INSERT INTO b VALUES (40, 'a');"
        "CREATE TABLE e (id int PRIMARY KEY, v text)"
    )
    root = Looks(database, "root")
    database.execute(
        "ALTER TABLE root ATTACH PARTITION l FOR VALUES FROM (30) TO (40);"
        "ALTER TABLE root ATTACH PARTITION b FOR VALUES FROM (40) TO (50);"
        "ALTER TABLE root ATTACH PARTITION e FOR VALUES FROM (50) TO (60); TRUNCATE leaf"
    )
    with database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE l, bl, e, leaf IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            began = time.monotonic()
            found = root.look()
            assert (found.reasons, len(found.pending)) == ((), 4)
            assert time.monotonic() - began < 5
    assert root.after().split(". ") == [
        'Partition "leaf" was emptied',
        'Partition "l" was attached with rows',
        'Partition "bl" was attached with rows',
    ]
    assert root.after() == ""


def test_types_that_print_values_otherwise(database: Database) -> None:
    """The rows stay as they are."""
    database.execute(
        "CREATE DOMAIN nets AS cidr; CREATE DOMAIN hosts AS inet;"
        "CREATE DOMAIN functions AS regproc;"
        "CREATE TABLE t (id int PRIMARY KEY, c cidr, r regproc, v varchar(5), n inet, o oid,"
        " b nets, d cidr, f functions, k regtype, i int, j int);"
        "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q"
    )
    t = Looks(database, "t")
    said = 'ALTER TABLE has given column "{}" a type that prints values otherwise'
    assert t.after("ALTER TABLE t ALTER c TYPE inet") == said.format("c")
    assert t.after("ALTER TABLE t ALTER r TYPE regprocedure") == said.format("r")
    assert t.after("ALTER TABLE t ALTER v TYPE text, ALTER n SET STATISTICS 10") == ""
    others = {"b": "inet", "d": "hosts", "f": "regprocedure", "o": "regclass", "k": "oid"}
    for column, kind in {**others, "i": "regtype"}.items():
        assert t.after(f"ALTER TABLE t ALTER {column} TYPE {kind}") == said.format(column)
    same = "ALTER TABLE t ALTER c TYPE hosts, ALTER r TYPE regprocedure, ALTER j TYPE oid"
    assert t.after(same) == ""


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text);
CREATE TABLE t (id int PRIMARY KEY, m mood, p pair); INSERT INTO t VALUES (1, 'ok', '(1,x)');
CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q;
"""


@pytest.mark.parametrize("version", [14, 18])
def test_a_type_that_was_another_one_for_a_time(
    database_on: Callable[..., Database], version: int
) -> None:
    """Rows were sent by what it was, and have become what it is again."""
    database = database_on(version)
    database.execute(TYPES)
    t = Looks(database, "t")
    rename = "ALTER TYPE mood RENAME VALUE '{}' TO '{}'"
    for_a_time = 'Label "ok" of the enum type of column "m" had another name for a time'
    assert t.after(rename.format("ok", "fine"), rename.format("fine", "ok")) == for_a_time
    added, dropped = "ALTER TYPE pair ADD ATTRIBUTE z int", "ALTER TYPE pair DROP ATTRIBUTE z"
    assert "has other attributes" in t.after(added, dropped)
    # labels between others get new places, and keep their names
    between = [f"ALTER TYPE mood ADD VALUE 'v{n}' BEFORE 'ok'" for n in range(40)]
    assert t.after("ALTER TYPE pair RENAME ATTRIBUTE b TO c", "VACUUM FULL pg_enum", *between) == ""


def test_a_default_of_a_type_that_changes(database: Database) -> None:
    """It is what the catalog says by now."""
    database.execute(TYPES)
    t = Looks(database, "t")
    t.after("ALTER TABLE t ADD n mood DEFAULT 'ok', ADD k mood DEFAULT 'ok', ADD x mood")
    known = t.look().known
    assert [known.fill(name).value for name in "nkx"] == ["ok", "ok", None]
    rename = "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'"
    found = t.after(rename)
    assert found == ""
    known = t.look().known
    assert [known.fill(name).value for name in "nkx"] == ["fine", "fine", None]
    # so are changes that have the column, which no row here has yet
    assert {"m", "n", "k", "x"} == set(known.labels[0].renamed)
    t.after("VACUUM FULL t", "ALTER TYPE mood RENAME VALUE 'fine' TO 'good'")
    assert t.look().known.fill("n").kind is FillKind.UNKNOWN


def test_a_type_that_is_altered_before_a_look_has_seen_its_column(database: Database) -> None:
    database.execute(f"CREATE TYPE other AS (a int); CREATE TYPE kind AS ENUM ('a'); {TYPES}")
    t = Looks(database, "t")
    said = 'The type of added column "{}" was altered since'
    pairs = ("ALTER TYPE other ADD ATTRIBUTE c int", "ALTER TABLE t ADD COLUMN o other")
    assert t.after(*pairs) == ""
    once = "BEGIN; ALTER TABLE t ADD k kind; ALTER TYPE kind ADD VALUE 'b'; COMMIT"
    assert t.after(once, "ALTER TYPE kind ADD VALUE 'c'") == ""
    database.execute("CREATE TYPE new AS (a int); CREATE TYPE mode AS ENUM ('x')")
    altered = ("ALTER TABLE t ADD COLUMN n new", "ALTER TYPE new ADD ATTRIBUTE c int")
    assert t.after(*altered) == said.format("n")
    renamed = ("ALTER TABLE t ADD COLUMN l mode[]", "ALTER TYPE mode RENAME VALUE 'x' TO 'y'")
    assert t.after(*renamed) == said.format("l")


def test_labels_are_kept_in_mind_while_a_transaction_is_open(
    database: Database, connection: Connection
) -> None:
    """It sends the former label, however quiet the server was before."""
    database.execute(TYPES)
    watch = DefinitionWatch(a_subscription(), lambda rel, text: None, lambda: connection)
    t = target_of(database, "t")
    t.held = HeldColumns(frozenset(("id", "m")))
    watch.begin(connection, [t], INVALID)
    with database.connect(autocommit=False) as open_one:
        open_one.execute("INSERT INTO t VALUES (2, 'ok')")
        database.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
        ((_, difference),) = watch.look([t], INVALID)
        t.marker = Lsn(difference.known.lsn + 1)  # all of it is applied
        watch.accept(t, difference)
        assert watch.look([t], INVALID) == []
        assert [labels.renamed for labels in watch.labels(t)] == [{"m": {"ok": "fine"}}]
        open_one.commit()
    assert watch.look([t], INVALID) == []
    assert len(watch.labels(t)) == 1  # what was open at the look before is still to come
    t.marker = Lsn(t.marker + 10_000_000)
    assert watch.look([t], INVALID) == []
    assert watch.labels(t) == ()


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ("RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'x' TO 'ok'", ["ok"]),
        (
            "RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'sad' TO 'ok'; RENAME VALUE 'x' TO 'sad';"
            "RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'sad' TO 'ok'; RENAME VALUE 'x' TO 'sad'",
            ["ok"],
        ),
        ("; ".join(f"ADD VALUE 'a{n}' BEFORE 'ok'" for n in range(30)), []),
    ],
)
def test_labels_that_have_their_names_again(
    database: Database, change: str, reasons: list[str]
) -> None:
    """Changes between two looks may have come with another name. A label that only moves because
    others are added has one name all the time."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE held (id int, m mood);"
        "CREATE PUBLICATION p FOR TABLE held"
    )
    held = Looks(database, "held")
    written = "SELECT xmin FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'ok'"
    before = database.value(written)
    for each in change.split(";"):
        database.execute(f"ALTER TYPE mood {each}")
    assert database.value(written) != before
    found = held.look()
    assert (found.reasons, dict(found.labels), found.notices) == (
        tuple(
            f'Label "{name}" of the enum type of column "m" had another name for a time'
            for name in reasons
        ),
        {},
        (),
    )
