"""CREATE, REFRESH and DROP SUBSCRIPTION against a real publisher: slots there, rows here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.catalog import (
    Catalog,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
)
from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.commands import CommandResult, execute
from penstock.commands.scope import CommandScope
from penstock.embedded import EmbeddedPostgres
from penstock.errors import (
    AuthenticationFailure,
    ConnectionFailure,
    DuplicateObject,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    StateMismatch,
    StorageError,
    UndefinedObject,
)
from penstock.lakehouse.cuts import CutOwner, Cuts, CutTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.sql import parse, parse_script
from penstock.walreceiver.libpq_errors import connect_failure
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.stream import ReplicationStream

NOWHERE = "host=127.0.0.1 port=1 dbname=x"


@pytest.fixture
def shop(database: Database) -> Database:
    """A publication ``shop`` with two tables and a partitioned one."""
    _make_shop(database)
    return database


def _make_shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY);"
        'CREATE SCHEMA "S"; CREATE TABLE "S".b (id int PRIMARY KEY);'
        "CREATE TABLE c (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (0) TO (9);"
        'CREATE PUBLICATION shop FOR TABLE a, "S".b, c WITH (publish_via_partition_root = true)'
    )


def run(catalog: Catalog, text: str) -> CommandResult:
    return execute(parse(text), catalog, Publisher.connect)


def create(catalog: Catalog, database: Database, more: str = "", name: str = "s") -> CommandResult:
    # Slot names are one space for the whole server that the tests share.
    return run(catalog, f"CREATE SUBSCRIPTION {name} CONNECTION '{database.conninfo}' {more}")


def slots(database: Database) -> set[str]:
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return {row[0] for row in database.rows(query)}


def tables(catalog: Catalog) -> dict[str, str]:
    return {rel.qualified_name: rel.state.value for rel in catalog.relations()}


def messages(result: CommandResult) -> list[tuple[str, str]]:
    return [(notice.severity, notice.message) for notice in result.notices]


@pytest.mark.parametrize("version", [14, 15, 16, 17, 18])
def test_a_life(version: int, catalog: Catalog, database_on: Callable[..., Database]) -> None:
    database = database_on(version)
    _make_shop(database)
    result = create(catalog, database, "PUBLICATION shop", name="life")
    assert result.tag == "CREATE SUBSCRIPTION"
    assert messages(result) == [("NOTICE", 'created replication slot "life" on publisher')]
    assert slots(database) == {"life"}
    assert tables(catalog) == {"S.b": "i", "public.a": "i", "public.c": "i"}
    (subscription,) = catalog.subscriptions()
    assert subscription.should_run
    assert subscription.slot_name == "life"
    assert subscription.conninfo == database.conninfo
    with Publisher.connect(database.conninfo) as publisher:
        system, (oid, _) = publisher.identify_system(), publisher.database()
    assert subscription.publisher == PublisherIdentity(system.system_id, system.timeline, oid)

    result = run(catalog, "DROP SUBSCRIPTION life")
    assert result.tag == "DROP SUBSCRIPTION"
    assert messages(result) == [("NOTICE", 'dropped replication slot "life" on publisher')]
    assert slots(database) == set()
    assert (catalog.subscriptions(), catalog.relations()) == ((), ())


def test_options_go_into_the_catalog(catalog: Catalog, shop: Database) -> None:
    result = create(
        catalog,
        shop,
        "PUBLICATION shop WITH (copy_data = false, slot_name = other, enabled = off, binary,"
        " synchronous_commit = remote_apply, streaming = off)",
    )
    assert [severity for severity, _ in messages(result)] == ["NOTICE", "NOTICE"]
    assert "synchronous_commit has no effect" in result.notices[0].message
    (subscription,) = catalog.subscriptions()
    assert (subscription.slot_name, subscription.enabled) == ("other", False)
    assert (subscription.binary, subscription.synchronous_commit) == (True, "remote_apply")
    assert set(tables(catalog).values()) == {"r"}
    assert {rel.lsn for rel in catalog.relations()} == {None}
    assert slots(shop) == {"other"}


def test_missing_publications_are_a_warning_as_for_postgresql(
    catalog: Catalog, shop: Database, database_on: Callable[..., Database]
) -> None:
    tail = 'PUBLICATION shop, nope, "No\'pe" WITH (create_slot = false, enabled = false)'
    ours = messages(create(catalog, shop, tail))
    theirs: list[tuple[str, str]] = []
    subscriber = database_on(16)
    _make_shop(subscriber)
    connection = subscriber.connect()
    connection.add_notice_handler(
        lambda d: theirs.append((str(d.severity), str(d.message_primary)))
    )
    connection.execute(f"CREATE SUBSCRIPTION s CONNECTION '{shop.conninfo}' {tail}")
    connection.execute("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
    connection.execute("DROP SUBSCRIPTION s")
    assert ours == theirs
    assert ours[0][0] == "WARNING"
    assert len(catalog.subscriptions()) == 1


def test_a_publication_without_tables(catalog: Catalog, shop: Database) -> None:
    shop.execute("CREATE PUBLICATION empty")
    create(catalog, shop, "PUBLICATION empty", name="without_tables")
    assert tables(catalog) == {}
    assert slots(shop) == {"without_tables"}


def test_a_slot_that_exists_is_an_error_and_stays(catalog: Catalog, shop: Database) -> None:
    shop.execute("SELECT pg_create_logical_replication_slot('taken', 'pgoutput')")
    with pytest.raises(DuplicateObject, match='"taken" already exists') as raised:
        create(catalog, shop, "PUBLICATION shop", name="taken")
    assert raised.value.message.startswith('could not create replication slot "taken": ')
    assert slots(shop) == {"taken"}
    assert catalog.subscriptions() == ()


def test_wal_level_is_named_with_the_remedy(catalog: Catalog) -> None:
    with (
        EmbeddedPostgres(18, settings={"wal_level": "replica"}) as server,
        pytest.raises(NotInPrerequisiteState, match="wal_level") as raised,
    ):
        run(catalog, f"CREATE SUBSCRIPTION s CONNECTION '{server.conninfo()}' PUBLICATION p")
    assert "ALTER SYSTEM SET wal_level" in (raised.value.hint or "")
    assert catalog.subscriptions() == ()


def test_a_catalog_that_cannot_be_written_leaves_no_slot(
    catalog: Catalog, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = catalog.write

    def full() -> Any:
        monkeypatch.setattr(catalog, "write", write)
        raise StorageError("disk full", sqlstate="53100")

    monkeypatch.setattr(catalog, "write", full)
    with pytest.raises(StorageError):
        create(catalog, shop, "PUBLICATION shop", name="rolled_back")
    assert slots(shop) == set()
    assert catalog.subscriptions() == ()


def test_errors_of_the_connection_name_the_subscription_and_no_password(catalog: Catalog) -> None:
    conninfo = f"{NOWHERE} user=u password=tops3cret"
    with pytest.raises(ConnectionFailure) as raised:
        run(catalog, f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p")
    assert raised.value.message.startswith('subscription "s" could not connect to the publisher: ')
    assert raised.value.hint
    assert "tops3cret" not in raised.value.report()
    assert catalog.subscriptions() == ()


def test_cuts_of_a_dropped_subscription_go_with_the_next_one_of_its_name(
    catalog: Catalog, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with one that could not be created."""
    cuts = (warehouse := Warehouse(str(tmp_path / "warehouse"), False)).cuts
    dropped, scope = CutOwner("readable", "penstock-dropped"), CommandScope(warehouse=warehouse)
    cuts.append(dropped, Lsn(1), None, {("public", "a"): CutTable("uri", 1)})

    def create_on(conninfo: str) -> None:
        tail = "PUBLICATION shop WITH (slot_name = readable)"
        statement = parse(f"CREATE SUBSCRIPTION readable CONNECTION '{conninfo}' {tail}")
        execute(statement, catalog, Publisher.connect, scope)

    with pytest.raises(ConnectionFailure):
        create_on(NOWHERE)
    assert cuts.last(dropped) is not None
    with monkeypatch.context() as failing:
        failing.setattr(Cuts, "forget_others", _no_space)
        with pytest.raises(StorageError):
            create_on(shop.conninfo)
    assert (slots(shop), catalog.subscriptions()) == (set(), ())
    assert cuts.last(dropped) is not None
    create_on(shop.conninfo)
    assert cuts.last(dropped) is None


