"""Catalogs of publishing: roles, tables, publications, slots; on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fix_postgres import Database
from penstock.catalog import Catalog, EmittedMessage, Member, PublicationNamespace, Slot
from penstock.errors import DuplicateObject, PenstockError, UndefinedObject
from penstock.lsn import Lsn
from penstock.relation import ReplicaIdentity

VERIFIER = "SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy"


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, database_on: Callable[..., Database]
) -> Iterator[Catalog]:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    if request.param == "postgresql":
        database = database_on(18)
        url = f"postgresql+psycopg://postgres@127.0.0.1:{database.server.port}/{database.name}"
    with Catalog.create(url) as catalog:
        yield catalog


def test_roles(catalog: Catalog) -> None:
    with catalog.write() as t:
        reader = t.roles.create("reader", login=True, replication=True, verifier=VERIFIER)
        t.roles.create("owner")
        with pytest.raises(DuplicateObject, match='role "reader" already exists'):
            t.roles.create("reader")
    with catalog.write() as t:
        assert t.roles.get("reader") == reader
        assert [role.name for role in t.roles.all()] == ["reader", "owner"]
        t.roles.save(replace(reader, login=False, valid_until=1e9))
        assert not t.roles.get("reader").login
        assert t.roles.get("reader").verifier == VERIFIER
        with pytest.raises(UndefinedObject, match='role "nobody" does not exist'):
            t.roles.get("nobody")
    assert VERIFIER not in repr(reader)


def test_grants_go_with_the_role(catalog: Catalog) -> None:
    with catalog.write() as t:
        role = t.roles.create("reader")
        for _ in range(2):
            t.roles.grant_select(1, role.oid)
        t.roles.grant_select(2, role.oid)
        assert t.roles.may_select(1, role.oid)
        t.roles.revoke_select(1, role.oid)
        assert not t.roles.may_select(1, role.oid)
        t.roles.delete(role.oid)
        assert not t.roles.may_select(2, role.oid)
        assert t.roles.find("reader") is None


def test_tables_and_what_identifies_their_rows(catalog: Catalog) -> None:
    with catalog.write() as t:
        table = t.tables.create("public", "t", "file:/t", primary_key=("a", "b,'é"))
        assert table.identity == ("a", "b,'é")
        with pytest.raises(DuplicateObject, match='relation "t" already exists') as error:
            t.tables.create("public", "t", "file:/other")
        assert error.value.sqlstate == "42P07"
        part = t.tables.create("public", "t1", "file:/t1", parent=table.oid, bound="DEFAULT")
    with catalog.write() as t:
        assert t.tables.all() == (table, part)
        assert t.tables.find_oid(part.oid) == part
        for identity, columns in (
            (ReplicaIdentity.FULL, ()),
            (ReplicaIdentity.NOTHING, None),
            (ReplicaIdentity.INDEX, ("c",)),
        ):
            t.tables.save(replace(table, replica_identity=identity, identity_key=("c",)))
            assert t.tables.get("public", "t").identity == columns
        assert part.identity is None
        t.tables.delete(part.oid)
        with pytest.raises(UndefinedObject, match=r'relation "public.t1" does not exist'):
            t.tables.get("public", "t1")


def test_publications_and_what_is_in_them(catalog: Catalog) -> None:
    with catalog.write() as t:
        p = t.publications.create("p", truncate=False, via_root=True)
        q = t.publications.create("Q", all_tables=True)
        first = t.publications.add_relation(p.oid, 10, ("a",), "a > 5")
        second = t.publications.add_relation(p.oid, 9)
        t.publications.add_namespace(p.oid, "sales")
        with pytest.raises(DuplicateObject, match='publication "p" already exists'):
            t.publications.create("p")
    with catalog.write() as t:
        assert set(t.publications.all()) == {p, q}
        assert t.publications.relations(p.oid) == (first, second) == t.publications.relations()
        t.publications.save(replace(p, insert=False))
        assert not t.publications.get("p").insert
        t.publications.remove_relation(p.oid, 10)
        assert t.publications.relations(p.oid) == (second,)
        (namespace,) = t.publications.namespaces(p.oid)
        assert namespace == PublicationNamespace(namespace.oid, p.oid, "sales")
        t.publications.remove_namespace(p.oid, "sales")
        assert t.publications.namespaces() == ()
        t.publications.delete(p.oid)
        assert t.publications.relations() == ()
        with pytest.raises(UndefinedObject, match='publication "p" does not exist'):
            t.publications.get("p")


def test_slots_never_go_back(catalog: Catalog) -> None:
    slot = Slot("s", "pgoutput", 5, Lsn(100), Lsn(200), two_phase=True, two_phase_at=Lsn(200))
    with catalog.write() as t:
        t.slots.create(slot, most=1)
        with pytest.raises(DuplicateObject, match='replication slot "s" already exists'):
            t.slots.create(slot, most=1)
        with pytest.raises(PenstockError, match="all replication slots are in use") as error:
            t.slots.create(replace(slot, name="other"), most=1)
        assert error.value.sqlstate == "53400"
    with catalog.write() as t:
        assert t.slots.get("s") == slot
        moved = t.slots.confirm("s", Lsn(300), Lsn(250))
        assert (moved.confirmed_flush_lsn, moved.restart_lsn) == (300, 250)
        assert t.slots.confirm("s", Lsn(150), Lsn(120)) == moved == t.slots.get("s")
        t.slots.delete("s")
        with pytest.raises(UndefinedObject, match='replication slot "s" does not exist'):
            t.slots.get("s")


def test_a_dropped_slot_comes_back_until_it_is_forgotten(catalog: Catalog) -> None:
    slot = Slot("s", "pgoutput", 5, Lsn(100), Lsn(200))
    with catalog.write() as t:
        t.slots.create(slot, most=1)
        t.slots.forget("s")
        t.slots.drop("s")
        t.slots.save(slot)
        assert t.slots.all() == () and t.slots.find("s") is None
        t.slots.create(replace(slot, name="other"), most=1)
        assert t.slots.bring_back("s") == slot
        t.slots.drop("s")
        t.slots.delete("other")
        t.slots.create(replace(slot, two_phase=True), most=1)
        assert t.slots.get("s").two_phase
        t.slots.drop("s")
        t.slots.forget("s")
        with pytest.raises(UndefinedObject, match='replication slot "s" does not exist'):
            t.slots.bring_back("s")


def test_transactions_are_in_one_order_and_positions_stay(catalog: Catalog) -> None:
    with catalog.write() as t:
        assert t.transactions.versions() == {}
        start = t.transactions.end()
        t.transactions.advance(7, 3)
        first = t.transactions.append([Member(7, "file:/a", 3, 4)], commit_time=10, size=1001)
        second = t.transactions.append(
            [Member(7, "file:/a", 4, 6), Member(8, "file:/b", -1, 0)],
            commit_time=11,
            size=0,
            origin="pg_1",
            origin_lsn=Lsn(99),
        )
    assert (first.begin, second.begin) == (start, first.end)
    assert first.begin < first.commit < first.end < second.commit < second.end
    assert first.commit - first.begin >= 1001
    assert second.xid == first.xid + 1
    with catalog.read() as t:
        assert t.transactions.after(start, 10) == (first, second)
        assert t.transactions.after(start, 1) == (first,)
        assert t.transactions.after(first.end, 10) == (second,)
        assert t.transactions.after(first.commit, 10) == (first, second)
        inside = Lsn(first.commit + 1)
        assert t.transactions.after(inside, 10) == (second,), "as the finish LSN + 1 asks for"
        assert (t.transactions.boundary(inside), t.transactions.count_after(inside)) == (
            first.end,
            1,
        )
        assert [t.transactions.boundary(at) for at in (first.commit, first.end)] == [
            first.commit,
            first.end,
        ]
        assert t.transactions.after(second.end, 10) == ()
        assert t.transactions.versions() == {7: 6, 8: 0}
        assert t.transactions.oldest() == start


def test_messages_are_in_the_same_order(catalog: Catalog) -> None:
    alone, whole = EmittedMessage(False, "é"), EmittedMessage(True, "")
    with catalog.write() as t:
        first = t.transactions.emit(alone, b"\0one", commit_time=5)
        second = t.transactions.append([], commit_time=6, size=8)
        third = t.transactions.emit(whole, b"", commit_time=7)
        fourth = t.transactions.emit(alone, b"x" * 9000, commit_time=8)
    log = (first, second, third, fourth)
    assert [each.xid for each in log] == [2, 3, 4, 4], "one of no transaction takes none"
    assert [each.begin for each in log[1:]] == [each.end for each in log[:3]]
    assert (first.commit, first.message_end) == (first.begin, first.end)
    assert third.begin < third.commit == third.message_end < third.end
    assert fourth.end - fourth.begin > 9000
    with catalog.read() as t:
        assert t.transactions.after(first.begin, 9) == log
        assert t.transactions.after(Lsn(first.begin + 1), 9) == log[1:]
        assert t.transactions.after(first.end, 9) == log[1:]
        assert t.transactions.boundary(Lsn(first.begin + 1)) == first.end
        assert [t.transactions.content(each) for each in (first, third)] == [b"\0one", b""]
        assert t.transactions.next_xid() == 5


def test_old_transactions_are_pruned_but_the_position_is_kept(catalog: Catalog) -> None:
    with catalog.write() as t:
        made = [t.transactions.append([], commit_time=1, size=8) for _ in range(3)]
        assert t.transactions.prune(made[0].end) == 1
        assert t.transactions.oldest() == made[1].begin
        assert t.transactions.prune(Lsn(made[2].end + 100)) == 1
        assert t.transactions.end() == made[2].end
        t.transactions.advance(5, 1)
        t.transactions.forget(5)
        assert t.transactions.versions() == {}
