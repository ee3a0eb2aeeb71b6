"""Replication slots of this node as a publisher (slot.h, slotfuncs.c).

In: a connection inside a transaction. Out: frozen ``Slot`` rows, and moves that never go back.
Every write is on disk when the transaction ends, so a slot survives the node. Only the running node
knows who uses a slot at the moment. Temporary slots are not kept here. A dropped slot is hidden,
but can be brought back until it is forgotten: see ``drop``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    RowMapping,
    String,
    Table,
    select,
)

from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.errors import ConfigurationLimitExceeded, DuplicateObject, UndefinedObject
from penstock.lsn import Lsn

_TABLE = Table(
    "penstock_replication_slot",
    METADATA,
    Column("slot_name", String(64), primary_key=True),
    Column("plugin", String(64), nullable=False),
    Column("datoid", BigInteger, nullable=False),
    Column("restart_lsn", LsnColumn, nullable=False),
    Column("confirmed_flush_lsn", LsnColumn, nullable=False),
    Column("two_phase", Boolean, nullable=False),
    Column("two_phase_at", LsnColumn),
    Column("failover", Boolean, nullable=False),
    Column("inactive_since", Float(53)),
    Column("invalidation_reason", String(32)),
    # NULL in rows that older versions have written: not dropped
    Column("dropped", Boolean),
)
_THERE: Final = _TABLE.c.dropped.is_not(True)


@dataclass(frozen=True, slots=True)
class Slot:
    """A logical slot. Transactions that end after ``confirmed_flush_lsn`` are still to be sent.

    ``restart_lsn``: the slot needs the lake's commits from here on. ``invalidation_reason``: None,
    or PostgreSQL's name for it (``wal_removed``, ``rows_removed`` ...). ``inactive_since``: seconds
    since 1970.
    """

    name: str
    plugin: str
    database: int
    restart_lsn: Lsn
    confirmed_flush_lsn: Lsn
    two_phase: bool = False
    two_phase_at: Lsn | None = None
    failover: bool = False
    inactive_since: float | None = None
    invalidation_reason: str | None = None


class PgReplicationSlots:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Slot, ...]:
        """Return every slot, sorted by name."""
        rows = self._connection.execute(select(_TABLE).where(_THERE).order_by(_TABLE.c.slot_name))
        return tuple(_slot(row) for row in rows.mappings())

    def find(self, name: str) -> Slot | None:
        """Return the slot of that name, or None."""
        query = select(_TABLE).where(_TABLE.c.slot_name == name, _THERE)
        found = self._connection.execute(query).mappings().one_or_none()
        return None if found is None else _slot(found)

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
        self._connection.execute(_TABLE.insert().values(**_values(slot)))

    def confirm(self, name: str, flush: Lsn, restart: Lsn) -> Slot:
        """Move a slot forward; positions never go back (LogicalConfirmReceivedLocation)."""
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
        same = _TABLE.c.slot_name == slot.name
        self._connection.execute(_TABLE.update().where(same, _THERE).values(**_values(slot)))

    def drop(self, name: str) -> None:
        """Hide a slot until ``forget`` or ``bring_back``; no effect when it is gone.

        A table's synchronization worker drops its slot within the transaction that records the
        table as done (tablesync.c). If this node goes down before it has answered, the worker comes
        back and expects its slot; ``bring_back`` then restores it.
        """
        same = _TABLE.c.slot_name == name
        self._connection.execute(_TABLE.update().where(same).values(dropped=True))

    def bring_back(self, name: str) -> Slot:
        """Undo ``drop``. Raises UndefinedObject (42704) if there is no slot, or it was
        forgotten."""
        same = _TABLE.c.slot_name == name
        self._connection.execute(_TABLE.update().where(same).values(dropped=False))
        return self.get(name)

    def forget(self, name: str) -> None:
        """Remove a dropped slot's row; no effect on a slot that is not dropped."""
        gone = _TABLE.delete().where(_TABLE.c.slot_name == name, _TABLE.c.dropped.is_(True))
        self._connection.execute(gone)

    def delete(self, name: str) -> None:
        """Remove a slot for good; no effect when it is gone."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.slot_name == name))


def _values(slot: Slot) -> dict[str, Any]:
    return {
        "slot_name": slot.name,
        "plugin": slot.plugin,
        "datoid": slot.database,
        "restart_lsn": slot.restart_lsn,
        "confirmed_flush_lsn": slot.confirmed_flush_lsn,
        "two_phase": slot.two_phase,
        "two_phase_at": slot.two_phase_at,
        "failover": slot.failover,
        "inactive_since": slot.inactive_since,
        "invalidation_reason": slot.invalidation_reason,
    }


def _slot(row: RowMapping) -> Slot:
    return Slot(
        name=row["slot_name"],
        plugin=row["plugin"],
        database=row["datoid"],
        restart_lsn=row["restart_lsn"],
        confirmed_flush_lsn=row["confirmed_flush_lsn"],
        two_phase=row["two_phase"],
        two_phase_at=row["two_phase_at"],
        failover=row["failover"],
        inactive_since=row["inactive_since"],
        invalidation_reason=row["invalidation_reason"],
    )
