"""The rules by which publisher, slot, cuts and tables belong together.

The rules compare three sets of values: the node's records, the server's answers, and the contents
of the last cut and the tables' Delta logs. They raise an error if one of the three was replaced or
went back; the error says what to do. The rules are pure: ``consistency`` asks the server and
applies them once in each session, before anything is created, streamed or acknowledged.

In a consistent state, the following holds after any crash of either side:

- The server is the cluster and database that were followed before. It is on the same timeline, or
  on a timeline that forked from it after all changes that we have.
- The server's WAL reaches at least as far as the last cut and every table's own LSN: only flushed
  WAL is sent, and flushed WAL survives a crash.
- The slot's ``confirmed_flush_lsn`` is not after the LSN at which the stream begins
  (``origin.start_lsn``): nothing is acknowledged before it is in a cut (law 1).
- A table that was in a cut has a Delta log that contains our LSN and is at least as new as the cut
  says. A cut's entry is valid for the Delta table that it names, until that table is copied again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherIdentity, alter, copy_anew
from penstock.errors import ConnectionFailure, PenstockError, StateMismatch, UndefinedObject
from penstock.identifiers import simple_quote_literal
from penstock.lakehouse.cuts import CutTable
from penstock.lsn import INVALID, Lsn
from penstock.subscription.origin import TableProgress, start_lsn
from penstock.walreceiver.slots import LOST, MISSING

_IN_CUTS: Final = (SubscriptionRelState.SYNCDONE, SubscriptionRelState.READY)


@dataclass(frozen=True, slots=True)
class PublisherState:
    """A server's answer about its state. ``position``: the end of its flushed WAL; ``forks``: the
    end of each earlier timeline; ``confirmed``: the slot's ``confirmed_flush_lsn``, None without
    such a slot."""

    identity: PublisherIdentity
    position: Lsn
    in_recovery: bool
    forks: Mapping[int, Lsn]
    confirmed: Lsn | None
    wal_status: str | None = None
    """The slot's, as in pg_replication_slots, or ``slots.MISSING``."""


@dataclass(frozen=True, slots=True)
class TableHistory:
    """One table in state f, s or r. ``joined``: the LSN at which it joined the cuts, None while it
    is in no cut and nothing was copied; ``version``: its Delta log's version, None without a log;
    ``cut``: the last cut's entry for a table of that name; ``returned``: the name was in the
    subscription before."""

    name: str
    state: SubscriptionRelState
    joined: Lsn | None
    marker: Lsn | None
    version: int | None
    id: str | None
    cut: CutTable | None
    returned: bool = False

    @property
    def pinned(self) -> CutTable | None:
        """The last cut's entry for this table. None if that entry describes an earlier table of the
        name, or the rows before the copy. ``Targets.open`` has checked that this table is bound to
        the row. Older cuts contain no ids."""
        if self.cut is None or self.state is SubscriptionRelState.FINISHEDCOPY:
            return None
        return self.cut if self.cut.id in (None, self.id) else None

    @property
    def progress(self) -> TableProgress:
        """The table's progress, for the decisions of origin.py."""
        return TableProgress(self.state is SubscriptionRelState.READY, self.marker)


def check_publisher(
    subscription: str,
    known: PublisherIdentity | None,
    server: PublisherState,
    last_cut: Lsn | None,
    tables: Sequence[TableHistory],
    origin_lsn: Lsn = INVALID,
) -> None:
    """Raise StateMismatch if the server or its slot contradicts our own state.

    ``origin_lsn``: the LSN to which the replication origin was advanced. Raises ConnectionFailure
    for a standby that has not replayed the WAL up to our LSNs yet.
    """
    reached, owner = _reached(last_cut, tables)
    check_timeline(subscription, known, server, reached, owner)
    if server.position < reached:
        _raise_behind(subscription, server, reached, owner)
    if server.position < origin_lsn:
        raise _beyond(subscription, server, origin_lsn)
    if last_cut is None:
        _check_no_gap(subscription, server, tables, origin_lsn)
    start = max(start_lsn(last_cut, [table.progress for table in tables]), origin_lsn)
    if start != INVALID and server.confirmed is not None and server.confirmed > start:
        raise StateMismatch(
            f'the slot of subscription "{subscription}" is at {server.confirmed}, and what the '
            f"subscription has ends at {start}",
            detail="The publisher sends nothing from before its slot: changes in between would be "
            "lost. Either the node's folder and warehouse went back to an older copy, or the slot "
            "was advanced, or made again.",
            hint=f"If there is a newer copy of folder and warehouse, put that back, then "
            f"{alter(subscription)} ENABLE. {copy_anew(subscription)} To go on without the "
            "changes in between, put its replication origin to the slot's "
            "confirmed_flush_lsn (pg_replication_origin_advance) while it is disabled.",
        )


