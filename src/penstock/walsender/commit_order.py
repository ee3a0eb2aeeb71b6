"""The order and the times of commits that enter the log together.

Every table is read twice, one table after the other. The first pass may find a commit and miss an
earlier commit of a table that it had already read; the second pass finds the missed commit. The
second pass may miss commits in the same way, so commits later than all those of the first pass wait
for the next step.

Between tables, only the writers' times can decide the order, although their clocks may disagree or
go back. Within a table, its log decides. The commits of a subscription between two cuts have the
publisher's time instead.

Interrupted moves of rows between tables are finished first: the missing commits are put into the
logs of the tables that the rows go to. If such a table cannot be written now, the rows' deletions
wait, and so do later commits of the tables that the rows left. So no subscriber sees a row deleted
before it is inserted again.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.catalog import CatalogTransaction, Member
from penstock.lsn import Lsn


class CommitTimes:
    """The source of ascending times for the node's log. For one thread at a time."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def next(self, t: CatalogTransaction, moment: int) -> int:
        """Return microseconds since the Unix epoch for the transaction that is appended next."""
        if self._latest is None:
            self._latest = min(t.transactions.latest_commit_time(), now())
        self._latest = max(self._latest, min(moment, now()))
        return self._latest

    def look_again(self) -> None:
        """Read the latest time again, since another process has written to the node's log."""
        self._latest = None


def now() -> int:
    """Return the current time in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that is not in the node's log yet.

    - ``moment``: decides its place among others; ``time``: the time of the commit. Both are
      microseconds since the Unix epoch.
    - ``of_cut``: it has all tables of a subscription. Any other transaction is one commit of one
      table, or the commits of its ``group``.
    - ``block``: oids of the tables of its transaction block.
    - ``undone``: it takes back another commit of the block.
    - ``blocks``: ids of the transaction blocks whose commits are in it.
    - ``only_block``: it is one whole block, and nothing else.
    """

    members: tuple[Member, ...]
    moment: int
    time: int
    size: int
    changes: bool = True
    origin: str | None = None
    origin_lsn: Lsn | None = None
    of_cut: bool = False
    group: str | None = None
    block: frozenset[int] = frozenset()
    undone: bool = False
    blocks: frozenset[str] = frozenset()
    only_block: bool = False


def in_order(
    first: Mapping[int, Sequence[PendingTransaction]],
    again: Mapping[int, Sequence[PendingTransaction]],
) -> list[PendingTransaction]:
    """Merge the results of two passes into one order. ``first`` and ``again`` map each source to
    its transactions, in the source's order, with ascending moments."""
    latest = max((found[-1].moment for found in first.values() if found), default=None)
    if latest is None:
        return []
    sources = []
    for source in {**first, **again}:
        later = (found for found in again.get(source, ()) if found.moment <= latest)
        sources.append([*first.get(source, ()), *later])
    return list(heapq.merge(*sources, key=lambda found: found.moment))


def together(found: Sequence[PendingTransaction]) -> list[PendingTransaction]:
    """Return ``found`` with the commits of each group as one transaction.

    The transaction takes the place of the group's last commit, or else of its first. If other
    commits of the tables prevent both, the group's commits stay apart, since a table's commits must
    keep their order.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(found):
        if item.group is not None:
            places[item.group].append(place)
    # Each group starts from the order that the previous groups left.
    order: list[PendingTransaction | None] = list(found)
    for group, own in places.items():
        span = [item for item in order[own[0] : own[-1] + 1] if item is not None]
        if not _would_pass(span, group):
            place = own[-1]
        elif not _would_pass(span[::-1], group):
            place = own[0]
        else:
            continue
        members = by_relation(member for other in own for member in found[other].members)
        size = sum(found[other].size for other in own)
        for other in own:
            order[other] = None
        order[place] = replace(found[place], members=members, size=size)
    return [item for item in order if item is not None]


def follows(found: Sequence[PendingTransaction], versions: Mapping[int, int]) -> bool:
    """Tell whether each table's part of ``found`` begins where the node's log ends. ``versions``:
    the last version in this log, by oid. A table without one was dropped and does not count."""
    at = dict(versions)
    for member in (member for item in found for member in item.members):
        if at.get(member.relation, member.from_version) != member.from_version:
            return False
        if member.relation in at:
            at[member.relation] = member.to_version
    return True


def _would_pass(span: Sequence[PendingTransaction], group: str) -> bool:
    """Tell whether moving the group's commits to the end of ``span`` reorders a table's commits."""
    moved: set[int] = set()
    for item in span:
        relations = {member.relation for member in item.members}
        if item.group == group:
            moved |= relations
        elif moved & relations:
            return True
    return False


def by_relation(members: Iterable[Member]) -> tuple[Member, ...]:
    """Join the members of each table into one, since its commits follow one another."""
    whole: dict[int, Member] = {}
    for member in members:
        first = whole.get(member.relation, member)
        whole[member.relation] = replace(member, from_version=first.from_version)
    return tuple(whole.values())


log = logging.getLogger(__name__)


def without_unfinished(
    found: Sequence[PendingTransaction], unfinished: Collection[str | None]
) -> list[PendingTransaction]:
    """Return ``found`` without unfinished groups and without later commits of their tables."""
    waiting: set[int] = set()
    whole: list[PendingTransaction] = []
    for item in found:
        relations = {member.relation for member in item.members}
        if relations & waiting or (item.group is not None and item.group in unfinished):
            waiting |= relations
        else:
            whole.append(item)
    return whole
