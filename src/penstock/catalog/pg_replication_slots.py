"""Replication slots of this node as a publisher (slot.h, slotfuncs.c).

Every write is on disk when the transaction ends, so a slot survives the node. Only the running node
knows which stream uses a slot. Temporary slots are not kept here. A dropped slot is hidden, but can
be brought back until it is forgotten (``drop``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from sqlalchemy import BigInteger, Boolean, Column, Float, String

from penstock.catalog.metadata import LsnColumn, StoredTable, TableAccess
from penstock.errors import ConfigurationLimitExceeded, DuplicateObject, UndefinedObject
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical slot. Transactions that end after ``confirmed_flush_lsn`` are still to be sent.

    ``restart_lsn``: the LSN from which the slot needs the lake's commits.
    ``invalidation_reason``: PostgreSQL's name for the reason (``wal_removed``, ``rows_removed``
    ...); None for a valid slot. ``inactive_since``: seconds since 1970.
    """

    name: Annotated[str, Column("slot_name", String(64), primary_key=True)]
    plugin: Annotated[str, Column("plugin", String(64), nullable=False)]
    database: Annotated[int, Column("datoid", BigInteger, nullable=False)]
    restart_lsn: Annotated[Lsn, Column("restart_lsn", LsnColumn, nullable=False)]
    confirmed_flush_lsn: Annotated[Lsn, Column("confirmed_flush_lsn", LsnColumn, nullable=False)]
    two_phase: Annotated[bool, Column("two_phase", Boolean, nullable=False)] = False
    two_phase_at: Annotated[Lsn | None, Column("two_phase_at", LsnColumn)] = None
    failover: Annotated[bool, Column("failover", Boolean, nullable=False)] = False
    inactive_since: Annotated[float | None, Column("inactive_since", Float(53))] = None
    invalidation_reason: Annotated[str | None, Column("invalidation_reason", String(32))] = None


_TABLE: Final = StoredTable(
    "penstock_replication_slot",
    Slot,
    # NULL in rows that older versions have written: not dropped
    Column("dropped", Boolean),
)
_THERE: Final = _TABLE.c.dropped.is_not(True)


class PgReplicationSlots(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[Slot, ...]:
        """Return every slot, sorted by name."""
        return _TABLE.all(self.connection, _THERE)

    def find(self, name: str) -> Slot | None:
        """Return the slot of that name, or None."""
        return _TABLE.find(self.connection, _TABLE.c.slot_name == name, _THERE)

    def get(self, name: str) -> Slot:
        """Return the slot of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'replication slot "{name}" does not exist')
        return found

    def create(self, slot: Slot, most: int) -> None:
        """Insert a slot; ``most``: max_replication_slots. Raises DuplicateObject, PenstockError
        53400 (ReplicationSlotCreate)."""
        slots = self.all()
        if any(other.name == slot.name for other in slots):
            raise DuplicateObject(f'replication slot "{slot.name}" already exists')
        if len(slots) >= most:
            raise ConfigurationLimitExceeded(
                "all replication slots are in use",
                hint='Free one or increase "max_replication_slots".',
            )
        self.forget(slot.name)
        _TABLE.insert(self.connection, slot)

    def confirm(self, name: str, flush: Lsn, restart: Lsn) -> Slot:
        """Move a slot forward; its LSNs never go back (LogicalConfirmReceivedLocation)."""
        slot = self.get(name)
        moved = replace(
            slot,
            confirmed_flush_lsn=max(slot.confirmed_flush_lsn, flush),
            restart_lsn=max(slot.restart_lsn, restart),
        )
        if moved != slot:
            self.save(moved)
        return moved

    def save(self, slot: Slot) -> None:
        """Write a changed row back (same name); no effect when it is gone."""
        _TABLE.update(self.connection, slot, _THERE)

    def drop(self, name: str) -> None:
        """Hide a slot until ``forget`` or ``bring_back``; no effect when it is gone.

        A table's synchronization worker drops its slot within the transaction that records the
        table as done (tablesync.c). If this node goes down before it has answered, the worker comes
        back and expects its slot; ``bring_back`` then restores it.
        """
        same = _TABLE.c.slot_name == name
        self.connection.execute(_TABLE.table.update().where(same).values(dropped=True))

    def bring_back(self, name: str) -> Slot:
        """Undo ``drop``. Raises UndefinedObject (42704) if there is no slot, or it was
        forgotten."""
        same = _TABLE.c.slot_name == name
        self.connection.execute(_TABLE.table.update().where(same).values(dropped=False))
        return self.get(name)

    def forget(self, name: str) -> None:
        """Remove a dropped slot's row; no effect on a slot that is not dropped."""
        same = _TABLE.c.slot_name == name
        _TABLE.delete(self.connection, same, _TABLE.c.dropped.is_(True))

    def delete(self, name: str) -> None:
        """Remove a slot for good; no effect when it is gone."""
        _TABLE.delete(self.connection, _TABLE.c.slot_name == name)
