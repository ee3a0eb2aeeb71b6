"""Exactly once: the node is killed, the server restarted, the connection cut, over and over.

``make test`` runs two cycles, ``make faults`` as many as PENSTOCK_FAULT_CYCLES says; the kinds of
faults and the moments come from PENSTOCK_FAULT_SEED. PENSTOCK_FAULT_KINDS ("CLUSTER in copy,node
restored") names the cycles of a run one by one. What is done is printed as it goes, so that a cycle
that fails is known by its number and kind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from end_to_end.standalone_cluster import StandaloneCluster
from faults.arena import Arena
from faults.heavy import part_of_make_faults
from faults.kinds import KINDS, OF_SPARK, plan

CYCLES = int(os.environ.get("PENSTOCK_FAULT_CYCLES", "2"))
SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))
ALL = {**KINDS, **OF_SPARK}

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def report(arena: Arena, lost: int, made_up: int) -> str:
    """What was done, as a table."""
    lines = ["", f"{'cycle':>5}  {'fault':<28} {'cuts checked':>12}  seconds"]
    lines += [
        f"{cycle.number:>5}  {cycle.kind:<28} {cycle.cuts:>12}  {cycle.seconds:7.1f}"
        for cycle in arena.cycles
    ]
    lines += [f"       {said}" for said in arena.complaints]
    lines.append(
        f"seed {SEED}: {len(arena.cycles)} cycles, {arena.kills} kills, {arena.node.starts} "
        f"starts, {arena.bank.committed} transactions, {arena.cuts.checked} cuts checked, "
        f"{lost} rows lost, {made_up} rows doubled"
    )
    return "\n".join(lines)


def test_every_transaction_arrives_exactly_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = os.environ.get("PENSTOCK_FAULT_KINDS", "")
    with Arena(tmp_path, SEED) as arena:
        kinds = chosen.split(",") if chosen else plan(CYCLES, arena.rng)
        live_through(arena, kinds, capsys)


@part_of_make_faults
def test_processes_of_spark_that_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Arena(tmp_path, SEED) as arena:
        live_through(arena, [*OF_SPARK] * -(-CYCLES // 8), capsys)


@part_of_make_faults
def test_executors_that_are_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StandaloneCluster(tmp_path) as cluster, Arena(tmp_path, SEED) as arena:
        for _ in range(5):  # with fewer cores, the node applies batches itself
            cluster.start_worker()
        kinds = {
            f"SIGKILL of {count} executors": partial(
                Arena.kill_of_spark,
                kill=partial(cluster.kill_executors, count),
                master=cluster.url,
            )
            for count in (1, 5)
        }
        live_through(arena, [*kinds] * -(-CYCLES // 8), capsys, kinds)


def live_through(
    arena: Arena,
    names: Sequence[str],
    capsys: pytest.CaptureFixture[str],
    kinds: Mapping[str, Callable[[Arena], None]] = ALL,
) -> None:
    """One cycle of each kind, and the comparison of all tables."""
    for number, kind in enumerate(names, 1):
        with capsys.disabled():
            print(f"\ncycle {number} of {len(names)}: {kind} ...", end="", flush=True)
        cycle = arena.run(kind, kinds[kind])
        with capsys.disabled():
            print(f" {cycle.cuts} cuts in {cycle.seconds:.0f} s", end="", flush=True)
    differences = arena.finish()
    lost = sum(found.lost.total() for found in differences)
    made_up = sum(found.made_up.total() for found in differences)
    with capsys.disabled():
        print(report(arena, lost, made_up))
    assert not any(differences), "\n".join(str(found) for found in differences if found)
    assert arena.cuts.checked >= len(names)


def test_a_full_run_has_every_kind_of_fault() -> None:
    kinds = plan(32, random.Random(1))
    assert {kinds.count(kind) for kind in KINDS} <= {1, 2, 3}
    assert plan(5, random.Random(1)) == kinds[:5]
