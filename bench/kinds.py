"""Kinds of workloads of a subscriber: copies, backlogs, bursts, steady rates.

In: what is replicated, and how it is changed. Out: figures. Each side works alone: meanwhile the
other one has no subscription, or a disabled one. Behind a run both have all changes.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import latency
from changes import mark, read_copy, read_raw, steady
from context import Bench, Sides
from figure import Figure, of_delays, of_runs
from percentiles import Delay, ends, in_ms
from process_tree import cpu_seconds
from progress import say
from report import parts_report
from side import Side
from subject import Subject

_ENDS: Final = 15.0
"""Seconds of the beginning and the end of a steady run that are set against each other."""

_LOOK: Final = 2.0
_IDLE_CORES: Final = 0.1
"""What a node that has nothing to do takes of a core, at most."""

_PARTS: Final = {"worker": "Python workers", "jvm": "the JVM", "driver": "the driver's Python"}


def copies(
    bench: Bench, subject: Subject, what: str, count: int, *, binary: bool
) -> Sequence[Figure]:
    """CREATE SUBSCRIPTION until the copied rows can be read."""
    sides = bench.sides(subject, binary=binary)
    spent = _Spent(what, count)
    alone = [read_copy(bench.publisher, each.name, binary=binary) for each in subject.tables]
    say(f"{what}, by COPY alone and thrown away: {sum(alone):.2f} s")
    for _ in bench.budget.runs(bench.sizes.repeat):
        for at, side in enumerate(sides):
            before = _cpu(bench)
            with spent.cpu(at, side):
                taken = side.copy()
            spent.times[at].append(taken)
            say(f"{what}, {side.name}: {taken:.2f} s")
            if side is sides[1]:
                say(_cpu_report(before, _cpu(bench), taken))
            side.drop()
    return spent.figures()


class _Spent:
    """Seconds and CPU seconds of both sides, run by run."""

    def __init__(self, what: str, count: int) -> None:
        self.times: tuple[list[float], list[float]] = ([], [])
        self._what, self._count = what, count
        self._used: tuple[list[float], list[float]] = ([], [])

    @contextmanager
    def cpu(self, at: int, side: Side) -> Iterator[None]:
        """Add what a side uses in the block."""
        before = side.cpu_seconds()
        yield
        after = side.cpu_seconds()
        self._used[at].append(sum(after[each] - before.get(each, 0.0) for each in after))

    def figures(self) -> Sequence[Figure]:
        return (
            of_runs(self._what, self._count, *self.times),
            of_runs(f"{self._what}: CPU of the subscriber", self._count, *self._used),
        )


def _cpu(bench: Bench) -> dict[str, float]:
    node = cpu_seconds(os.getpid(), left_out=os.getpid())
    return {"the publisher": bench.publisher.cpu_seconds()} | {
        what: node[kind] for kind, what in _PARTS.items()
    }


def _cpu_report(before: dict[str, float], after: dict[str, float], seconds: float) -> str:
    """The node logs no phases of a copy: what used the cores."""
    used = {what: after[what] - before[what] for what in after}
    return parts_report(f"CPU time in {seconds:.1f} s on {os.cpu_count()} cores", used)


def backlogs(
    bench: Bench,
    subject: Subject,
    sides: Sides,
    make: Callable[[], int],
    *,
    what: str,
    count: int,
    runs: int | None = None,
    raw: bool = False,
) -> Sequence[Figure]:
    """One backlog in both slots; then each side is enabled alone until it has consumed it.

    ``make`` returns the LSN that is to be passed. ``raw``: how fast the walsender is, too.
    """
    spent = _Spent(what, count)
    for run in bench.budget.runs(bench.sizes.repeat if runs is None else runs):
        began = time.monotonic()
        behind = make()
        say(f"{what}: made in {time.monotonic() - began:.1f} s")
        if raw and run == 0:
            taken = read_raw(bench.publisher, sides[0].slot, subject.name)
            say(f"{what}, read from the walsender and thrown away: {taken:.2f} s")
        order = (0, 1) if run % 2 == 0 else (1, 0)
        for at in order:
            side = sides[at]
            logged = side.log_size()
            with spent.cpu(at, side):
                taken = side.catch_up(behind)
            spent.times[at].append(taken)
            say(f"{what}, {side.name}: {taken:.2f} s")
            say(side.where_time_goes(logged, taken, what))
    return spent.figures()


def bursts(
    bench: Bench, subject: Subject, sides: Sides, make: Callable[[], int], *, what: str
) -> tuple[Figure, list[list[float]]]:
    """Small backlogs at an idle, enabled subscription: from the first statement to visible. What a
    node makes of its files once somebody looks for keys, their indexes, is there by then."""
    times: list[list[float]] = []
    for side in sides:
        side.enable()
        _settle(side, make)
        _wait_until_idle()
        logged, began = side.log_size(), time.monotonic()
        taken = [_burst(side.wait_behind, make) for _ in range(bench.sizes.bursts)]
        times.append(taken)
        say(f"{what}, {side.name}: " + "  ".join(f"{seconds:.3f} s" for seconds in taken))
        say(side.where_time_goes(logged, time.monotonic() - began, what, idle=True))
        side.disable()
    catch_up(bench, subject, sides)
    return of_runs(what, bench.sizes.burst, *times), times


def _settle(side: Side, make: Callable[[], int]) -> None:
    """It has caught up, and has logged it: a node logs a batch behind its cut, before the next."""
    for _ in range(2):
        side.wait_behind(make())


def _wait_until_idle() -> None:
    """No process of the node has anything to do."""
    used = math.inf
    while used > _IDLE_CORES * _LOOK:
        before = sum(cpu_seconds(os.getpid(), left_out=os.getpid()).values())
        time.sleep(_LOOK)
        used = sum(cpu_seconds(os.getpid(), left_out=os.getpid()).values()) - before


def _burst(wait_behind: Callable[[int], None], make: Callable[[], int]) -> float:
    began = time.monotonic()
    wait_behind(make())
    return time.monotonic() - began


def steady_rate(
    bench: Bench,
    subject: Subject,
    sides: Sides,
    transactions: Callable[[], Iterable[str]],
    *,
    what: str,
    rate: float,
) -> Figure:
    """From sending COMMIT until another process sees the transaction."""
    found: list[list[Delay]] = []
    notes: list[str] = []
    for side in sides:
        side.enable()
        _settle(side, functools.partial(mark, bench.publisher, subject.touch))
        logged, began = side.log_size(), time.monotonic()
        write = functools.partial(
            steady, bench.publisher.conninfo, transactions(), rate=rate, seconds=bench.sizes.seconds
        )
        delays = latency.measure(side.make_look(), write, pause=side.look_pause)
        found.append(delays)
        notes.append(f"{what}, {side.name}: {first_against_last(delays)}")
        say(notes[-1])
        say(side.where_time_goes(logged, time.monotonic() - began, what, idle=True))
        side.disable()
    catch_up(bench, subject, sides)
    return of_delays(what, *found, notes=notes)


def first_against_last(delays: list[Delay]) -> str:
    """Whether the delays grew, and the rate that was really there."""
    first, last = ends(delays, _ENDS)
    lasted = delays[-1].at - delays[0].at if delays else 0.0
    rate = len(delays) / lasted if lasted else 0.0
    part = min(_ENDS, lasted / 2)
    return f"first {part:.0f} s {in_ms(first)}, last {part:.0f} s {in_ms(last)}, {rate:.0f}/s"


def catch_up(bench: Bench, subject: Subject, sides: Sides) -> None:
    """Both have all changes."""
    behind = mark(bench.publisher, subject.touch)
    for side in sides:
        side.catch_up(behind)
