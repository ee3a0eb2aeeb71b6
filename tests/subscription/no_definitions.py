"""A watch of definitions that never looks: for tests without a publisher."""

from __future__ import annotations

from collections.abc import Collection

from penstock.catalog.pg_subscription import Subscription
from penstock.lsn import Lsn
from penstock.subscription.definition_watch import DefinitionWatch, WatchedTarget
from penstock.walreceiver.connection import Connection


def a_subscription(app_id: str = "penstock-1") -> Subscription:
    return Subscription(
        oid=1,
        name="s",
        conninfo="",
        publications=("p",),
        slot_name=None,
        enabled=True,
        app_id=app_id,
    )


def no_definitions() -> DefinitionWatch:
    def connect() -> Connection:
        raise AssertionError("there is no publisher")

    return _Blind(a_subscription(), lambda rel, text: None, connect)


class _Blind(DefinitionWatch):
    def covers(self, target: WatchedTarget, lsn: Lsn, xids: Collection[int]) -> bool:
        return True