def _check_no_gap(
    subscription: str, server: PublisherState, tables: Sequence[TableHistory], origin_lsn: Lsn
) -> None:
    """Raise StateMismatch if the slot is beyond the LSN of a table that was not copied. Without a
    cut this subscription has acknowledged nothing, so the slot is older than the subscription."""
    behind = [t for t in tables if t.state is SubscriptionRelState.READY and t.marker is not None]
    for table in behind:
        reached = max(table.marker or INVALID, origin_lsn)
        if server.confirmed is not None and server.confirmed > reached:
            raise StateMismatch(
                f'the slot of subscription "{subscription}" is at {server.confirmed}, and table '
                f'"{table.name}" ends at {reached}',
                detail="Another subscription has filled the table up to there, and the publisher "
                "sends nothing from before its slot: changes in between would be lost.",
                hint=f"{copy_anew(subscription)} Where there are none, or they may be lost: "
                + _advance(subscription, server.confirmed),
            )


def check_known_start(subscription: str, table: str, marker: Lsn, server: PublisherState) -> None:
    """Raise StateMismatch if the slot may resend changes that the table has. ``marker``: the
    table's LSN of a subscription that the node no longer knows."""
    if server.confirmed is None or marker <= server.confirmed:
        return
    raise StateMismatch(
        f'subscription "{subscription}" does not know where table "{table}" ends',
        detail=f"A subscription of which the node knows nothing any more has filled it up to "
        f"{marker}, and the slot is at {server.confirmed}: if both are of this publisher, changes "
        "in between would come twice.",
        hint=f"If they are, go on where the table ends: {_advance(subscription, marker)} Else "
        f"{_advance(subscription, server.confirmed)} {copy_anew(subscription)}",
    )


def _advance(subscription: str, lsn: Lsn) -> str:
    altered = alter(subscription)
    return (
        f"{altered} DISABLE; SELECT pg_replication_origin_advance('pg_' || oid, '{lsn}') FROM "
        f"pg_subscription WHERE subname = {simple_quote_literal(subscription)}; {altered} ENABLE."
    )


def check_slot(
    subscription: str, slot: str | None, server: PublisherState, cut: Lsn | None
) -> None:
    """Raise StateMismatch for a lost slot, UndefinedObject if the slot is gone with the changes
    after the last cut. The server's own messages differ from version to version."""
    if slot is None:
        return
    if server.wal_status == LOST:
        raise StateMismatch(
            f'replication slot "{slot}" of subscription "{subscription}" is lost',
            detail="The publisher has thrown away WAL that was not read yet: it was more than "
            "max_slot_wal_keep_size.",
            hint=copy_anew(subscription, slot),
        )
    if server.wal_status == MISSING and cut is not None:
        raise UndefinedObject(
            f'replication slot "{slot}" does not exist',
            detail=f"It is gone from the publisher, and with it the changes since the last cut, at "
            f"{cut}.",
            hint=copy_anew(subscription, slot),
        )


_PUT_BACK: Final = "Mount or restore the warehouse, or the node's folder, as it was."


def check_cuts(
    subscription: str, last_cut: Lsn | None, rels: Iterable[SubscriptionRel], cuts_uri: str
) -> None:
    """Raise StateMismatch if the cuts are gone, which is not the error of a single table."""
    for rel in rels:
        if rel.lsn is not None and rel.state in _IN_CUTS and last_cut is None:
            raise StateMismatch(
                f'the cuts of subscription "{subscription}" are gone',
                detail=f'Table "{rel.qualified_name}" came into the cuts at {rel.lsn}, and there '
                f'is none in "{cuts_uri}".',
                hint=_put_back(subscription),
            )


def check_table(subscription: str, table: TableHistory, last_cut: Lsn | None) -> None:
    """Raise StateMismatch if a table is gone, or if it or the node's own state went back."""
    if _left_the_cuts(table, last_cut):
        raise StateMismatch(
            f'table "{table.name}" of subscription "{subscription}" is not in the last cut, at '
            f"{last_cut}, and {_was_in_them(table)}",
            detail="It was parked or left the subscription since, which the node's state does not "
            "know: an older copy of the state was put back. Changes of it were passed by, and are "
            "not sent again.",
            hint=_PUT_BACK,
        )
    if (found := _wrong_with(table)) is not None:
        raise StateMismatch(
            f'table "{table.name}" of subscription "{subscription}" {found}',
            detail="What it has lost is not sent again: the publisher knows it as applied.",
            hint=_PUT_BACK,
        )


def _left_the_cuts(table: TableHistory, last_cut: Lsn | None) -> bool:
    """Return whether a table that was in the cuts is missing from the last cut. The node records
    ``joined`` after the first cut with the table, and every later cut contains it. If the table has
    committed changes, a cut contains them, unless they are of an earlier membership."""
    if last_cut is None or table.version is None or table.cut is not None:
        return False
    marker = None if table.returned else table.marker
    since = marker if table.joined is None else table.joined
    return table.state in _IN_CUTS and since is not None and since <= last_cut