def _no_space(*_: object) -> None:
    raise StorageError("disk full", sqlstate="53100")


def test_refresh_adds_and_removes_tables(catalog: Catalog, shop: Database) -> None:
    create(catalog, shop, "PUBLICATION shop", name="refreshed")
    before = {rel.qualified_name: rel for rel in catalog.relations()}
    catalog.set_state(before["public.a"], SubscriptionRelState.DATASYNC, None)
    shop.execute(
        "CREATE TABLE d (id int PRIMARY KEY); CREATE TABLE e (id int PRIMARY KEY);"
        'ALTER PUBLICATION shop DROP TABLE "S".b; ALTER PUBLICATION shop ADD TABLE d'
    )
    generation = catalog.generation()
    assert run(catalog, "ALTER SUBSCRIPTION refreshed REFRESH PUBLICATION").notices == ()
    assert tables(catalog) == {"public.a": "d", "public.c": "i", "public.d": "i"}
    assert catalog.generation() > generation
    shop.execute('ALTER PUBLICATION shop ADD TABLE e, "S".b')
    run(catalog, "ALTER SUBSCRIPTION refreshed REFRESH PUBLICATION WITH (copy_data = false)")
    assert tables(catalog)["public.e"] == tables(catalog)["S.b"] == "r"
    after = {rel.qualified_name: rel for rel in catalog.relations()}
    assert after["S.b"].sync_id != before["S.b"].sync_id
    assert after["public.a"].sync_id == before["public.a"].sync_id


