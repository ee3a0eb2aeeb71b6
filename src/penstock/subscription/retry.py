"""What to do about an error: try again, or stop the subscription. The one place that decides it.

In: an error and how often it has come in a row. Out: a decision and the pause before the next try.
PostgreSQL retries everything for ever; here an error that a retry cannot heal stops the
subscription with its message, so that a person sees it while the publisher still keeps the WAL.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import (
    AuthenticationFailure,
    CommitConflict,
    ConnectionFailure,
    ObjectInUse,
    PenstockError,
    ProtocolViolation,
    PublisherError,
    StorageError,
)

FIRST_PAUSE: Final = 0.2

_RETRYABLE_SQLSTATES: Final = ("08", "53300", "57P01", "57P02", "57P03", "57P05", "55006", "40001")
"""Connection trouble, too many clients, shutdown and start-up, an object in use, serialization."""


class Verdict(Enum):
    """Whether the worker starts again by itself."""

    RETRY = "retry"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """``pause``: seconds before the next try; 0 for STOP."""

    verdict: Verdict
    pause: float = 0.0


STOP: Final = Decision(Verdict.STOP)


def most_tries(error: BaseException) -> int | None:
    """How many times in a row an error is tried again; None for ever, 0 never."""
    match error:
        case AuthenticationFailure():
            return 0
        case ConnectionFailure():
            return None
        case ObjectInUse():
            # A walsender of a killed node keeps its slot until wal_sender_timeout (60 s).
            return 20
        case PublisherError():
            return None if error.sqlstate.startswith(_RETRYABLE_SQLSTATES) else 0
        case CommitConflict():
            return 10
        case StorageError() | ProtocolViolation():
            return 4
        case PenstockError():
            return 0
        case _:
            return 3


def decide(
    error: BaseException, failures: int, longest_pause: float, draw: float | None = None
) -> Decision:
    """``failures``: how often in a row it failed, this one included.

    ``longest_pause``: wal_retrieve_retry_interval, seconds. ``draw``: 0..1, for the jitter. The
    pause doubles from 0.2 s on, and half of it is random, so that many nodes do not come back to a
    restarted server at once.
    """
    most = most_tries(error)
    if most is not None and failures > most:
        return STOP
    pause = min(longest_pause, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
    jitter = random.random() if draw is None else draw
    return Decision(Verdict.RETRY, pause / 2 + pause / 2 * jitter)
