"""All kinds of faults, and which of them a run has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from faults import following, foreign, world
from faults.arena import Arena
from penstock import failpoint

KINDS: Final[Mapping[str, Callable[[Arena], None]]] = {
    **{f"SIGKILL {name}": lambda a, n=name: a.kill_at(n) for name in failpoint.NAMES},  # type: ignore[misc]
    "SIGKILL at random": Arena.kill_somewhere,
    "server restart fast": lambda arena: arena.restart_server("fast"),
    "server restart immediate": lambda arena: arena.restart_server("immediate"),
    "connections cut": Arena.cut_connections,
    "connections stalled": Arena.stall_connections,
    "connections cut in copy": Arena.cut_connections_in_copy,
    "server restart in copy": Arena.restart_server_in_copy,
    **{
        f"{name} in copy": partial(world.rewrite_in_copy, statement=statement)
        for name, statement in world.REWRITES.items()
    },
    "rename in a transaction": world.rename_in_transaction,
    "swap in a transaction": world.swap_in_transaction,
    "table leaves while copied": world.drop_while_copying,
    "table leaves and comes back": world.leave_and_come_back,
    "warehouse unmounted": world.unmount_warehouse,
    "start without the warehouse": world.start_without_warehouse,
    "publisher restored": world.restore_publisher,
    "node restored": world.restore_node,
    "foreign OPTIMIZE": foreign.optimize,
    "foreign RESTORE": foreign.restore,
    "column added": following.add_column,
    "existing key": following.existing_key,
    "failover": following.fail_over,
}

OF_SPARK: Final[Mapping[str, Callable[[Arena], None]]] = {
    f"SIGKILL of {what}": lambda arena, word=word: arena.kill_of_spark(  # type: ignore[misc]
        lambda: arena.node.kill_below(word)
    )
    for what, word in (
        ("the JVM", b"java"),
        ("Python workers", b"penstock.pipeline.worker_daemon"),
    )
}
"""Each kills three times: in a copy, and twice in batches."""

SHORT: Final = (
    f"SIGKILL {failpoint.INSIDE_COPY}",
    f"SIGKILL {failpoint.BETWEEN_COMMITS}",
    "server restart immediate",
    f"SIGKILL {failpoint.BEFORE_CUT}",
    "connections cut",
)


def plan(count: int, rng: random.Random) -> list[str]:
    """Kinds of ``count`` cycles: the short run's first, then all kinds in turn, shuffled."""
    kinds = list(SHORT[:count])
    while len(kinds) < count:
        rest = Counter(KINDS.keys())
        rest.subtract(Counter(kinds))
        least = max(rest.values())
        kinds.append(rng.choice([kind for kind, lack in rest.items() if lack == least]))
    return kinds
