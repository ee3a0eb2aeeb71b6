"""Which record the log gets of the commits of what was prepared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    Member,
    PreparedBlock,
    PreparedState,
    TwoPhaseKind,
)
from penstock.lakehouse.change import StagedChange, changes_in, content_of
from penstock.walsender.commit_order import PendingTransaction
from penstock.walsender.sequencer import one_by_block
from penstock.walsender.two_phase import (
    commit_record,
    committed_by,
    end_in_log,
    put_prepare,
    put_rollback,
)

A, B = 20001, 20002
_CHANGES = [StagedChange(oid, f"file:///t{oid}", "t", "id", "{}", (), 0) for oid in (A, B)]


def prepare(t: CatalogTransaction, gid: str = "g", number: str = "1") -> PreparedBlock:
    xid = t.transactions.next_xid()
    block = PreparedBlock(number, gid, xid, 7, 10, (A, B), content_of(_CHANGES))
    t.prepared_blocks.put(block)
    put_prepare(t, block, _CHANGES, [3, 4], 1000)
    t.prepared_blocks.set_state(number, PreparedState.PREPARED)
    t.prepared_blocks.begin_commit(number, f"commit {number}")
    found = t.prepared_blocks.get(number)
    assert found is not None
    return found


def commit(relation: int, to: int, *, ours: bool = True) -> PendingTransaction:
    found = PendingTransaction((Member(relation, f"t{relation}", to - 1, to),), 10 * to, 10 * to, 8)
    if not ours:
        return found
    block = frozenset({A, B})
    return replace(found, group="commit 1", block=block, blocks=frozenset({"commit 1"}))


def kinds(t: CatalogTransaction) -> list[TwoPhaseKind | None]:
    log = t.transactions.after(0, 100)  # type: ignore[arg-type]
    return [None if x.two_phase is None else x.two_phase.kind for x in log]


def test_a_prepared_transaction_and_its_commit(catalog: Catalog) -> None:
    with catalog.write() as t:
        prepared = prepare(t)
        t.transactions.append((), commit_time=1, size=8)
        (item,) = one_by_block([commit(A, 4), commit(B, 5)])
        found = committed_by(t, item, 2000)
        assert found == prepared
        written = t.transactions.append(
            item.members, commit_time=1, size=8, xid=found.xid, two_phase=commit_record(found)
        )
        end_in_log(t, found)
        first, second, last = t.transactions.after(0, 100)  # type: ignore[arg-type]
        assert last == written
        assert first.end == second.begin < second.end == last.begin
        assert last.two_phase is not None
        assert last.two_phase.prepare is not None
        assert (last.xid, second.xid) == (first.xid, first.xid + 1)
        assert t.transactions.next_xid() == second.xid + 1, "the last one is not the newest"
        place = last.two_phase.prepare
        assert (place.lsn, place.end, place.time) == (first.commit, first.end, 1000)
        assert changes_in(t.transactions.content(first)) == _CHANGES
        assert t.transactions.versions() == {A: 4, B: 5}, "PREPARE moves no table"
        left = t.prepared_blocks.get("1")
        assert left is not None, "who commits it is not through"
        assert left.prepare is None
        assert committed_by(t, item, 2000) is None
        t.prepared_blocks.set_state("1", PreparedState.COMMITTED)
        end_in_log(t, replace(left, state=PreparedState.COMMITTED))
        assert t.prepared_blocks.all() == ()


@pytest.mark.parametrize("case", ["others", "a part", "a cut"])
def test_what_is_not_its_commits_alone(catalog: Catalog, case: str) -> None:
    """It is told as rolled back, before any of it comes as something else; and once."""
    items = {
        "others": [commit(A, 4), commit(A, 5, ours=False), commit(B, 5, ours=False), commit(B, 6)],
        "a part": [commit(A, 4)],
        "a cut": [replace(commit(A, 4), group=None, block=frozenset(), of_cut=True)],
    }
    found = one_by_block(items[case])
    if case == "others":
        found = one_by_block([*items[case], commit(A, 6)])
    with catalog.write() as t:
        prepare(t)
        ends = [committed_by(t, item, 2000) for item in found]
        assert {*ends} == {None}
        assert kinds(t) == [TwoPhaseKind.PREPARE, TwoPhaseKind.ROLLBACK_PREPARED]


def test_what_is_taken_back_is_prepared_still(catalog: Catalog) -> None:
    undone = [replace(commit(oid, 7), undone=True, blocks=frozenset[str]()) for oid in (A, B)]
    (item,) = one_by_block([commit(A, 6), commit(B, 6), *undone])
    with catalog.write() as t:
        prepared = prepare(t)
        assert committed_by(t, item, 2000) is None
        assert kinds(t) == [TwoPhaseKind.PREPARE]
        put_rollback(t, prepared, 3000)
        assert kinds(t) == [TwoPhaseKind.PREPARE, TwoPhaseKind.ROLLBACK_PREPARED]
