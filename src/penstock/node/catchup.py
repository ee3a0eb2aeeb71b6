"""Waiting until a subscription has reached a position (``Node.wait_for``, ``penstock run
--until-caught-up``).

In: a ``Node``, which knows the subscriptions' states and cuts. Out: a value that tells in a line
how far a subscription is, whether or not it got there; or the error that stopped it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.lakehouse.cuts import Cut
from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus

_POLL: Final = 0.05
_STEP: Final = 1.0
"""Seconds between two checks whether to stop waiting."""


@dataclass(frozen=True, slots=True)
class CatchupState:
    """The progress of a subscription. ``position``: the publisher's position at the start; ``cut``:
    the last cut's, if there is one.

    ``waiting``: tables that are in no cut yet; ``parked``: tables that an error keeps out of them.
    """

    subscription: str
    position: Lsn
    cut: Lsn | None
    waiting: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        """Tell whether a cut at or after the position holds every table that is not parked."""
        return self.cut is not None and self.cut >= self.position and not self.waiting

    def text(self) -> str:
        """Return a line for people."""
        at = "has no cut yet" if self.cut is None else f"has a cut at {self.cut}"
        if self.reached:
            parked = f", without parked tables: {', '.join(self.parked)}" if self.parked else ""
            return f"{self.subscription}: {at}{parked}"
        waiting = f", without tables: {', '.join(self.waiting)}" if self.waiting else ""
        return f"{self.subscription}: not caught up, {at} of {self.position}{waiting}"


def catchup_state(status: SubscriptionStatus, position: Lsn, cut: Cut | None) -> CatchupState:
    """Return the progress of a subscription. ``cut``: its last one."""
    return CatchupState(
        status.name,
        position,
        None if cut is None else cut.lsn,
        waiting=tuple(table.name for table in status.tables if not (table.ready or table.parked)),
        parked=tuple(table.name for table in status.tables if table.parked),
    )


class FollowingNode(Protocol):
    """The part of ``Node`` that is used here."""

    def wait_for(
        self, lsn: Lsn | str, *, subscription: str | None = None, timeout: float = 60.0
    ) -> Cut: ...

    def status(self) -> Sequence[SubscriptionStatus]: ...

    def cut(self, subscription: str | None = None) -> Cut | None: ...


def wait_for_cut(
    node: FollowingNode, name: str, position: Lsn, timeout: float, check: Callable[[str], None]
) -> Cut:
    """Wait until a subscription has a cut at or after ``position``. ``check`` raises the error that
    has stopped it. Raises NotInPrerequisiteState after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        cut = node.cut(name)
        if cut is not None and cut.lsn >= position and all_ready(node.status(), name):
            return cut
        check(name)
        if time.monotonic() >= deadline:
            raise NotInPrerequisiteState(
                f'subscription "{name}" has not reached {position} within {timeout:g} s',
                detail=f"The last cut is at {cut.lsn if cut else 'no LSN yet'}.",
                hint="Look at: penstock status",
            )
        time.sleep(_POLL)


def wait_for_all(
    node: FollowingNode, positions: Mapping[str, Lsn], timeout: float, stop: threading.Event | None
) -> Sequence[CatchupState]:
    """Wait until each subscription has a cut at or after its position, or until ``stop``. Raises as
    ``wait_for``."""
    deadline = time.monotonic() + timeout
    for name, lsn in positions.items():
        while not (stop is not None and stop.is_set()):
            step = min(_STEP, max(0.0, deadline - time.monotonic()))
            try:
                node.wait_for(lsn, subscription=name, timeout=step)
                break
            except NotInPrerequisiteState:
                if time.monotonic() >= deadline:
                    raise
    status = {s.name: s for s in node.status()}
    return [
        catchup_state(status[n], lsn, node.cut(n)) for n, lsn in positions.items() if n in status
    ]


def all_ready(statuses: Iterable[SubscriptionStatus], name: str) -> bool:
    """Tell whether the cuts of a subscription hold every table that is not parked."""
    return all(t.ready or t.parked for s in statuses if s.name == name for t in s.tables)


def check_not_stopped(statuses: Iterable[SubscriptionStatus], name: str) -> None:
    """Raise the error that has stopped a subscription, if any: it will not get any further."""
    for status in statuses:
        if status.name == name and status.stopped:
            raise PenstockError(
                f'subscription "{name}" has stopped: {status.error}',
                detail=status.error_detail,
                hint=status.error_hint,
            )
