"""In which order commits that were found together go into the log.

In: what two looks at every table found. Out: transactions in order. Tables are looked at one after
the other, so the first look may find a commit and miss one that came before it, in a table that it
had passed by then; the second look begins when the first is over, and finds it. What only the
second one found may have been preceded likewise: where it is later than everything that the first
one found, it is left for the next time.

Between tables the times that the writers wrote decide, and nothing else can: clocks of several
writers may disagree, and a writer's clock may have gone back. Within a table the log decides.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.catalog import Member
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Found:
    """A transaction that is not in the log yet. ``moment``: where it stands among others,
    ``time``: when it was committed; microseconds since the Unix epoch. ``of_cut``: over all tables
    of a subscription; any other is one commit of one table, or of those of its ``group``."""

    members: tuple[Member, ...]
    moment: int
    time: int
    size: int
    changes: bool = True
    origin: str | None = None
    origin_lsn: Lsn | None = None
    of_cut: bool = False
    group: str | None = None


def in_order(
    first: Mapping[int, Sequence[Found]], again: Mapping[int, Sequence[Found]]
) -> list[Found]:
    """``first`` and ``again``: by source, in its order, with moments that do not go back."""
    latest = max((found[-1].moment for found in first.values() if found), default=None)
    if latest is None:
        return []
    sources = []
    for source in {**first, **again}:
        later = (found for found in again.get(source, ()) if found.moment <= latest)
        sources.append([*first.get(source, ()), *later])
    return list(heapq.merge(*sources, key=lambda found: found.moment))


def together(found: Sequence[Found]) -> list[Found]:
    """``found`` with the commits of each group as one transaction, in the place of the last.

    Where another commit of one of the tables stands between them, they stay apart: a table's
    commits do not change places.
    """
    places: dict[str, list[int]] = defaultdict(list)
    for place, item in enumerate(found):
        if item.group is not None:
            places[item.group].append(place)
    left_out: set[int] = set()
    joined: dict[int, Found] = {}
    for group, own in places.items():
        members = tuple(member for place in own for member in found[place].members)
        relations = {member.relation for member in members}
        between = (item for item in found[own[0] : own[-1]] if item.group != group)
        if len(relations) < len(members) or any(
            member.relation in relations for item in between for member in item.members
        ):
            continue
        left_out |= set(own[:-1])
        size = sum(found[place].size for place in own)
        joined[own[-1]] = replace(found[own[-1]], members=members, size=size)
    return [joined.get(n, item) for n, item in enumerate(found) if n not in left_out]


def follows(found: Sequence[Found], versions: Mapping[int, int]) -> bool:
    """Whether each table's part of ``found`` begins where the log ends. ``versions``: by table oid,
    how far the log goes; a table that is not there was dropped, and its part does not count."""
    at = dict(versions)
    for member in (member for item in found for member in item.members):
        if at.get(member.relation, member.from_version) != member.from_version:
            return False
        if member.relation in at:
            at[member.relation] = member.to_version
    return True
