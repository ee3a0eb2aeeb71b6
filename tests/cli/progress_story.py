"""A program that shows the progress of two scripted copies, and logs meanwhile; then nothing is
copied any more, until it is told to end."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
import time

from cli.statuses import subscription, table
from penstock.cli.main import log_to_standard_error
from penstock.cli.run import ProgressDisplay
from penstock.node.status import SubscriptionStatus

_STEPS = 40
_STEPS_EACH_LOOK = 5
_LOG_S = 0.1
_MB = 1 << 20


def status_at(step: int) -> list[SubscriptionStatus]:
    done = min(step, _STEPS)
    small = min(2 * done, _STEPS)
    return [
        subscription(
            "s",
            "copying" if done < _STEPS else "streaming",
            table(
                "public.big", "d" if done < _STEPS else "r", done * 100, done * _MB, _STEPS * _MB
            ),
            table("public.small", "d" if small < _STEPS else "f", small, small * _MB, _STEPS * _MB),
        )
    ]


def run() -> None:
    log_to_standard_error()
    looks = itertools.count()  # further at each look, so that a slow machine shows each state too
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with ProgressDisplay(lambda: status_at(next(looks) * _STEPS_EACH_LOOK)):
        for number in range(60):
            logging.info("line %02d %s end", number, "word " * 30)
            time.sleep(_LOG_S)
        while not over.wait(_LOG_S):  # signals come in between
            pass
    print("over", flush=True)


if __name__ == "__main__":
    run()
