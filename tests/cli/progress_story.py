"""A program that shows the progress of two scripted copies, and logs meanwhile; then nothing is
copied any more, and it ends."""

from __future__ import annotations

import itertools
import logging
import threading
import time

from cli.statuses import subscription, table
from penstock.cli.main import log_to_standard_error
from penstock.cli.progress import ProgressDisplay
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
    looks = itertools.count()
    over = threading.Event()

    def status() -> list[SubscriptionStatus]:
        """Further at each look, so that a slow machine shows each state too."""
        step = next(looks) * _STEPS_EACH_LOOK
        if step > _STEPS:  # what is streaming has been drawn
            over.set()
        return status_at(step)

    with ProgressDisplay(status):
        for number in range(60):
            logging.info("line %02d %s end", number, "word " * 30)
            time.sleep(_LOG_S)
        over.wait()
    print("over", flush=True)


if __name__ == "__main__":
    run()
