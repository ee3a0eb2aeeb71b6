"""Whether a subscription, and its tables, are those that a session began with.

In: the catalog's change counter and its rows. Out: yes or no. A change of a table that the session
does not have, or cannot park, passes the table by; where the subscription has other tables by then,
it may be one of theirs. So no cut is made after such a change, and nothing is acknowledged: the
next session begins at the last cut and has the tables of then. What comes in after the look was
committed at the publisher before REFRESH had ended, or is looked at before the next cut.

Its publications say which columns and rows of a table are published, and are altered together with
its tables: both are read at once, and a session never has the ones without the others.

A table that has left is its readers' from then on: what is staged is committed only while they are
the same, and what was staged before a reader's commit loses to it.

What it costs: two looks at the change counter a batch; the rows only where it has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel


class Membership:
    """Of one session, from before it opens its tables."""

    def __init__(
        self,
        subscription: Subscription,
        generation: Callable[[], int],
        now: Callable[[], tuple[Subscription | None, Sequence[SubscriptionRel]]],
    ) -> None:
        """``subscription``: as the session's worker has it. ``now``: as it and its tables are."""
        self._subscription = subscription
        self._generation = generation
        self._now = now
        # Before the rows: what changes between the two is looked at again.
        self._looked_at = generation()
        found, rels = now()
        self.altered = not _same(found, subscription)
        """Whether the subscription is another one than the worker's: no session of it may go on."""
        self.rels: Final = tuple(rels)
        self.sync_ids: Final = frozenset(rel.sync_id for rel in self.rels)

    def holds(self) -> bool:
        """Whether they are the same still. Raises StorageError."""
        now = self._generation()
        if now != self._looked_at:
            found, rels = self._now()
            self.altered = not _same(found, self._subscription)
            if self.altered or frozenset(rel.sync_id for rel in rels) != self.sync_ids:
                return False
            self._looked_at = now
        return True


def _same(found: Subscription | None, subscription: Subscription) -> bool:
    return found is not None and found.followed_as(subscription)
