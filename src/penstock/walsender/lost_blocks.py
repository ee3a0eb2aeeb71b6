"""Blocks whose commits to a table are gone from its log: their other tables wait no longer.

In: blocks that are not there yet, with the tables whose commits they lack. Out: those of these
tables that are not waited for. A block that the catalog does not note any more is over: what its
tables' logs lack when they are read after that, they never get. Where such a log has a gap, the
place of it is in the log of transactions before the rest of the block is, so that a stream of both
tables stops there, and no stream is sent half a block.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from penstock.catalog import Catalog, LakeTable, Sequenced
from penstock.walsender.commit_order import Found
from penstock.walsender.following import Followed, Following
from penstock.walsender.troubles import Troubles

log = logging.getLogger(__name__)


class LostBlocks:
    """For one thread at a time."""

    def __init__(self, catalog: Catalog, following: Following, troubles: Troubles) -> None:
        self._catalog = catalog
        self._following = following
        self._troubles = troubles
        self._over: frozenset[str] = frozenset()
        """Blocks that were over before this look at the logs."""

    def lost(
        self,
        there: Sequence[Found],
        waiting: Mapping[str, Collection[int]],
        followed: Followed,
    ) -> Mapping[str, Collection[int]]:
        """By block, oids of tables. ``waiting``: likewise, what ``there`` lacks of blocks."""
        known, self._over = self._over, frozenset()
        if not waiting:
            return {}
        with self._catalog.read() as t:
            noted = {block.block for block in t.block_commits.all()}
        self._over = frozenset(waiting.keys() - noted)
        tables = {table.oid: table for table in followed.tables}
        found: dict[str, set[int]] = defaultdict(set)
        for group in self._over & known:
            here = {m.relation for item in there if item.group == group for m in item.members}
            for oid in waiting[group]:
                with self._troubles.kept("log", tables[oid].qualified_name):
                    put = self._put(tables[oid], followed.at[oid], group)
                    if put == (1 if oid in here else 0):
                        found[group].add(oid)
            if found[group] >= set(waiting[group]):
                names = ", ".join(sorted(tables[oid].qualified_name for oid in found[group]))
                log.error(
                    "commits of a transaction block to %s are gone from the log: its other tables "
                    "go on without them",
                    names,
                )
        return found

    def _put(self, table: LakeTable, at: Sequenced, group: str) -> int | None:
        """How many commits of the block the log has, from ``at`` to its end; None: it is not to be
        said now. A gap in it is told first."""
        logs = self._following.logs
        if not logs.same(table, at):
            return None  # ``check_logs`` sees to it
        last, count = at.version, 0
        for commit, _ in logs.after(table, at.version):
            last, count = commit.version, count + (commit.group == group)
        if logs.has_entry(table, last + 1):
            return None  # it has come meanwhile
        newest = logs.newest(table)  # which takes a listing: it is known of a gap by nothing else
        if newest > last:
            if not logs.has_entry(table, last + 1):
                self._following.gap(table, at, newest)
            return None
        return count
