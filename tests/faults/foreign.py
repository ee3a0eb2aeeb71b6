"""Other programs write to the tables that the subscription follows: delta-rs and Spark, each in its
own process or engine, without a word to the node.

In: an arena. Out: cycles of it. A program that only moves rows costs the node a lost race; one that
takes commits away stops the subscription, or parks the table, and the message names the way on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from faults.arena import SUBSCRIPTION, Arena
from faults.bank import TABLES
from penstock.embedded import wait_until

_ROUNDS: Final = 3
_FURTHEST: Final = 20
"""Versions that a RESTORE goes back at most."""

_NEVER_EMPTY: Final = ("checking", "savings", "loans", "transfers", "journal", "totals")
"""Tables whose older versions have other rows: what TRUNCATE has emptied twice is the same."""

_AGAIN: Final = re.compile("working the batch again|looking at the table again")
"""A batch, or the node's own compaction."""
_RESTORED: Final = "was restored to an older state"
_OUTDATED: Final = "was rewritten from an older state"
_RUN_SPARK: Final = Path(__file__).with_name("run_spark_sql.py")


def optimize(arena: Arena) -> None:
    """Tables are compacted while they are written to, until the node has lost a race by it.

    delta-rs does not see that the node's own compaction was first, and doubles rows: then the
    subscription stops, and goes on as for RESTORE.
    """
    arena.new_cut()
    rounds, lost = 0, _lost(arena)
    compacted: set[str] = set()
    while rounds < _ROUNDS or not compacted or _lost(arena) == lost:
        rounds += 1
        compacted |= {
            name for name in arena.rng.sample(TABLES, len(TABLES)) if _compact(arena, name)
        }
        _as_told(arena, arena.new_cut)
    _as_told(arena, arena.catch_up)


def _lost(arena: Arena) -> int:
    return len(_AGAIN.findall(arena.node.log()))


def _as_told(arena: Arena, wait: Callable[[], None]) -> None:
    """Wait; where the node stops because of an outdated compaction, go on as it says."""
    while True:
        try:
            return wait()
        except AssertionError:
            if _OUTDATED not in arena.node.news():
                raise
        _take_back(arena, arena.complaint("foreign OPTIMIZE", _OUTDATED))


def _take_back(arena: Arena, report: str) -> None:
    """To the letter, the one way or the other."""
    copy_again, enable = (
        _found(f"ALTER SUBSCRIPTION {SUBSCRIPTION} {what}", report)
        for what in ("REFRESH PUBLICATION", "ENABLE")
    )
    if arena.rng.random() < 0.5:
        arena.bank.stop()
        run_spark(_found(r"RESTORE TABLE delta\.`[^`]*` TO VERSION AS OF \d+", report))
        arena.bank.start()
    else:
        arena.node.sql(copy_again)
    arena.node.forgive()
    arena.node.sql(enable)


def _compact(arena: Arena, name: str) -> bool:
    """Whether there was something to compact, and the node was not there first."""
    try:
        metrics = _delta(arena, name).optimize.compact()
    except CommitFailedError:
        return False
    return bool(metrics["numFilesAdded"])


def restore(arena: Arena) -> None:
    """A table is put back to an older version: the subscription stops, then only the table does."""
    arena.new_cut()
    name = arena.rng.choice(_NEVER_EMPTY)
    _restore(arena, name)
    _take_back(arena, arena.complaint("foreign RESTORE", _RESTORED))
    arena.catch_up()
    arena.joined(name)
    arena.check()

    arena.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} SET (on_table_error = park)")
    arena.new_cut()
    name = arena.rng.choice(_NEVER_EMPTY)
    _restore(arena, name)
    report = arena.complaint("foreign RESTORE, parked", f'"public.{name}" {_RESTORED}')
    arena.left(name)
    arena.node.sql(_found(f"ALTER SUBSCRIPTION {SUBSCRIPTION} REFRESH PUBLICATION", report))
    arena.joined(name)
    arena.node.sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} SET (on_table_error = stop)")
    arena.node.forgive()
    arena.catch_up()


def _restore(arena: Arena, name: str) -> None:
    """While the node runs or while it does not; back over commits that have changed rows."""
    if arena.rng.random() < 0.5:
        arena.kill_somewhere()
    wait_until(lambda: _restored(arena, name), f"RESTORE of {name}", pause=0.1)
    arena.start()


def _restored(arena: Arena, name: str) -> bool:
    table = _delta(arena, name)
    changed = next(
        commit["version"]
        for commit in table.history()
        if commit["operation"] == "REPLICATION" and commit["version"] > 1
    )
    version = arena.rng.randint(max(1, changed - _FURTHEST), changed - 1)
    try:
        table.restore(version)
    except DeltaError:  # the node was first
        return False
    return True


def _delta(arena: Arena, name: str) -> DeltaTable:
    return DeltaTable(str(arena.node.warehouse / "public" / name))


def _found(pattern: str, report: str) -> str:
    """A statement that the message names."""
    found = re.search(pattern, report)
    assert found is not None, f"no {pattern!r} in:\n{report}"
    return found[0]


def run_spark(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, str(_RUN_SPARK), statement],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, f"{statement}\n{done.stdout}"
