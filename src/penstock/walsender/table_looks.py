"""New commits of the tables that are followed, read from the logs that have gone on and no others.

In: what is followed, and how far. Out: which logs go on after that, and what was committed there.
The order between tables is left to ``commit_order``.

The cost of a look where nothing is new is one system call a table in a folder of this machine, and
in an object store one request a table. What is read grows with the commits that are new.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog import LakeTable
from penstock.walsender.commit_order import Found
from penstock.walsender.following import Followed
from penstock.walsender.own_commits import Owned, OwnedTable, found_alone, walk
from penstock.walsender.table_logs import TableLogs
from penstock.walsender.troubles import Troubles

_COMMITS: Final = "commits"
_LATELY_S: Final = 60.0
"""Who has committed within that time is likely to do it again."""
_FEW: Final = 16
"""So many tables are watched whether they have changed lately or not."""
_MANY: Final = 100
"""And not more of those that have."""


class TableLooks:
    """For one thread at a time."""

    def __init__(self, logs: TableLogs, troubles: Troubles) -> None:
        self._logs = logs
        self._troubles = troubles
        self._grown_at: Mapping[int, int] = {}
        self._changed: dict[int, float] = {}

    def grown(self, followed: Followed) -> frozenset[int]:
        """Oids of the tables whose logs may have more; those that could not be read, too."""
        at = {oid: sequenced.version for oid, sequenced in followed.at.items()}
        found = {table.oid for table in self._logs.grown(followed.tables, at)}
        troubled = self._troubles.of(_COMMITS)
        if troubled:
            found |= {t.oid for t in followed.tables if t.qualified_name in troubled}
        self._grown_at = {oid: at[oid] for oid in found}
        return frozenset(found)

    def own(self, followed: Followed, grown: Collection[int]) -> dict[int, list[Found]]:
        """New commits of the tables of which each commit is a transaction."""
        return self._look((t for t in followed.own() if t.oid in grown), followed, {})

    def again(
        self, followed: Followed, before: Mapping[int, Sequence[Found]]
    ) -> dict[int, list[Found]]:
        """The same once more, of all such tables, after what was found ``before``."""
        tables = list(followed.own())
        at = {
            table.oid: before[table.oid][-1].members[0].to_version
            if table.oid in before
            else followed.at[table.oid].version
            for table in tables
        }
        return self._look(self._logs.grown(tables, at), followed, before)

    def _look(
        self, tables: Iterable[LakeTable], followed: Followed, behind: Mapping[int, Sequence[Found]]
    ) -> dict[int, list[Found]]:
        found: dict[int, list[Found]] = {}
        for table in tables:
            commits: list[Found] = []
            before = behind.get(table.oid)
            version, moment = followed.at[table.oid].version, 0
            if before:
                version, moment = before[-1].members[0].to_version, before[-1].moment
            with self._troubles.kept(_COMMITS, table.qualified_name):
                for commit, committed in self._logs.after(table, version):
                    # A clock may go back; commits of a table do not change places.
                    moment = max(moment, committed)
                    alone = found_alone(table, commit, moment, followed.subscriptions)
                    commits.append(
                        replace(alone, group=commit.group, block=commit.block, undone=commit.undone)
                    )
            found[table.oid] = commits
        return found

    def owned(self, followed: Followed, grown: Collection[int]) -> Owned:
        """Tables that subscriptions maintain, with what others have committed to them."""
        if not followed.owners:
            return Owned(())
        subscriptions = {subscription.oid: subscription for subscription in followed.subscriptions}
        found: list[OwnedTable] = []
        for table in followed.tables:
            owner = followed.owners.get((table.schema, table.name))
            if owner is None:
                continue
            at = followed.at[table.oid]
            if table.oid not in grown:
                found.append(OwnedTable(table, owner, (), at, None))
                continue
            with self._troubles.kept(_COMMITS, table.qualified_name):
                maintains = subscriptions[owner]
                found.append(walk(self._logs, table, at, maintains, followed.subscriptions))
        return Owned(found)

    def changed(self, relations: Iterable[int]) -> None:
        """Commits of these tables are in the log of transactions now."""
        self._changed |= dict.fromkeys(relations, time.monotonic())

    def watched(self, followed: Followed) -> tuple[str, ...]:
        """Paths of entries that may come next: of the tables that have changed lately, and that do
        not wait for something else with the entry that comes next."""
        since = time.monotonic() - _LATELY_S
        lately = sorted((at, oid) for oid, at in self._changed.items() if at >= since)[-_MANY:]
        self._changed = {oid: at for at, oid in lately}
        tables = list(followed.tables)
        if len(tables) > _FEW:
            tables = [table for table in tables if table.oid in self._changed]
        paths = (
            self._logs.next_path(table, followed.at[table.oid].version)
            for table in tables
            if (table.schema, table.name) not in followed.owners
            and self._grown_at.get(table.oid) != followed.at[table.oid].version
        )
        return tuple(path for path in paths if path is not None)
