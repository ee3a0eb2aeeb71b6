"""What the publishers' slots retain, for the numbers of subscriptions.

In: subscriptions, again and again. Out: what each publisher has told last. Each is asked on a
thread of its own, so that one that does not answer keeps nobody else's numbers waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)

_INTERVAL: Final = 10.0
"""Seconds between two questions to a publisher."""


class SlotWatch:
    """Asks in the background; at most one question to a publisher at a time."""

    def __init__(self) -> None:
        self._known: dict[int, int | None] = {}
        self._asked: dict[int, float] = {}
        self._asking: set[int] = set()

    def retained_bytes(self, subscription: Subscription) -> int | None:
        """What was told last; None while nothing is known. Never waits."""
        oid, now = subscription.oid, time.monotonic()
        due = now - self._asked.get(oid, -_INTERVAL) >= _INTERVAL
        if due and oid not in self._asking and subscription.slot_name is not None:
            self._asked[oid] = now
            self._asking.add(oid)
            threading.Thread(
                target=self._ask, args=(subscription, subscription.slot_name), daemon=True
            ).start()
        return self._known.get(oid)

    def _ask(self, subscription: Subscription, slot_name: str) -> None:
        try:
            conninfo = ConnInfo.parse(subscription.conninfo)
            with Publisher.connect(conninfo, subscription.name) as publisher:
                slot = publisher.slot_state(slot_name)
            self._known[subscription.oid] = None if slot is None else slot.retained_bytes
        except PenstockError as error:
            log.debug("could not ask the publisher about its slot: %s", error.message)
        finally:
            self._asking.discard(subscription.oid)
