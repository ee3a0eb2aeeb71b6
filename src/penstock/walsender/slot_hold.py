"""The calls of one query that read one slot: they hold it together.

In: calls as they are opened, drawn and closed. Out: where each begins to read: as with a server,
which runs one function after the other, behind what an earlier one has got. The slot is given back
with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from penstock.catalog import Slot
from penstock.errors import ObjectInUse
from penstock.lsn import Lsn
from penstock.walsender.slots import Slots


class Call(Protocol):
    """A call as others of its query see it."""

    @property
    def moves(self) -> bool:
        """Whether it moves the slot."""

    @property
    def position(self) -> Lsn:
        """The end of what it has read."""

    @property
    def under_way(self) -> bool:
        """Whether some of its output was drawn, and not all."""


class SlotHold:
    """A slot that is held. For one thread at a time."""

    def __init__(self, slots: Slots, name: str, pid: int, version: int) -> None:
        """Raises PenstockError, as ``Slots.held``."""
        self._stack = ExitStack()
        self.pid: Final = pid
        self._calls: list[Call] = []
        self.slot: Final[Slot] = self._stack.enter_context(slots.held(name, pid, version=version))

    @property
    def is_held(self) -> bool:
        """False when the last call has left."""
        return bool(self._calls)

    def enter(self, call: Call) -> None:
        """One more call."""
        self._calls.append(call)

    def leave(self, call: Call) -> None:
        """It is closed."""
        self._calls.remove(call)
        if not self._calls:
            self._stack.close()

    def start(self, call: Call) -> Lsn:
        """Where a call begins, whose first row is drawn. Raises ObjectInUse: one of both moves the
        slot, and the other one has given a part of its rows."""
        others: Sequence[Call] = [other for other in self._calls if other is not call]
        if any(other.under_way and (other.moves or call.moves) for other in others):
            raise ObjectInUse(
                f'replication slot "{self.slot.name}" is active for PID {self.pid}',
                hint="The query takes rows of two functions that read the slot by turns: "
                "materialize those of one, by WITH ... AS MATERIALIZED.",
            )
        moved = (other.position for other in others if other.moves)
        return max((self.slot.confirmed_flush_lsn, *moved))