@pytest.mark.parametrize(
    "meanwhile",
    [
        "DROP SUBSCRIPTION s; CREATE SUBSCRIPTION s CONNECTION '{other}' PUBLICATION shop WITH "
        "(connect = false)",
        "ALTER SUBSCRIPTION s CONNECTION '{other}'",
        "ALTER SUBSCRIPTION s DISABLE",
        "DROP SUBSCRIPTION s",
    ],
)
def test_refresh_of_a_subscription_that_is_changed_meanwhile(
    catalog: Catalog, shop: Database, meanwhile: str
) -> None:
    """Nothing that one publisher says goes to a subscription that follows another one."""
    tail = "PUBLICATION shop WITH (create_slot = false, slot_name = NONE, enabled = false)"
    create(catalog, shop, tail)
    _enable_without_slot(catalog)
    shop.execute("CREATE TABLE new (id int PRIMARY KEY); ALTER PUBLICATION shop ADD TABLE new")
    before: list[tuple[tuple[Subscription, ...], tuple[SubscriptionRel, ...]]] = []

    def connect(conninfo: str, application_name: str) -> Publisher:
        for statement in parse_script(meanwhile.format(other=NOWHERE)):
            execute(statement, catalog, Publisher.connect)
        before.append((catalog.subscriptions(), catalog.relations()))
        return Publisher.connect(conninfo, application_name)

    with pytest.raises(ObjectInUse, match='"s" was changed') as raised:
        execute(parse("ALTER SUBSCRIPTION s REFRESH PUBLICATION"), catalog, connect)
    assert raised.value.hint == "Run the statement again."
    assert before == [(catalog.subscriptions(), catalog.relations())]


def test_refresh_compares_what_a_worker_has_recorded_meanwhile(
    catalog: Catalog, shop: Database
) -> None:
    tail = "PUBLICATION shop WITH (create_slot = false, slot_name = NONE, enabled = false)"
    create(catalog, shop, tail)
    _enable_without_slot(catalog)
    (subscription,) = catalog.subscriptions()
    assert subscription.publisher is not None

    def connect(conninfo: str, application_name: str) -> Publisher:
        catalog.record_publisher(subscription.oid, PublisherIdentity("1", 1, 5))
        return Publisher.connect(conninfo, application_name)

    with pytest.raises(StateMismatch, match="another publisher"):
        execute(parse("ALTER SUBSCRIPTION s REFRESH PUBLICATION"), catalog, connect)


def test_the_hint_of_refresh_names_the_subscription(catalog: Catalog) -> None:
    run(catalog, f"CREATE SUBSCRIPTION s CONNECTION '{NOWHERE}' PUBLICATION p WITH (connect=off)")
    _enable_without_slot(catalog)

    def connect(conninfo: str, application_name: str) -> Publisher:
        raise connect_failure('FATAL:  database "nowhere" does not exist')

    with pytest.raises(AuthenticationFailure) as refused:
        execute(parse("ALTER SUBSCRIPTION s REFRESH PUBLICATION"), catalog, connect)
    assert str(refused.value.hint).endswith("Run ALTER SUBSCRIPTION s CONNECTION '...'.")


def _enable_without_slot(catalog: Catalog) -> None:
    """REFRESH wants it enabled; DROP wants no way to the publisher then."""
    with catalog.write() as t:
        t.subscriptions.save(replace(t.subscriptions.get("s"), enabled=True))


def test_drop_waits_until_the_slot_is_free(catalog: Catalog, shop: Database) -> None:
    create(catalog, shop, "PUBLICATION shop", name="busy")
    (subscription,) = catalog.subscriptions()
    observer = shop.connect()
    with Publisher.connect(shop.conninfo, "walsender") as walsender:
        _stream(walsender, "busy")
        done: list[CommandResult | PenstockError] = []
        dropping = threading.Thread(target=lambda: done.append(_outcome(catalog, "busy")))
        dropping.start()
        # What a running node sees: the generation has moved, and its worker is not wanted.
        _wait(
            observer,
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'busy'"
            " AND wait_event = 'ReplicationSlotDrop'",
        )
        (marked,) = catalog.subscriptions()
        assert not marked.should_run
        assert marked == subscription
        with pytest.raises(ObjectInUse, match="is being dropped"):
            run(catalog, "ALTER SUBSCRIPTION busy ENABLE")
        assert not done
        walsender.close()
        dropping.join(30)
    assert isinstance(done[0], CommandResult)
    assert slots(shop) == set()
    assert catalog.subscriptions() == ()


