"""How far a subscription is on its way to a position (``Node.wait_for``, ``penstock run
--until-caught-up``).

In: what ``Node`` knows of it. Out: a value that says so in a line, whether or not it got there; or
the error that stopped it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.lakehouse.cuts import Cut
from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """``wanted``: the publisher's position at the start; ``cut``: the last cut, if there is one.

    ``waiting``: tables that are in no cut yet; ``parked``: those that an error keeps out of them.
    """

    subscription: str
    wanted: Lsn
    cut: Lsn | None
    waiting: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether a cut at or after the position holds every table that is not parked."""
        return self.cut is not None and self.cut >= self.wanted and not self.waiting

    def text(self) -> str:
        """A line for people."""
        at = "has no cut yet" if self.cut is None else f"has a cut at {self.cut}"
        if self.reached:
            parked = f", without parked tables: {', '.join(self.parked)}" if self.parked else ""
            return f"{self.subscription}: {at}{parked}"
        waiting = f", without tables: {', '.join(self.waiting)}" if self.waiting else ""
        return f"{self.subscription}: not caught up, {at} of {self.wanted}{waiting}"


def caught_up(status: SubscriptionStatus, wanted: Lsn, cut: Cut | None) -> CaughtUp:
    """How far a subscription is. ``cut``: its last one."""
    return CaughtUp(
        status.name,
        wanted,
        None if cut is None else cut.lsn,
        waiting=tuple(table.name for table in status.tables if not (table.ready or table.parked)),
        parked=tuple(table.name for table in status.tables if table.parked),
    )


def all_ready(statuses: Iterable[SubscriptionStatus], name: str) -> bool:
    """Whether the cuts of a subscription hold every table that is not parked."""
    return all(t.ready or t.parked for s in statuses if s.name == name for t in s.tables)


def check_not_stopped(statuses: Iterable[SubscriptionStatus], name: str) -> None:
    """Raises the error that has stopped a subscription: it will not get any further."""
    for status in statuses:
        if status.name == name and status.stopped:
            raise PenstockError(
                f'subscription "{name}" has stopped: {status.error}',
                detail=status.error_detail,
                hint=status.error_hint,
            )
