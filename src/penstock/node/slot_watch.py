"""Questions to publishers about their WAL and the slots that keep it, for the statistics.

In: subscriptions, again and again. Out: each publisher's last answer. Each is asked on a thread of
its own, so that one that does not answer does not delay the numbers of the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import MISSING, RemoteSlot

log = logging.getLogger(__name__)

_INTERVAL: Final = 10.0
"""Seconds between two questions to a publisher."""

_PAUSE: Final = 60.0
"""Seconds after a failed question if the subscription is stopped: a server may count failed
logins."""

_APPLICATION_NAME: Final = "penstock status"


@dataclass(frozen=True, slots=True)
class PublisherAnswer:
    """A publisher's answer. ``at``: its time, in seconds since 1970. ``wal_status``: as in
    pg_replication_slots, or ``missing`` if there is no such slot; None for a subscription without
    one. ``in_danger``: the slot, if it may be lost soon."""

    at: float
    position: Lsn
    retained_bytes: int | None
    wal_status: str | None
    in_danger: RemoteSlot | None = None


class SlotWatch:
    """Asks publishers in the background, with at most one question at a time to each."""

    def __init__(self) -> None:
        self._known: dict[int, PublisherAnswer] = {}
        self._due: dict[int, float] = {}
        self._asking: set[int] = set()

    def told(self, subscription: Subscription) -> PublisherAnswer | None:
        """Return the publisher's last answer, None while there is none. Never waits."""
        oid, now = subscription.oid, time.monotonic()
        if now >= self._due.get(oid, 0.0) and oid not in self._asking:
            self._asking.add(oid)
            threading.Thread(target=self._ask, args=(subscription,), daemon=True).start()
        return self._known.get(oid)

    def _ask(self, subscription: Subscription) -> None:
        oid, pause = subscription.oid, _INTERVAL
        try:
            before, told = self._known.get(oid), ask(subscription)
            self._known[oid] = told
            if told.in_danger is not None and (before is None or before.in_danger is None):
                log.warning("%s", _warning(subscription, told.in_danger))
        except PenstockError as error:
            self._known.pop(oid, None)
            pause = _PAUSE if subscription.stopped else _INTERVAL
            log.debug("could not ask the publisher about its slot: %s", error.message)
        finally:
            self._due[oid] = time.monotonic() + pause
            self._asking.discard(oid)


def _warning(subscription: Subscription, slot: RemoteSlot) -> str:
    left = max(0, slot.safe_wal_size or 0)
    return (
        f'replication slot "{slot.name}" of subscription "{subscription.name}" may be lost soon: '
        f"the publisher keeps {slot.retained_bytes >> 20} MB of WAL for it and will keep "
        f"{left >> 20} MB more (wal_status {slot.wal_status}); let the subscription catch up, "
        "or raise max_slot_wal_keep_size there"
    )


def ask(subscription: Subscription) -> PublisherAnswer:
    """Ask one publisher. Raises what connecting and asking raise."""
    conninfo = ConnInfo.parse(subscription.conninfo)
    with Publisher.connect(conninfo, _APPLICATION_NAME) as publisher:
        position = publisher.current_wal_lsn()
        if subscription.slot_name is None:
            return PublisherAnswer(time.time(), position, None, None)
        slot = publisher.slot_state(subscription.slot_name)
        if slot is None:
            return PublisherAnswer(time.time(), position, None, MISSING)
        danger = slot if slot.in_danger else None
        return PublisherAnswer(time.time(), position, slot.retained_bytes, slot.wal_status, danger)


def ask_all(
    subscriptions: Iterable[Subscription], patience: float
) -> Mapping[int, PublisherAnswer]:
    """Ask all publishers side by side. Return the answers that come within ``patience`` seconds, by
    the subscription's oid."""
    found: dict[int, PublisherAnswer] = {}

    def one(subscription: Subscription) -> None:
        try:
            found[subscription.oid] = ask(subscription)
        except PenstockError as error:
            log.debug("could not ask the publisher about its slot: %s", error.message)

    threads = [threading.Thread(target=one, args=(s,), daemon=True) for s in subscriptions]
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(found)