def _was_in_them(table: TableHistory) -> str:
    if table.joined is None:
        return f"holds the changes up to {table.marker}"
    return f"came into the cuts at {table.joined}"


def _wrong_with(table: TableHistory) -> str | None:
    if table.version is None:
        copied = table.joined is not None or table.pinned is not None
        return "was copied and is gone" if copied else None
    if table.pinned is not None and table.version < table.pinned.version:
        return f"went back to version {table.version}, the last cut has {table.pinned.version}"
    # A table without an LSN may be correct: if the last cut names its id, nothing was copied and no
    # change has come since.
    named = table.pinned is not None and table.pinned.id is not None
    if table.marker is None and table.joined is not None and not named:
        return "has no LSN of the subscription in its log: it is not the table that was copied"
    behind = table.state is SubscriptionRelState.FINISHEDCOPY and table.joined is not None
    if behind and (table.marker or INVALID) < (table.joined or INVALID):
        return f"went back to {table.marker}, it was copied at {table.joined}"
    return None


def _reached(last_cut: Lsn | None, tables: Iterable[TableHistory]) -> tuple[Lsn, str]:
    """Return our greatest LSN, and what has it: the last cut or a table."""
    reached, owner = last_cut or INVALID, "the last cut"
    for table in tables:
        if table.marker is not None and table.marker > reached:
            reached, owner = table.marker, f'table "{table.name}"'
    return reached, owner


def check_timeline(
    subscription: str,
    known: PublisherIdentity | None,
    server: PublisherState,
    reached: Lsn,
    owner: str,
) -> None:
    """Raise StateMismatch if the server's timeline left the known timeline before ``reached``."""
    now = server.identity.timeline
    if known is None or known.timeline == now:
        return
    timeline = _acknowledged_on(known.timeline, server) if known.standby else known.timeline
    if timeline == now:
        return
    fork = server.forks.get(timeline)
    if fork is not None and fork >= reached:
        return
    if fork is None:
        found = f"Its timeline {now} does not come from timeline {timeline}, which it had."
    else:
        found = f"Its timeline {now} left timeline {timeline} at {fork}."
    raise StateMismatch(
        f'the publisher of subscription "{subscription}" has another history since {reached}',
        detail=f"{found} {owner[0].upper()}{owner[1:]} is at {reached}: it holds changes that the "
        "server has lost, and lacks others.",
        hint=_lost_history(subscription),
    )


def _acknowledged_on(timeline: int, server: PublisherState) -> int:
    """Return the timeline on which the slot was confirmed last. ``timeline``: the timeline on which
    the standby was followed.

    A standby's walsender continues after a promotion without reporting it. If a slot is confirmed
    beyond the point where the server began its new timeline, a client has confirmed it on that
    timeline. A slot that a standby synchronizes from its primary is never beyond the standby's WAL.
    """
    later = [*sorted(each for each in server.forks if each > timeline), server.identity.timeline]
    for following in later:
        fork = server.forks.get(timeline)
        if fork is None or server.confirmed is None or server.confirmed <= fork:
            break
        timeline = following
    return timeline


def _raise_behind(subscription: str, server: PublisherState, reached: Lsn, owner: str) -> None:
    if server.in_recovery:
        raise ConnectionFailure(
            f'the standby that subscription "{subscription}" follows is at {server.position}, and '
            f"{owner} at {reached}",
            detail="It has not replayed as much WAL yet.",
            sqlstate="57P03",
        )
    raise StateMismatch(
        f'the publisher of subscription "{subscription}" went back to {server.position}, and '
        f"{owner} is at {reached}",
        detail="It was restored from an older copy, or has lost WAL: the tables hold changes that "
        "it no longer knows, and its new changes would be skipped as known.",
        hint=_lost_history(subscription),
    )


def _beyond(subscription: str, server: PublisherState, origin_lsn: Lsn) -> PenstockError:
    message = (
        f'the replication origin of subscription "{subscription}" was put to {origin_lsn}, and its '
        f"publisher is at {server.position}"
    )
    if server.in_recovery:
        return ConnectionFailure(
            message, detail="The standby has not replayed as much WAL yet.", sqlstate="57P03"
        )
    return StateMismatch(
        message,
        detail="Changes that are still to come would be passed by.",
        hint=f"Put it elsewhere: {alter(subscription)} DISABLE, pg_replication_origin_advance, "
        f"{alter(subscription)} ENABLE.",
    )


def _lost_history(subscription: str) -> str:
    command = alter(subscription)
    return (
        f"Connect it to the server that has the newer history ({command} CONNECTION '...'), then "
        f"{command} ENABLE. {copy_anew(subscription)}"
    )


def _put_back(subscription: str) -> str:
    return f"{_PUT_BACK} Then {alter(subscription)} ENABLE. {copy_anew(subscription)}"
