"""Which changes of a run meet a row with their key, where such are left out (``keep_local``).

In: the key events of a run, and which of its keys have a row before it. Out: positions of changes.
One change after the other: a row whose change of key is left out stays where it is, and may be in
the way of the next one.
"""

from __future__ import annotations

import numpy as np

from penstock.pipeline.columns import Integers
from penstock.pipeline.key_events import CREATE, REMOVE, kind, position


def met_in_order(event: Integers, key: Integers, there: Integers) -> Integers:
    """``event``, ``key``: as ``KeyEvents.grouped`` gives them; ``there``: the keys with a row.
    Changes of rows that are not there are none of them."""
    order = np.argsort(event)
    event, key = event[order], key[order]
    at = position(event)
    moves = np.append(False, at[1:] == at[:-1])  # the CREATE of a change of the key
    held, found = set(there.tolist()), []
    former: int | None = None
    for what, row, change, moved in zip(
        *(kind(event).tolist(), key.tolist(), at.tolist(), moves.tolist()), strict=True
    ):
        if what == REMOVE:
            former = row if row in held else None
            held.discard(row)
        elif what == CREATE and not (moved and former is None):
            if row in held:
                found.append(change)
                if moved and former is not None:
                    held.add(former)
            else:
                held.add(row)
    return np.array(found, np.int64)
