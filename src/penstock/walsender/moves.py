"""Moves of rows between tables that were stopped in between, and go on.

In: commits that are not in the log of transactions yet. Out: the commits that they lack, put into
the logs of the tables that the rows go to; and what may go into the log of transactions. Where a
table cannot be written now, what has left for it waits, and so does what comes after it in the
tables that it has left: nobody is told that rows have gone before they have come.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from penstock.catalog import LakeTable
from penstock.lakehouse.row_moves import arrive
from penstock.lakehouse.warehouse import Warehouse
from penstock.walsender.commit_order import Found
from penstock.walsender.troubles import Troubles

log = logging.getLogger(__name__)


def finish_moves(
    warehouse: Warehouse,
    tables: Mapping[int, LakeTable],
    found: Sequence[Found],
    troubles: Troubles,
) -> tuple[bool, list[Found]]:
    """Whether anything was put, and what of ``found`` is whole. ``tables``: by oid."""
    arrived = False
    unfinished: set[str | None] = set()
    for item in found:
        for arrivals in item.arrivals:
            table = tables.get(arrivals.relation)
            if table is None or table.uri is None:
                log.error("rows were moved to a table that was dropped (%d)", arrivals.relation)
                continue
            here = False
            with troubles.kept("moved rows", table.qualified_name):
                put = arrive(warehouse.storage, warehouse.store, table.uri, arrivals)
                arrived, here = arrived or put, True
            if not here:
                unfinished.add(arrivals.group)
    return arrived, _whole(found, unfinished)


def _whole(found: Sequence[Found], unfinished: Collection[str | None]) -> list[Found]:
    """Without what belongs to an unfinished group, and what comes after it in its tables."""
    waiting: set[int] = set()
    whole: list[Found] = []
    for item in found:
        relations = {member.relation for member in item.members}
        if relations & waiting or (item.group is not None and item.group in unfinished):
            waiting |= relations
        else:
            whole.append(item)
    return whole
