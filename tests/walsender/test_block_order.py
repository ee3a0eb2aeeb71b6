"""Commits of transaction blocks: each block is one transaction, or nobody is told of it yet."""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Member
from penstock.walsender.commit_order import PendingTransaction
from penstock.walsender.sequencer import one_by_block, waited_for, whole_blocks

A, B, C, D = 1, 2, 3, 4
ALL = {A, B, C, D}


def commit(relation: int, to: int, group: str | None = None, *block: int) -> PendingTransaction:
    member = Member(relation, f"t{relation}", to - 1, to)
    return PendingTransaction((member,), 10 * to, 10 * to, 8, group=group, block=frozenset(block))


def undone(relation: int, to: int, group: str, *block: int) -> PendingTransaction:
    return replace(commit(relation, to, group, *block), undone=True)


def whole(found: list[PendingTransaction], followed: set[int]) -> list[PendingTransaction]:
    return whole_blocks(found, waited_for(found, followed))


def shown(found: list[PendingTransaction]) -> list[list[tuple[int, int, int]]]:
    return [[(m.relation, m.from_version, m.to_version) for m in f.members] for f in found]


def test_a_block_is_one_transaction() -> None:
    found = [commit(A, 1, "g", A, B), commit(C, 1), commit(B, 1, "g", A, B)]
    there = one_by_block(whole(found, ALL))
    assert shown(there) == [[(C, 0, 1)], [(A, 0, 1), (B, 0, 1)]]
    assert all(item.group is None for item in there)


def test_half_a_block_waits_with_what_comes_after_it_in_its_tables() -> None:
    found = [commit(C, 1), commit(A, 1, "g", A, B), commit(A, 2), commit(D, 1)]
    assert shown(whole(found, ALL)) == [[(C, 0, 1)], [(D, 0, 1)]]
    assert shown(whole(found, ALL - {B}))[1] == [(A, 0, 1)], "B was dropped"


def test_others_stand_before_it_or_after_it() -> None:
    """As in their tables' own logs, also where neither place would do for all of them."""
    found = [
        commit(A, 1, "g", A, B),
        commit(A, 2),
        commit(C, 1),
        commit(B, 1),
        commit(B, 2, "g", A, B),
    ]
    there = one_by_block(whole(found, ALL))
    assert shown(there) == [[(C, 0, 1)], [(B, 0, 1)], [(A, 0, 1), (B, 1, 2)], [(A, 1, 2)]]


def test_two_blocks_after_one_another() -> None:
    found = [
        commit(A, 1, "g", A, B),
        commit(A, 2, "h", A, B),
        commit(B, 1, "g", A, B),
        commit(B, 2, "h", A, B),
    ]
    there = one_by_block(whole(found, ALL))
    assert shown(there) == [[(A, 0, 1), (B, 0, 1)], [(A, 1, 2), (B, 1, 2)]]


def test_a_block_that_was_taken_back_changes_nothing_of_its_own() -> None:
    """What came in between is a part of the transaction that it leaves."""
    taken = [commit(A, 1, "g", A, B, C), commit(B, 1, "g", A, B, C), undone(A, 2, "g", A, B, C)]
    assert whole(taken, ALL) == [], "B's commit is still there"
    taken.append(undone(B, 2, "g", A, B, C))
    (nothing,) = one_by_block(whole(taken, ALL))
    assert (shown([nothing]), nothing.changes) == ([[(A, 0, 2), (B, 0, 2)]], False)
    between = [commit(A, 1, "g", A, B), commit(A, 2), undone(A, 3, "g", A, B), commit(A, 4)]
    there = one_by_block(whole(between, ALL))
    assert (shown(there), there[0].changes) == ([[(A, 0, 3)], [(A, 3, 4)]], True)
    between[1] = replace(between[1], changes=False)
    assert one_by_block(between)[0].changes, "OPTIMIZE may have copied rows of it, which stay"


def test_where_each_of_two_would_come_first_they_are_one() -> None:
    found = [
        commit(A, 1, "g", A, B),
        replace(commit(A, 2), members=(Member(A, "a", 1, 2), Member(B, "b", 0, 1))),
        commit(B, 2, "g", A, B),
    ]
    assert shown(one_by_block(found)) == [[(A, 0, 2), (B, 0, 2)]]


def test_what_a_log_has_lost_is_not_waited_for() -> None:
    """And half of what was taken back is a change, where the log has no more than that."""
    half = [commit(A, 1, "g", A, B, C), commit(A, 2)]
    waiting = waited_for(half, ALL)
    assert waiting == {"g": {B, C}}
    assert whole_blocks(half, waiting, {"g": {B}}) == []
    assert shown(whole_blocks(half, waiting, {"g": {B, C}})) == [[(A, 0, 1)], [(A, 1, 2)]]
    taken = [commit(A, 1, "g", A, B), undone(A, 2, "g", A, B), undone(B, 2, "g", A, B)]
    (lone,) = one_by_block(whole(taken, ALL))
    assert (shown([lone]), lone.changes) == ([[(A, 0, 2), (B, 1, 2)]], True)
    taken = [commit(A, 1, "g", A, B), undone(A, 2, "g", A, B), commit(B, 1, "g", A, B)]
    (lone,) = one_by_block(whole_blocks(taken, waited_for(taken, ALL), {"g": {B}}))
    assert (shown([lone]), lone.changes) == ([[(A, 0, 2), (B, 0, 1)]], True)
