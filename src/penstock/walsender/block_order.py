"""Commits of transaction blocks over several tables: each block as one transaction, or not yet.

In: transactions that were found, in order. Out: the same, the commits of each block as one. A block
is there when all its tables have their commits, or when each commit of it was taken back; until
then what was found of it waits, with all that comes after it in its tables. So half a block is in
no log, whoever looks, and whenever.

What others have committed between the tables' commits stands before the block or after it, as it
stands in the tables' own logs; what stands between a commit and the one that takes it back becomes
a part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.walsender.commit_order import Found, by_relation, without_unfinished

_NONE: Final[Mapping[str, Collection[int]]] = {}


def waited_for(found: Sequence[Found], followed: Collection[int]) -> dict[str, set[int]]:
    """By block that is not there yet, oids of the tables whose commits it lacks, or those that take
    it back. ``followed``: oids of tables of which each commit is looked at."""
    blocks: dict[str, list[Found]] = defaultdict(list)
    for item in found:
        if item.block and item.group is not None:
            blocks[item.group].append(item)
    lacking = {group: _lacking(items, followed) for group, items in blocks.items()}
    return {group: relations for group, relations in lacking.items() if relations}


def whole_blocks(
    found: Sequence[Found],
    waiting: Mapping[str, Collection[int]],
    lost: Mapping[str, Collection[int]] = _NONE,
) -> list[Found]:
    """Without the blocks that are not there yet. ``waiting``: what ``waited_for`` has found;
    ``lost``: by block, what of that is not waited for any more."""
    unfinished = {
        group for group, relations in waiting.items() if set(relations) - set(lost.get(group, ()))
    }
    return without_unfinished(found, unfinished) if unfinished else list(found)


def _lacking(items: Sequence[Found], followed: Collection[int]) -> set[int]:
    there, undone = _put(items), _undone(items)
    return there - undone if undone else (set(followed) & items[0].block) - there


def _put(items: Sequence[Found]) -> set[int]:
    return {relation for item in items for relation in _relations(item)}


def _undone(items: Sequence[Found]) -> set[int]:
    return {relation for item in items if item.undone for relation in _relations(item)}


def one_by_block(found: Sequence[Found]) -> list[Found]:
    """The commits of each block, all of which are there, as one transaction."""
    order = list(found)
    for group in dict.fromkeys(item.group for item in found if item.block):
        places = [place for place, item in enumerate(order) if item.group == group]
        first, last = places[0], places[-1] + 1
        order[first:last] = _Span(order[first:last], group).divided()
    return order


@dataclass
class _Span:
    """From the first commit of a block to the last one."""

    items: Sequence[Found]
    group: str | None
    before: list[Found] = field(default_factory=list)
    within: list[Found] = field(default_factory=list)
    after: list[Found] = field(default_factory=list)

    def divided(self) -> list[Found]:
        """What comes before the block, the block, what comes after it."""
        begun: set[int] = set()
        ended: set[int] = set()  # relations of what comes after
        for place, item in enumerate(self.items):
            relations = _relations(item)
            own = item.group == self.group
            if own and relations & ended:  # each of two transactions would come before the other
                return [self._one(self.items)]
            if own or (relations & begun and relations & self._own_relations(place + 1)):
                self.within.append(item)
                begun |= relations
            elif relations & (begun | ended):
                self.after.append(item)
                ended |= relations
            else:
                self.before.append(item)
        return [*self.before, self._one(self.within), *self.after]

    def _own_relations(self, start: int) -> set[int]:
        own = (item for item in self.items[start:] if item.group == self.group)
        return {relation for item in own for relation in _relations(item)}

    def _one(self, items: Sequence[Found]) -> Found:
        members = by_relation(member for item in items for member in item.members)
        last = next(item for item in reversed(items) if item.group == self.group)
        # What was taken back changes nothing: the next commits of its tables start after it.
        # Others may have rewritten files of it, and say so of rows that stay: OPTIMIZE, too.
        others = [item for item in items if item.group != self.group]
        own = [item for item in items if item.group == self.group]
        undone = _undone(own)
        # where the log has lost one of the two, the other one is a change
        taken_back = undone == _put([item for item in own if not item.undone])
        blocks = frozenset[str]().union(*(item.blocks for item in items))
        return replace(
            last,
            members=members,
            moment=max(item.moment for item in items),
            time=max(item.time for item in items),
            size=sum(item.size for item in items),
            changes=bool(others) if taken_back else any(item.changes for item in items),
            group=None,
            block=frozenset(),
            undone=False,
            blocks=blocks - {self.group} if taken_back else blocks,
            only_block=not others and not undone,
        )


def _relations(item: Found) -> set[int]:
    return {member.relation for member in item.members}
