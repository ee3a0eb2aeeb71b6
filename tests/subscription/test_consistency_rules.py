"""What must agree before a stream begins: every case with its decision, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.pg_subscription_rel import SubscriptionRelState as State
from penstock.catalog.publisher_identity import PublisherIdentity, check_identity
from penstock.errors import ConnectionFailure, StateMismatch, UndefinedObject
from penstock.lakehouse.cuts import CutTable
from penstock.lsn import Lsn
from penstock.subscription.consistency_rules import (
    PublisherState,
    TableHistory,
    check_cuts,
    check_publisher,
    check_slot,
    check_table,
)

KNOWN = PublisherIdentity("7000", 1, 5)
SERVER = PublisherState(KNOWN, Lsn(500), False, {}, Lsn(100))


def table(
    state: State = State.READY,
    marker: int | None = 100,
    joined: int | None = 90,
    version: int | None = 4,
    cut: CutTable | None = None,
) -> TableHistory:
    def lsn(value: int | None) -> Lsn | None:
        return None if value is None else Lsn(value)

    found = None if version is None else "a"
    return TableHistory("public.t", state, lsn(joined), lsn(marker), version, found, cut)


@pytest.mark.parametrize(
    ("known", "server", "agrees"),
    [
        (None, KNOWN, True),
        (KNOWN, KNOWN, True),
        (KNOWN, replace(KNOWN, timeline=2), True),  # a promotion, judged by its fork
        (KNOWN, replace(KNOWN, system_id="7001"), False),
        (KNOWN, replace(KNOWN, database_oid=6), False),
    ],
)
def test_identity(known: PublisherIdentity | None, server: PublisherIdentity, agrees: bool) -> None:
    if agrees:
        check_identity("s", known, server)
        return
    with pytest.raises(StateMismatch) as caught:
        check_identity("s", known, server)
    assert "another publisher" in caught.value.message
    assert "CONNECTION" in (caught.value.hint or "")


AHEAD = "the slot of"
BACK = "went back to"
HISTORY = "another history"


@pytest.mark.parametrize(
    ("cut", "confirmed", "advanced", "wrong"),
    [
        (100, 101, 101, None),  # what the slot has lost is passed by
        (100, 102, 101, "the slot of"),
        (100, 90, 500, None),
        (100, 90, 501, "was put to"),
        (None, 90, 501, "was put to"),
        (None, 101, 101, None),
        (None, 102, 101, "the slot of"),
        (200, 150, 120, None),  # the last cut is beyond
    ],
)
def test_an_origin_that_was_put_elsewhere(
    cut: int | None, confirmed: int, advanced: int, wrong: str | None
) -> None:
    server = replace(SERVER, confirmed=Lsn(confirmed))
    arguments = (None if cut is None else Lsn(cut), [table()], Lsn(advanced))
    if wrong is None:
        check_publisher("s", KNOWN, server, *arguments)
        return
    with pytest.raises(StateMismatch) as caught:
        check_publisher("s", KNOWN, server, *arguments)
    assert wrong in caught.value.message
    if advanced > server.position:
        with pytest.raises(ConnectionFailure):
            check_publisher("s", KNOWN, replace(server, in_recovery=True), *arguments)


@pytest.mark.parametrize(
    ("cut", "confirmed", "tables", "wrong"),
    [
        # no cut: nothing of ours can be before the slot but a copy that waits to join
        (None, None, [], None),
        (None, 400, [], None),
        (None, 100, [table(State.FINISHEDCOPY, 100)], None),
        (None, 90, [table(State.FINISHEDCOPY, 100)], None),
        (None, 101, [table(State.FINISHEDCOPY, 100)], AHEAD),
        (None, 100, [table(State.READY, None, None)], None),
        (None, 100, [table(State.READY, 200, None)], None),
        # a cut
        (100, None, [table()], None),
        (100, 90, [table()], None),
        (100, 100, [table()], None),
        (100, 101, [table()], AHEAD),
        (100, 101, [], AHEAD),
        (500, 100, [table()], None),
        (501, 100, [table()], BACK),
        # a crash between commits and cut
        (100, 100, [table(marker=150)], None),
        (100, 100, [table(marker=501)], BACK),
        # tables that join: the slot waits for the earliest
        (200, 100, [table(marker=200), table(State.FINISHEDCOPY, 100)], None),
        (200, 110, [table(marker=200), table(State.FINISHEDCOPY, 100)], AHEAD),
        (200, 150, [table(marker=200), table(State.FINISHEDCOPY, 150, 100)], None),
        (200, 150, [table(marker=200), table(State.SYNCDONE, 150)], None),
    ],
)
def test_positions(
    cut: int | None, confirmed: int | None, tables: list[TableHistory], wrong: str | None
) -> None:
    lsn = None if cut is None else Lsn(cut)
    server = replace(SERVER, confirmed=None if confirmed is None else Lsn(confirmed))

    def check(server: PublisherState) -> None:
        check_publisher("s", KNOWN, server, lsn, tables)

    if wrong is None:
        check(server)
        return
    with pytest.raises(StateMismatch) as caught:
        check(server)
    assert wrong in caught.value.message and "DROP SUBSCRIPTION s" in (caught.value.hint or "")
    if wrong is BACK:
        with pytest.raises(ConnectionFailure, match="standby"):
            check(replace(server, in_recovery=True))


@pytest.mark.parametrize(
    ("known", "now", "forks", "agrees"),
    [
        (1, 1, {}, True),
        (1, 2, {1: 100}, True),
        (1, 2, {1: 99}, False),
        (1, 3, {1: 100, 2: 300}, True),
        (2, 3, {1: 50, 2: 99}, False),
        (2, 3, {1: 50, 2: 100}, True),
        (2, 3, {1: 400}, False),  # another branch from timeline 1
        (2, 1, {}, False),
        (None, 2, {}, True),
    ],
)
def test_timelines(known: int | None, now: int, forks: dict[int, int], agrees: bool) -> None:
    before = None if known is None else replace(KNOWN, timeline=known)
    server = replace(
        SERVER,
        identity=replace(KNOWN, timeline=now),
        forks={timeline: Lsn(lsn) for timeline, lsn in forks.items()},
    )
    if agrees:
        check_publisher("s", before, server, Lsn(100), [table()])
        return
    with pytest.raises(StateMismatch, match=HISTORY):
        check_publisher("s", before, server, Lsn(100), [table()])


@pytest.mark.parametrize(
    ("standby", "confirmed", "now", "forks", "agrees"),
    [
        (True, 90, 2, {1: 80}, True),  # confirmed after its promotion
        (True, 80, 2, {1: 80}, False),
        (True, None, 2, {1: 80}, False),
        (False, 90, 2, {1: 80}, False),  # a file copy of a primary may have the slot so
        (True, 95, 3, {1: 80, 2: 90}, True),  # its primary was promoted, and then it
        (True, 85, 3, {1: 80, 2: 90}, False),  # the second promotion has lost what came after
        (True, 85, 3, {1: 80, 2: 100}, True),
    ],
)
def test_a_standby_that_was_promoted_while_it_was_followed(
    standby: bool, confirmed: int | None, now: int, forks: dict[int, int], agrees: bool
) -> None:
    server = replace(
        SERVER,
        identity=replace(KNOWN, timeline=now),
        forks={timeline: Lsn(lsn) for timeline, lsn in forks.items()},
        confirmed=None if confirmed is None else Lsn(confirmed),
    )
    before = replace(KNOWN, standby=standby)
    if agrees:
        check_publisher("s", before, server, Lsn(100), [table()])
        return
    with pytest.raises(StateMismatch, match=HISTORY):
        check_publisher("s", before, server, Lsn(100), [table()])


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (table(cut=CutTable("u", 4, "a")), None),
        (table(cut=CutTable("u", 3, None)), None),
        (table(cut=CutTable("u", 5, "a")), "went back to version 4"),
        (table(cut=CutTable("u", 5, None)), "went back to version 4"),
        (table(version=None, cut=CutTable("u", 4, "a")), "is gone"),
        (table(version=None, joined=None, cut=CutTable("u", 4)), "is gone"),
        (table(State.FINISHEDCOPY, None, 90, None), "is gone"),
        (table(version=None), "is gone"),
        (table(version=None, joined=None), None),  # copy_data = false, never connected
        (table(joined=None), None),
        (table(marker=None, joined=None), None),
        (table(marker=None), "no LSN"),
        (table(marker=None, cut=CutTable("u", 4, None)), "no LSN"),
        (table(marker=None, cut=CutTable("u", 4, "a")), None),  # copy_data = false, no change yet
        (table(State.FINISHEDCOPY, 90, 90), None),
        (table(State.FINISHEDCOPY, 120, 90), None),
        (table(State.FINISHEDCOPY, 89, 90), "went back to"),
        (table(State.FINISHEDCOPY, None, 90), "no LSN"),
        # the cut is from before the table was made anew, taken in again, or copied again
        (table(joined=None, cut=CutTable("u", 9, "b")), None),
        (table(version=None, joined=None, cut=CutTable("u", 9, "b")), None),
        (table(State.FINISHEDCOPY, 120, 90, cut=CutTable("u", 9, "b")), None),
        (table(State.FINISHEDCOPY, 120, 90, cut=CutTable("u", 9, "a")), None),
        (table(State.FINISHEDCOPY, 120, 90, cut=CutTable("u", 9, None)), None),
        (table(State.FINISHEDCOPY, None, 90, None, CutTable("u", 9, "b")), "is gone"),
    ],
)
def test_tables(found: TableHistory, wrong: str | None) -> None:
    if wrong is None:
        check_table("s", found, None)
        return
    with pytest.raises(StateMismatch) as caught:
        check_table("s", found, None)
    assert wrong in caught.value.message and "Mount or restore" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("found", "last_cut", "left"),
    [
        (table(), 100, True),  # parked or removed since, in a newer copy of the node's state
        (table(), 90, True),
        (table(State.SYNCDONE), 100, True),
        (table(), 89, False),  # it comes into the next cut
        (table(), None, False),
        # copy_data = false: what was committed to it was in a cut
        (table(joined=None), 100, True),
        (table(joined=None, marker=101), 100, False),
        (table(joined=None, marker=None), 100, False),
        (replace(table(joined=None), returned=True), 100, False),
        (table(State.FINISHEDCOPY), 100, False),
        (table(cut=CutTable("u", 4, "a")), 100, False),
    ],
)
def test_a_table_that_has_left_the_cuts(
    found: TableHistory, last_cut: int | None, left: bool
) -> None:
    lsn = None if last_cut is None else Lsn(last_cut)
    if not left:
        check_table("s", found, lsn)
        return
    with pytest.raises(StateMismatch, match="is not in the last cut") as caught:
        check_table("s", found, lsn)
    assert "Mount or restore" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("state", "joined", "cut", "gone"),
    [
        (State.READY, 90, None, True),
        (State.SYNCDONE, 90, None, True),
        (State.READY, 90, 100, False),
        (State.READY, None, None, False),  # copy_data = false
        (State.FINISHEDCOPY, 90, None, False),
    ],
)
def test_cuts(state: State, joined: int | None, cut: int | None, gone: bool) -> None:
    rel = SubscriptionRel(1, "public", "t", state, None if joined is None else Lsn(joined), "sync")
    lsn = None if cut is None else Lsn(cut)
    if not gone:
        check_cuts("s", lsn, [rel], "cuts")
        return
    with pytest.raises(StateMismatch, match="the cuts of") as caught:
        check_cuts("s", lsn, [rel], "cuts")
    assert "ENABLE" in (caught.value.hint or "")


def test_a_slot_that_is_lost_or_gone() -> None:
    check_slot("s", "slot", replace(SERVER, wal_status="reserved"), Lsn(5))
    check_slot("s", None, replace(SERVER, wal_status="missing"), Lsn(5))
    check_slot("s", "slot", replace(SERVER, wal_status=None), Lsn(5))  # not told
    check_slot("s", "slot", replace(SERVER, wal_status="missing"), None)  # nothing is lost with it
    with pytest.raises(StateMismatch, match="is lost"):
        check_slot("s", "slot", replace(SERVER, wal_status="lost"), None)
    with pytest.raises(UndefinedObject, match="does not exist"):
        check_slot("s", "slot", replace(SERVER, wal_status="missing"), Lsn(5))
