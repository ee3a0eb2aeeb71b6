"""Slots that fall behind, seen against what Delta keeps.

In: slots, the log of transactions, the properties of tables. Out: a warning in the log while there
is time to act, and slots that are given up when they are older than ``max_slot_keep_age``. Nothing
is held back: VACUUM and log cleanup are run by others, who look at the tables' properties alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock.catalog import Catalog, LakeTransaction
from penstock.errors import PenstockError
from penstock.lakehouse.checkpoint import interval_seconds
from penstock.lakehouse.state import load
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.slots import WAL_REMOVED, Slots, SlotState

log = logging.getLogger(__name__)

_RETENTIONS: Final = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 1 week",
}


class Retention:
    """``max_keep_age_s``: seconds that a commit is waited for by a slot that nobody reads, 0: for
    ever. ``now``: seconds since the Unix epoch."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        slots: Slots,
        max_keep_age_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._slots = slots
        self.max_keep_age_s = max_keep_age_s
        self._now = now
        self._warned: dict[str, Lsn] = {}

    def check(self) -> None:
        """Look at every slot once. Raises what the catalog raises."""
        for state in self._slots.all():
            if state.slot.invalidation_reason is None:
                self._check(state)

    def _check(self, state: SlotState) -> None:
        name = state.slot.name
        with self._catalog.read() as t:
            waiting = t.transactions.after(state.slot.confirmed_flush_lsn, 1)
        if not waiting or not waiting[0].commit_time:
            return
        age = self._now() - waiting[0].commit_time / 1e6
        if self.max_keep_age_s and age > self.max_keep_age_s and state.active_pid is None:
            log.warning(
                'slot "%s" is given up: its oldest commit is %d s old (max_slot_keep_age)',
                name,
                age,
            )
            self._slots.invalidate(name, WAL_REMOVED)
        elif self._warned.get(name) != waiting[0].end:
            self._warn(name, waiting[0], age)

    def _warn(self, name: str, oldest: LakeTransaction, age: float) -> None:
        for member in oldest.members:
            for name_of_property, kept in self._retentions(member.uri).items():
                if age <= kept / 2:
                    continue
                log.warning(
                    'slot "%s" is %d s behind, and %s of table "%s" is %d s: the slot will be lost '
                    "when Delta removes what it needs",
                    name,
                    age,
                    name_of_property,
                    member.uri,
                    kept,
                )
                self._warned[name] = oldest.end
                return

    def _retentions(self, uri: str) -> Mapping[str, float]:
        """Seconds by property."""
        try:
            state = load(self._warehouse.storage, uri)
            properties = {} if state is None else state.properties
            return {
                name: interval_seconds(properties.get(name, default))
                for name, default in _RETENTIONS.items()
            }
        except Exception as error:  # one table that cannot be read says nothing of other slots
            reason = error.message if isinstance(error, PenstockError) else repr(error)
            log.warning('retention of table "%s" is not known: %s', uri, reason)
            return {}
