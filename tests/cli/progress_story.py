"""A program that shows the progress of two scripted copies, and logs meanwhile; then nothing is
copied any more, and it ends."""

from __future__ import annotations

import logging
import time

from cli.statuses import subscription, table
from penstock.cli.main import log_to_standard_error
from penstock.cli.progress import ProgressDisplay
from penstock.node.status import SubscriptionStatus

_STEPS = 40
_STEP_S = 0.1
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


def _state(step: int) -> str:
    return "d" if step < _STEPS else "f"


def run() -> None:
    log_to_standard_error()
    began = time.monotonic()
    with ProgressDisplay(lambda: status_at(int((time.monotonic() - began) / _STEP_S))):
        for number in range(60):
            logging.info("line %02d %s end", number, "word " * 30)
            time.sleep(_STEP_S)
    print("over", flush=True)


if __name__ == "__main__":
    run()
