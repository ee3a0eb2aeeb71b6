"""A node collects garbage while it is idle, or when it has grown."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import gc, sys, weakref
from penstock.cli import run
from penstock.embedded import wait_until
from penstock.precedence import NODE, PRECEDENCE

class Circle:
    def __init__(self, size):
        self.own, self.content = self, b"x" * size

def circle(size=0):
    made = Circle(size)
    gc.collect(1)  # it lives too long for Python's small collections
    return weakref.ref(made)

run._COLLECTED_EVERY_S, run._GROWTH = {every}, {growth}
run.collect_garbage()
{body}
"""
_IDLE = """
with PRECEDENCE.work(NODE):
    left = circle()
    kept = [[] for _ in range(1_000_000)]
    assert left() is not None, "collected in the middle of work"
wait_until(lambda: left() is None, "the collection", 10)
"""
_GROWN = """
with PRECEDENCE.work(NODE):
    left = circle(80 << 20)
    wait_until(lambda: left() is None, "the collection", 10)
"""


@pytest.mark.parametrize(
    ("every", "growth", "body"),
    [("0.2", "1 << 40", _IDLE), ("600", "50 << 20", _GROWN)],
    ids=["idle", "grown"],
)
def test_garbage_is_collected(every: str, growth: str, body: str) -> None:
    program = _PROGRAM.format(every=every, growth=growth, body=body)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
