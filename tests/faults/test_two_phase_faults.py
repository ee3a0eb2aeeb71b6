"""Prepared transactions, and a node that is killed between their phases, and in each of them.

Part of ``make faults`` only: ``make test`` has ``subscription/test_streamed.py`` and
``end_to_end/test_two_phase.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from faults.arena import Arena
from faults.heavy import part_of_make_faults
from faults.kinds import KINDS
from penstock import failpoint
from penstock.embedded import wait_until

pytestmark = [
    part_of_make_faults,
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.slow,
]

_TOAST = "for toast chunk"
"""Of ReorderBufferToastAppendChunk's error."""
_AFTER_PREPARE = f"SIGKILL {failpoint.AFTER_PREPARE}"
_FAULTS = {
    _AFTER_PREPARE: lambda arena: arena.kill_at(failpoint.AFTER_PREPARE),
    **{
        kind: KINDS[kind]
        for kind in (
            "SIGKILL after-receive",
            "SIGKILL between-commits",
            "SIGKILL before-cut",
            "server restart immediate",
            "SIGKILL after-cut",
            "SIGKILL at random",
            "connections cut",
            "connections stalled",
        )
    },
}


def _look_at_the_publisher(arena: Arena) -> None:
    """PostgreSQL 18 may lose the beginning of a TOASTed value when it starts again after a crash
    with prepared and streamed transactions: its slot is of no use to anybody then, by its own
    functions as by a stream. Whoever reads it has to stop, and has lost nothing."""
    if _TOAST not in arena.node.news():
        return
    said = arena.refuses_its_own_slot()
    if said is not None and _TOAST in said:
        pytest.xfail(f"the publisher cannot read its slot: {said}")


@pytest.mark.parametrize("version", [17, 18])
def test_prepared_transactions_arrive_exactly_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    cycles = int(os.environ.get("PENSTOCK_FAULT_CYCLES", "9"))
    seed = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))
    with Arena(tmp_path, seed, two_phase=True, version=version) as arena:
        arena.new_cut()
        enabled = "SELECT two_phase::integer FROM pg_replication_slots WHERE slot_name = 'bank'"
        wait_until(lambda: arena.value(enabled) == 1, "two-phase commit to be enabled", 60)
        arena.bank.two_phase = True
        for number in range(cycles):
            kind = list(_FAULTS)[number % len(_FAULTS)]
            with capsys.disabled():
                print(f"\ncycle {number + 1} of {cycles}: {kind} ...", end="", flush=True)
            try:
                cycle = arena.run(kind, _FAULTS[kind])
            except AssertionError:
                _look_at_the_publisher(arena)
                raise
            with capsys.disabled():
                print(f" {cycle.cuts} cuts in {cycle.seconds:.0f} s", end="", flush=True)
        differences = arena.finish()
        assert not any(differences), "\n".join(str(found) for found in differences if found)
        assert not list((arena.node.warehouse / "_penstock" / "prepared").rglob("*/*/*"))
