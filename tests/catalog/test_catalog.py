"""The catalog on SQLite and on PostgreSQL: rows, transitions, transactions, versions."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fix_catalog import upgraded
from fix_postgres import Database
from penstock.catalog import (
    BlockMessage,
    Catalog,
    MessageHead,
    PreparedBlock,
    PreparedState,
    Slot,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
    store,
)
from penstock.catalog.metadata import METADATA
from penstock.catalog.pg_subscription_rel import may_follow
from penstock.errors import (
    ConfigurationError,
    ConnectionFailure,
    DuplicateObject,
    NotInPrerequisiteState,
    StorageError,
    UndefinedObject,
)
from penstock.lsn import Lsn
from penstock.relation import ReplicaIdentity
from penstock.walsender.two_phase import put_without_commits, waiting_for_commits

INIT, D, F, S, R, P = SubscriptionRelState
CONNINFO = "host=h user=u password=tops3cret"


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'state.db'}"


def subscribe(catalog: Catalog, name: str = "s") -> Subscription:
    with catalog.write() as t:
        return t.subscriptions.create(
            name, conninfo=CONNINFO, publications=["p", "Q,'\"é"], slot_name=name
        )


def add(catalog: Catalog, subid: int, *tables: str) -> tuple[SubscriptionRel, ...]:
    with catalog.write() as t:
        return t.relations.add(subid, [("public", table) for table in tables], INIT)


def test_subscriptions_come_back_as_they_were_written(catalog: Catalog) -> None:
    first, second = subscribe(catalog, "b"), subscribe(catalog, "a")
    assert catalog.subscriptions() == (first, second)
    assert (first.oid, second.oid) == (16384, 16385)
    assert first.publications == ("p", "Q,'\"é")
    assert first.app_id != second.app_id
    assert first.should_run


def test_oids_and_app_ids_are_never_used_again(catalog: Catalog) -> None:
    first = subscribe(catalog)
    with catalog.write() as t:
        t.subscriptions.delete(first.oid)
    again = subscribe(catalog)
    assert again.oid > first.oid
    assert again.app_id != first.app_id


def test_names_are_unique(catalog: Catalog) -> None:
    subscribe(catalog)
    with pytest.raises(DuplicateObject, match='subscription "s" already exists') as raised:
        subscribe(catalog)
    assert raised.value.sqlstate == "42710"
    with catalog.read() as t, pytest.raises(UndefinedObject, match='"x" does not exist'):
        t.subscriptions.get("x")


def test_no_repr_shows_the_connection_string(catalog: Catalog) -> None:
    assert "tops3cret" not in repr(subscribe(catalog))


def test_only_the_owner_reads_the_files(catalog: Catalog, tmp_path: Path) -> None:
    subscribe(catalog)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("state")]
    assert len(files) > 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_an_error_is_kept_until_it_is_cleared(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    error = ConnectionFailure("no route", detail="d", hint="h", sqlstate="08001")
    catalog.record_error(subscription, error, stopped=True)
    (stopped,) = catalog.subscriptions()
    assert stopped == subscription, "the same for a worker"
    assert not stopped.should_run
    assert stopped.error is not None
    assert (stopped.error.message, stopped.error.detail) == ("no route", "d")
    assert (stopped.error.hint, stopped.error.sqlstate) == ("h", "08001")
    with catalog.write() as t:
        t.subscriptions.save(stopped.healed())
    (cleared,) = catalog.subscriptions()
    assert cleared.should_run
    assert cleared.error is None
    catalog.record_error(replace(subscription, oid=1), ValueError("of nobody"), stopped=True)
    assert catalog.subscriptions() == (cleared,)


def test_a_worker_does_not_stop_the_subscription_that_was_altered_meanwhile(
    catalog: Catalog,
) -> None:
    """It was connected to the server that ALTER SUBSCRIPTION ... CONNECTION has left."""
    former = subscribe(catalog)
    with catalog.write() as t:
        t.subscriptions.save(replace(former, conninfo="host=another"))
    catalog.record_error(former, ValueError("x"), stopped=True)
    (now,) = catalog.subscriptions()
    assert now.should_run
    assert now.error is None


def test_tables_go_through_their_states(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    (rel,) = add(catalog, subscription.oid, "t")
    for state, lsn in ((D, None), (INIT, None), (D, None), (D, None), (F, Lsn(5)), (S, Lsn(7))):
        now = catalog.set_state(rel, state, lsn)
        assert (now.state, now.lsn) == (state, lsn)
        assert catalog.relations(subscription.oid) == (now,)
    assert catalog.set_state(rel, R, Lsn.parse("FF/FFFFFFFF")).lsn == Lsn.parse("FF/FFFFFFFF")
    with pytest.raises(NotInPrerequisiteState, match='from state "r" to "i"'):
        catalog.set_state(rel, INIT, None)


def test_the_transitions_that_there_are() -> None:
    allowed = {(a, b) for a in SubscriptionRelState for b in SubscriptionRelState if a is not b}
    allowed = {(a, b) for a, b in allowed if may_follow(a, b)}
    parked = {(F, P), (S, P), (R, P)}
    assert allowed == {(INIT, D), (D, F), (F, S), (S, R), (D, INIT), (F, INIT), *parked}


def test_a_table_that_was_added_again_is_another_one(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    (old,) = add(catalog, subscription.oid, "t")
    with catalog.write() as t:
        t.relations.remove(old)
    (new,) = add(catalog, subscription.oid, "t")
    assert new.sync_id != old.sync_id
    with pytest.raises(UndefinedObject, match="no longer part"):
        catalog.set_state(old, D, None)
    with catalog.write() as t:
        t.relations.remove(old)
    assert catalog.relations() == (new,)


def join(catalog: Catalog, subid: int, oid: int) -> SubscriptionRel:
    with catalog.write() as t:
        return t.relations.add(subid, {("public", "a"): oid}, INIT)[0]


def leave(catalog: Catalog, rel: SubscriptionRel) -> None:
    with catalog.write() as t:
        t.relations.remove(rel)


def test_a_relation_that_comes_back_knows_its_delta_table(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    rel = join(catalog, subscription.oid, 100)
    assert (rel.table_id, rel.returned) == (None, False)
    for table_id in ("first", "second"):
        catalog.bind(rel, None, table_id)
        leave(catalog, rel)
        rel = join(catalog, subscription.oid, 100)
        assert (rel.table_id, rel.returned) == (table_id, True)
        assert catalog.relations() == (rel,)
    with catalog.write() as t:
        t.relations.delete_all(subscription.oid)
    assert not join(catalog, subscription.oid, 100).returned


def test_another_relation_of_the_name_knows_nothing_of_it(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    rel = join(catalog, subscription.oid, 100)
    catalog.bind(rel, None, "only copy")
    leave(catalog, rel)
    (unknown,) = add(catalog, subscription.oid, "a")
    assert (unknown.table_id, unknown.returned) == (None, False)
    leave(catalog, unknown)
    other = join(catalog, subscription.oid, 999)
    assert (other.table_id, other.returned) == (None, False)
    leave(catalog, other)
    first = join(catalog, subscription.oid, 100)
    assert (first.table_id, first.returned) == ("only copy", True)


def test_a_name_that_comes_back_without_a_copy_says_so(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    rel = join(catalog, subscription.oid, 100)
    catalog.bind(rel, None, "of an earlier membership")
    leave(catalog, rel)
    with catalog.write() as t:
        (rel,) = t.relations.add(subscription.oid, {("public", "a"): 999}, R)
    assert (rel.table_id, rel.returned) == (None, True)


def test_a_table_has_returned_until_it_is_copied(catalog: Catalog) -> None:
    """Its promise (rows of others are kept) holds for every copy until one is committed."""
    subscription = subscribe(catalog)
    rel = join(catalog, subscription.oid, 100)
    catalog.bind(rel, None, "of others")
    leave(catalog, rel)
    rel = join(catalog, subscription.oid, 100)
    for state in (INIT, D):
        catalog.set_state(rel, state, None)
        catalog.copy_again(rel, 100)
        (rel,) = catalog.relations()
        assert (rel.state, rel.table_id, rel.returned) == (INIT, "of others", True)
    catalog.set_state(rel, D, None)
    catalog.copy_again(rel, 999)
    (other,) = catalog.relations()
    assert (other.relid, other.table_id, other.returned) == (999, None, False)


def test_a_table_that_was_copied_has_not_returned(catalog: Catalog) -> None:
    subscription = subscribe(catalog)
    rel = join(catalog, subscription.oid, 100)
    catalog.bind(rel, None, "ours")
    leave(catalog, rel)
    rel = join(catalog, subscription.oid, 100)
    for state in (D, F, S, R):
        catalog.set_state(rel, state, None)
    catalog.copy_again(rel, 999)
    (rel,) = catalog.relations()
    assert (rel.relid, rel.table_id, rel.returned) == (999, "ours", False)


def test_the_relations_of_former_tables_came_with_version_6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 5)
        with Catalog.create(sqlite_url(tmp_path)) as catalog:
            subscription = subscribe(catalog)
            rel = join(catalog, subscription.oid, 100)
            catalog.bind(rel, None, "of nobody knows whom")
            leave(catalog, rel)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        drop = "ALTER TABLE penstock_former_subscription_rel DROP COLUMN srrelid"
        connection.execute(text(drop))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog:
        rel = join(catalog, subscription.oid, 100)
        assert (rel.table_id, rel.returned) == (None, False)


def test_unique_indexes_came_with_version_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 6)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.tables.create("public", "t", "file:///t")
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_class DROP COLUMN relindexes"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog:
        with catalog.write() as t:
            table = t.tables.get("public", "t")
            assert table.indexes == ()
            index = t.tables.new_index("é", ("a", "b"), replica_identity=True)
            t.tables.save(replace(table, indexes=(index,)))
        with catalog.read() as t:
            assert t.tables.get("public", "t").indexes == (index,)


def test_what_a_table_was_is_kept_by_versions(catalog: Catalog) -> None:
    with catalog.write() as t:
        first = t.tables.create("public", "t", "file:///t", primary_key=("a",))
        t.tables.keep_former(first, 3)
        assert t.tables.get("public", "t").former == (), "it is that still"
        second = replace(first, schema="s", primary_key=())
        t.tables.save(second)
        t.tables.keep_former(first, 3)
        full = replace(second, replica_identity=ReplicaIdentity.FULL)
        t.tables.save(full)
        t.tables.keep_former(second, 5)
    with catalog.read() as t:
        table = t.tables.get("s", "t")
    at = [table.at(version) for version in (0, 3, 4, 5, 6)]
    assert [one.qualified_name for one in at] == ["public.t", "public.t", "s.t", "s.t", "s.t"]
    assert [one.identity for one in at] == [("a",), ("a",), None, None, ()]


def test_enum_types_came_with_version_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 6)
        Catalog.create(sqlite_url(tmp_path)).close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for table in ("penstock_type", "penstock_enum"):
            connection.execute(text(f"DROP TABLE {table}"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        made = t.types.create("public", "color", ("red",))
        assert t.types.all() == (made,)


def test_requests_for_cuts_came_with_version_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 7)
        Catalog.create(sqlite_url(tmp_path)).close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE penstock_cut_request"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog:
        assert catalog.cut_requests(5) == ()


def test_dropped_slots_came_with_version_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = Slot("s", "pgoutput", 5, Lsn(1), Lsn(1))
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 8)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.slots.create(slot, 1)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_replication_slot DROP COLUMN dropped"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        assert t.slots.all() == (slot,)
        t.slots.drop("s")
        assert t.slots.all() == ()


def test_options_of_postgresql_16_came_with_version_12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made before has PostgreSQL's defaults."""
    names = ("suborigin", "subfailover", "subpasswordrequired", "subrunasowner")
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 11)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            made = t.subscriptions.create("s", conninfo="", publications=["p"], slot_name="s")
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"ALTER TABLE penstock_subscription DROP COLUMN {name}"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        found = t.subscriptions.get("s")
        assert found == made
        assert (found.origin, found.failover) == ("any", False)
        assert (found.password_required, found.run_as_owner) == (True, False)
        changed = replace(
            found, origin="None", failover=True, password_required=False, run_as_owner=True
        )
        t.subscriptions.save(changed)
        kept = t.subscriptions.get("s")
        assert (kept.origin, kept.own_changes_only, kept.failover) == ("None", True, True)
        assert (kept.password_required, kept.run_as_owner) == (False, True)


