"""Whether a subscription has the tables that a session began with.

In: the catalog's change counter and its rows. Out: yes or no. A change of a table that the session
does not have, or cannot park, passes the table by; where the subscription has other tables by then,
it may be one of theirs. So no cut is made after such a change, and nothing is acknowledged: the
next session begins at the last cut and has the tables of then. What comes in after the look was
committed at the publisher before REFRESH had ended, or is looked at before the next cut.

A table that has left is its readers' from then on: what is staged is committed only while they are
the same, and what was staged before a reader's commit loses to it.

What it costs: two looks at the change counter a batch; the rows only where it has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.catalog.pg_subscription_rel import SubscriptionRel


class Membership:
    """Of one session, from before it opens its tables."""

    def __init__(
        self, generation: Callable[[], int], rels: Callable[[], Sequence[SubscriptionRel]]
    ) -> None:
        self._generation = generation
        self._rels = rels
        # Before the rows: what changes between the two is looked at again.
        self._looked_at = generation()
        self.rels: Final = tuple(rels())
        self.sync_ids: Final = frozenset(rel.sync_id for rel in self.rels)

    def holds(self) -> bool:
        """Whether they are the same still. Raises StorageError."""
        now = self._generation()
        if now != self._looked_at:
            if frozenset(rel.sync_id for rel in self._rels()) != self.sync_ids:
                return False
            self._looked_at = now
        return True