def _outcome(catalog: Catalog, name: str) -> CommandResult | PenstockError:
    try:
        return run(catalog, f"DROP SUBSCRIPTION {name}")
    except PenstockError as error:
        return error


def _wait(observer: psycopg.Connection[Any], query: str) -> None:
    """Wait for a state of the server, on the server."""
    observer.execute(
        "DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_stat_clear_snapshot();"
        f" IF ({query}) THEN RETURN; END IF; PERFORM pg_sleep(0.01);"
        " END LOOP; RAISE EXCEPTION 'no such state'; END $$"
    )


def _stream(publisher: Publisher, slot: str) -> None:
    options = "proto_version '1', publication_names '\"shop\"'"
    ReplicationStream(publisher.connection).start(slot, Lsn(0), options)


def test_drop_without_a_way_to_the_publisher(catalog: Catalog, shop: Database) -> None:
    create(catalog, shop, "PUBLICATION shop", name="lost")
    (before,) = catalog.subscriptions()
    run(catalog, f"ALTER SUBSCRIPTION lost CONNECTION '{NOWHERE}'")
    with pytest.raises(ConnectionFailure, match="when attempting to drop") as raised:
        run(catalog, "DROP SUBSCRIPTION lost")
    assert '"lost": connection to server' in raised.value.message
    (after,) = catalog.subscriptions()
    assert after.should_run, "as before"
    # PostgreSQL's hint, followed word by word.
    assert "DISABLE" in (raised.value.hint or "")
    run(catalog, "ALTER SUBSCRIPTION lost DISABLE")
    run(catalog, "ALTER SUBSCRIPTION lost SET (slot_name = NONE)")
    assert run(catalog, "DROP SUBSCRIPTION lost").notices == ()
    assert catalog.subscriptions() == ()
    assert slots(shop) == {before.slot_name}


def test_drop_of_a_slot_that_is_gone_is_an_error_once(catalog: Catalog, shop: Database) -> None:
    create(catalog, shop, "PUBLICATION shop", name="gone")
    shop.execute("SELECT pg_drop_replication_slot('gone')")
    with pytest.raises(UndefinedObject, match='could not drop replication slot "gone"') as raised:
        run(catalog, "DROP SUBSCRIPTION gone")
    assert "slot_name = NONE" in (raised.value.hint or "")
    # A DROP that died between the publisher and the catalog is finished by the next one.
    with catalog.write() as t:
        t.subscriptions.save(replace(t.subscriptions.get("gone"), dropping=True))
    run(catalog, "DROP SUBSCRIPTION gone")
    assert catalog.subscriptions() == ()


def test_enable_and_disable_forget_the_error(catalog: Catalog) -> None:
    run(catalog, f"CREATE SUBSCRIPTION s CONNECTION '{NOWHERE}' PUBLICATION p WITH (connect=off)")
    (subscription,) = catalog.subscriptions()
    for verb, runs in (("ENABLE", True), ("DISABLE", False), ("ENABLE", True)):
        catalog.record_error(subscription, ConnectionFailure("no"), stopped=True)
        generation = catalog.generation()
        run(catalog, f"ALTER SUBSCRIPTION s {verb}")
        (now,) = catalog.subscriptions()
        assert (now.error, now.should_run) == (None, runs)
        assert catalog.generation() > generation


def test_tables_without_replica_identity_are_warned_of(catalog: Catalog, shop: Database) -> None:
    shop.execute("CREATE TABLE log (v text); CREATE PUBLICATION logs FOR TABLE log, a")
    create = f"CREATE SUBSCRIPTION s CONNECTION '{shop.conninfo}' PUBLICATION logs"
    (told, _) = run(catalog, create).notices
    assert told.report().splitlines()[0] == 'WARNING:  table "public.log" has no replica identity'
    assert "REPLICA IDENTITY FULL" in str(told.hint)
    refresh = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
    assert run(catalog, refresh).notices == ()
    shop.execute("CREATE TABLE more (v text); ALTER PUBLICATION logs ADD TABLE more")
    assert "public.more" in run(catalog, refresh).notices[0].message
    run(catalog, "DROP SUBSCRIPTION s")


def test_notices_of_the_parser_come_first(catalog: Catalog) -> None:
    result = run(catalog, f"DROP SUBSCRIPTION IF EXISTS {'x' * 70}")
    assert [notice.sqlstate for notice in result.notices] == ["42622", "00000"]
    assert result.notices[1].report() == (
        f'NOTICE:  subscription "{"x" * 63}" does not exist, skipping'
    )