def test_streaming_came_with_version_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made before goes on as it did."""
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 9)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.subscriptions.create("s", conninfo="", publications=["p"], slot_name="s")
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_subscription DROP COLUMN substream"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        assert t.subscriptions.get("s").streaming == "off"
        assert (
            t.subscriptions.create("new", conninfo="", publications=["p"], slot_name="s").streaming
            == "parallel"
        )


def test_records_of_two_phase_commit_came_with_version_23(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was prepared before is in no log, and what is in the log is an ordinary transaction."""
    new = {
        "penstock_transaction": ("two_phase", "newest_xid"),
        "penstock_prepared_block": ("prepare_lsn", "prepare_end", "commit_block"),
    }
    block = PreparedBlock("1", "g", 4, 5, 10, (1,), "[]", PreparedState.PREPARED)
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 22)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            first = t.transactions.append((), commit_time=1, size=8)
            t.prepared_blocks.put(block)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for table, columns in new.items():
            for column in columns:
                connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        assert t.prepared_blocks.all() == (block,)
        assert t.transactions.after(first.begin, 2) == (first,)
        assert t.transactions.next_xid() == 5


def test_messages_of_blocks_came_with_version_25(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 24)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            first = t.transactions.append((), commit_time=1, size=8)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE penstock_block_message"))
        for column in ("block_messages", "block_contents"):
            connection.execute(text(f"ALTER TABLE penstock_transaction DROP COLUMN {column}"))
    engine.dispose()
    messages = [BlockMessage(MessageHead(p, len(c)), c) for p, c in (("é", b"\0one"), ("", b""))]
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        t.block_messages.put("b", messages)
        taken = t.block_messages.take({"b", "another"})
        assert taken == tuple(messages)
        assert t.block_messages.of("b") == ()
        second = t.transactions.append((), commit_time=2, size=8, messages=taken)
        assert t.transactions.after(first.begin, 3) == (first, second)
        assert t.transactions.contents(second) == (b"\0one", b"")
        one, two = second.message_ends
        assert second.begin < one < two == second.commit


