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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.catalog import Member
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Found:
    """A transaction that is not in the log yet. ``moment``: where it stands among others,
    ``time``: when it was committed; microseconds since the Unix epoch. ``of_cut``: over all tables
    of a subscription; any other is one commit of one table."""

    members: tuple[Member, ...]
    moment: int
    time: int
    size: int
    changes: bool = True
    origin: str | None = None
    origin_lsn: Lsn | None = None
    of_cut: bool = False


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
