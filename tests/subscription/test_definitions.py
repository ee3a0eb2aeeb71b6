"""What is known of a table's definition, read from a real server and written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fix_postgres import Database
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.lsn import INVALID, Lsn
from penstock.subscription import definitions
from penstock.subscription.definitions import DefinitionWatch, HeldColumns, Known
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.publisher import Publisher
from subscription.no_definitions import a_subscription


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


def test_a_look_is_written_down_again_after_a_time(
    database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older than its transaction is old after a restart, too."""
    database.execute(
        "CREATE TABLE root (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9);"
        "CREATE TABLE plain (id int); CREATE PUBLICATION p FOR TABLE root, plain"
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
    monkeypatch.setattr(definitions, "SAVE_INTERVAL", 0.0)
    watch.look(targets, INVALID)
    ((name, known),) = saved[2:]
    assert name == "root"
    assert known.xid > first["root"].xid


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ("RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'x' TO 'ok'", ["ok"]),
        (
            "RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'sad' TO 'ok'; RENAME VALUE 'x' TO 'sad';"
            "RENAME VALUE 'ok' TO 'x'; RENAME VALUE 'sad' TO 'ok'; RENAME VALUE 'x' TO 'sad'",
            ["sad"],
        ),
        ("; ".join(f"ADD VALUE 'a{n}' BEFORE 'ok'" for n in range(30)), []),
    ],
)
def test_labels_that_have_their_names_again(
    database: Database, connection: Connection, change: str, reasons: list[str]
) -> None:
    """Changes between two looks may have come with another name. A label that only moves because
    others are added has one name all the time."""
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE held (id int, m mood);"
        "CREATE PUBLICATION p FOR TABLE held"
    )
    watch = DefinitionWatch(a_subscription(), lambda *_: None, lambda: connection)
    target = target_of(database, "held")
    target.held = HeldColumns(frozenset(("id", "m")))
    watch.begin(connection, [target], INVALID)
    written = "SELECT xmin FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'ok'"
    before = database.value(written)
    for each in change.split(";"):
        database.execute(f"ALTER TYPE mood {each}")
    assert database.value(written) != before
    found = [difference for _, difference in watch.look([target], INVALID)]
    assert [(each.reasons, dict(each.labels)) for each in found] == [
        ((f'Label "{name}" of the enum type of column "m" had another name for a time',), {})
        for name in reasons
    ]