def test_tables_of_blocks_with_messages_came_with_version_26(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [BlockMessage(MessageHead("p", 1), b"c")]
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 25)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.block_messages.put("before", messages)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_block_message DROP COLUMN relations"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        t.block_messages.put("after", messages, (5,))
        assert t.block_messages.relations() == {"before": None, "after": (5,)}
        assert waiting_for_commits(t) == {"before", "after"}
        t.transactions.advance(7, 1)
        put_without_commits(t, {"before", "after"}, {7: 2}, 1)
        assert t.block_messages.relations() == {"before": None}, "a table has more commits"
        put_without_commits(t, {"before", "after"}, {7: 1}, 1)
        assert t.block_messages.relations() == {}


def test_places_of_publications_came_with_version_27(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there was before has always counted."""
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 26)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.publications.create("p")
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for table in ("publication", "publication_rel", "publication_namespace"):
            connection.execute(text(f"ALTER TABLE penstock_{table} DROP COLUMN since_lsn"))
        connection.execute(text("DROP TABLE penstock_former_publication"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
        first = t.transactions.append([], commit_time=1, size=0)
        t.publications.delete(t.publications.get("p").oid)
        second = t.transactions.append([], commit_time=2, size=0)
        history = t.publications.history()
        assert [p.name for p in history.at(first.place).publications] == ["p"]
        assert history.at(second.place).publications == ()
        assert history.epoch(first.place) < history.epoch(second.place)
        t.publications.forget_before(second.place)
        assert t.publications.history().at(first.place).publications == ()


def test_what_an_error_does_came_with_version_11(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 10)
        with Catalog.create(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            t.subscriptions.create("s", conninfo="", publications=["p"], slot_name="s")
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for column in ("subdisableonerr", "subskiplsn", "subskippinglsn"):
            connection.execute(text(f"ALTER TABLE penstock_subscription DROP COLUMN {column}"))
    engine.dispose()
    with upgraded(sqlite_url(tmp_path)) as catalog:
        (found,) = catalog.subscriptions()
        assert not found.disable_on_error
        assert found.skip_lsn == 0


def test_a_skip_is_begun_and_cleared_only_where_it_is_the_same_still(catalog: Catalog) -> None:
    def lsns() -> tuple[int, int]:
        (found,) = catalog.subscriptions()
        return found.skip_lsn, found.skipping_lsn

    with catalog.write() as t:
        made = t.subscriptions.create("s", conninfo="", publications=["p"], slot_name="s")
        t.subscriptions.save(replace(made, skip_lsn=Lsn(7)))
    assert not catalog.begin_skipping(made.oid, Lsn(6))
    assert catalog.begin_skipping(made.oid, Lsn(7))
    with catalog.write() as t:
        t.subscriptions.save(replace(catalog.subscriptions()[0], skip_lsn=Lsn(9)))
    catalog.clear_skip_lsn(made.oid, Lsn(6))
    assert lsns() == (9, 7)
    catalog.clear_skip_lsn(made.oid, Lsn(7))
    assert lsns() == (9, 0)
    catalog.clear_skip_lsn(made.oid, Lsn(9))
    assert lsns() == (0, 0)
    assert not catalog.begin_skipping(made.oid + 1, Lsn(0))


def test_an_error_disables(catalog: Catalog) -> None:
    with catalog.write() as t:
        made = t.subscriptions.create("s", conninfo="", publications=["p"], slot_name="s")
    catalog.record_error(made, ValueError("x"), stopped=True, disable=True)
    (found,) = catalog.subscriptions()
    assert (found.enabled, found.stopped, found.should_run) == (False, True, False)
    assert found.error is not None


def test_a_request_for_a_cut_moves_on_until_it_is_forgotten(catalog: Catalog) -> None:
    before = catalog.generation()
    with catalog.write() as t:
        one, _ = t.cut_requests.ask(5, Lsn(100)), t.cut_requests.ask(6, Lsn(100))
        assert t.cut_requests.move(one.id, Lsn(200))
    assert catalog.generation() > before
    assert catalog.cut_requests(5) == (replace(one, lsn=Lsn(200)),)
    catalog.forget_cut_request(one.id)
    assert catalog.cut_requests(5) == ()
    with catalog.write() as t:
        assert not t.cut_requests.move(one.id, Lsn(300)), "it is gone"
        t.cut_requests.forget_all(6)
        assert t.cut_requests.all(6) == ()


def test_labels_are_put_between_others_for_ever(catalog: Catalog) -> None:
    with catalog.write() as t:
        t.types.create("s", "other", ("a", "z"))
        t.types.create("public", "number", ("first", "last"))
    wanted = ["first", "last"]
    for number in range(80):  # more often than a fraction can be halved
        with catalog.write() as t:
            found = t.types.find("public", "number")
            assert found is not None
            t.types.add_label(found, str(number), 1)
        wanted.insert(1, str(number))
    with catalog.write() as t:
        found = t.types.find("public", "number")
        assert found is not None and list(found.texts) == wanted
        t.types.add_label(found, "before", 0)
        t.types.add_label(found, "behind", len(wanted))
    with catalog.read() as t:
        other, found = t.types.all()
        assert list(found.texts) == ["before", *wanted, "behind"]
        assert other.texts == ("a", "z")
    with catalog.write() as t:
        t.types.delete(found.oid)
    with catalog.read() as t:
        assert t.types.all() == (other,)


def test_every_change_moves_the_generation_and_only_changes_do(catalog: Catalog) -> None:
    seen = [catalog.generation()]
    assert catalog.generation() == seen[0]
    subscription = subscribe(catalog)
    seen.append(catalog.generation())
    (rel,) = add(catalog, subscription.oid, "t")
    seen.append(catalog.generation())
    catalog.set_state(rel, D, None)
    seen.append(catalog.generation())
    catalog.record_error(subscription, ValueError("x"), stopped=False)
    seen.append(catalog.generation())
    assert seen == sorted(set(seen))
    with pytest.raises(NotInPrerequisiteState):
        catalog.set_state(rel, R, None)
    assert catalog.generation() == seen[-1]


def test_a_transaction_that_raises_leaves_nothing(catalog: Catalog) -> None:
    before = catalog.generation()
    with pytest.raises(RuntimeError), catalog.write() as t:
        t.subscriptions.create("s", conninfo="", publications=["p"], slot_name=None)
        raise RuntimeError
    assert catalog.subscriptions() == ()
    assert catalog.generation() == before


def test_reopening(tmp_path: Path) -> None:
    with Catalog.create(sqlite_url(tmp_path)) as catalog:
        node, subscription = catalog.node_info, subscribe(catalog)
    with Catalog.open(sqlite_url(tmp_path)) as catalog:
        assert catalog.node_info == node
        assert catalog.subscriptions() == (subscription,)
    with pytest.raises(DuplicateObject):
        Catalog.create(sqlite_url(tmp_path))


def test_a_store_without_a_node_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no node") as raised:
        Catalog.open(sqlite_url(tmp_path))
    assert "penstock init" in (raised.value.hint or "")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="malformed"):
        Catalog.open("no url")
    for kind in ("nodatabase", "mysql", "postgresql+asyncpg"):
        with pytest.raises(ConfigurationError, match=re.escape(f'kind "{kind}"')) as raised:
            Catalog.open(f"{kind}://h/d")
        assert "postgresql://user@host/database" in (raised.value.hint or "")


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    Catalog.create(sqlite_url(tmp_path)).close()
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("UPDATE penstock_control SET schema_version = 99"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match="schema version 99") as raised:
        Catalog.open(sqlite_url(tmp_path))
    assert f"state-version-{store.SCHEMA_VERSION}.db, as state.db" in str(raised.value.hint)


def test_an_older_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SCHEMA_VERSION", 1)
    with Catalog.create(sqlite_url(tmp_path)) as catalog:
        subscription = subscribe(catalog)
    steps: list[object] = []
    monkeypatch.setattr(store, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(store, "add_what_is_missing", lambda *_: steps.append(_))
    for _ in range(2):
        with upgraded(sqlite_url(tmp_path)) as catalog:
            assert catalog.subscriptions() == (subscription,)
    assert len(steps) == 1, "once"


def test_an_older_schema_is_left_alone_until_the_node_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Catalog.create(sqlite_url(tmp_path)) as older:
        subscription = subscribe(older)
        monkeypatch.setattr(store, "SCHEMA_VERSION", store.SCHEMA_VERSION + 1)
        with Catalog.open(sqlite_url(tmp_path)) as newer:
            assert newer.node_info == older.node_info
            with pytest.raises(ConfigurationError, match="an older Penstock") as raised:
                newer.subscriptions()
            with pytest.raises(ConfigurationError, match="an older Penstock"):
                subscribe(newer, "t")
            assert "Start the node with this version" in (raised.value.hint or "")
            with Catalog.open(sqlite_url(tmp_path)) as started:
                copy = started.upgrade()
            assert newer.subscriptions() == (subscription,), "upgraded by another process"
            assert newer.upgrade() is None
    assert copy == tmp_path / f"state-version-{store.SCHEMA_VERSION - 1}.db"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match="this Penstock knows up to"):
        Catalog.open(sqlite_url(tmp_path))
    copy.replace(tmp_path / "state.db")
    with Catalog.open(sqlite_url(tmp_path)) as older:
        assert older.subscriptions() == (subscription,)


def test_the_catalogs_of_publishing_come_with_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 1)
        with Catalog.create(sqlite_url(tmp_path)) as catalog:
            subscription = subscribe(catalog)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        for table in METADATA.tables:
            if "subscription" not in table and table != "penstock_control":
                connection.execute(text(f"DROP TABLE {table}"))
    engine.dispose()
    for _ in range(2):
        with upgraded(sqlite_url(tmp_path)) as catalog, catalog.write() as t:
            assert t.subscriptions.all() == (subscription,)
            for catalog_table in (t.roles, t.tables, t.publications, t.slots):
                assert catalog_table.all() == ()


def test_columns_that_came_with_version_4_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 3)
        with Catalog.create(sqlite_url(tmp_path)) as catalog:
            subscription = subscribe(catalog)
    engine = create_engine(sqlite_url(tmp_path))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE penstock_subscription DROP COLUMN suberrortime"))
    engine.dispose()
    for _ in range(2):
        with upgraded(sqlite_url(tmp_path)) as catalog:
            assert catalog.subscriptions() == (subscription,)


def test_a_damaged_store_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StorageError, match="state store"):
        Catalog.open(sqlite_url(tmp_path))


def test_the_same_on_postgresql(database_on: Callable[..., Database]) -> None:
    database = database_on(18)
    port = database.server.port
    url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/{database.name}"
    with Catalog.create(url) as catalog:
        subscription = subscribe(catalog)
        rels = add(catalog, subscription.oid, "b", "a")
        catalog.set_state(rels[0], D, None)
        catalog.set_state(rels[0], F, Lsn(1 << 40))
    with Catalog.open(url) as catalog:
        assert catalog.subscriptions() == (subscription,)
        a, b = catalog.relations()
        assert (a.table, b) == ("a", replace(rels[0], state=F, lsn=Lsn(1 << 40)))
        with pytest.raises(DuplicateObject):
            Catalog.create(url)


def test_columns_are_added_on_postgresql_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql://postgres@127.0.0.1:{database.server.port}/{database.name}"
    with monkeypatch.context() as before:
        before.setattr(store, "SCHEMA_VERSION", 3)
        with Catalog.create(url) as catalog:
            subscription = subscribe(catalog)
    database.execute("ALTER TABLE penstock_subscription DROP COLUMN suberrortime")
    database.execute("DROP TABLE penstock_transaction CASCADE")
    for _ in range(2):
        with upgraded(url) as catalog:
            assert catalog.subscriptions() == (subscription,)
    version = "SELECT schema_version FROM penstock_control"
    assert database.value(version) == store.SCHEMA_VERSION
    database.execute("UPDATE penstock_control SET schema_version = 1000")
    with pytest.raises(ConfigurationError, match="1000"):
        upgraded(url)


def test_what_is_kept_on_postgresql_is_on_disk(database: Database) -> None:
    database.execute(f'ALTER DATABASE "{database.name}" SET synchronous_commit = off')
    url = f"postgresql://postgres@127.0.0.1:{database.server.port}/{database.name}"
    with Catalog.create(url) as catalog, catalog._store.write() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
