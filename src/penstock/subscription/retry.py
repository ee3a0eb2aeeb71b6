"""The retry rules: decide whether an error is retried or stops the subscription.

The decision, with the pause before the next try, depends on the error and the number of failures in
a row. PostgreSQL retries everything for ever. Penstock does so if the cause lies outside of it and
can go away: a full disk, a slot that somebody else reads, an object store out of reach. An error
that a retry cannot heal stops the subscription with its message, so that a person sees it while the
publisher still keeps the WAL. Retried errors are listed by name. No other module decides this.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from py4j.protocol import Py4JError

from penstock.errors import (
    AuthenticationFailure,
    CommitConflict,
    ConfigurationLimitExceeded,
    ConnectionFailure,
    ObjectInUse,
    PenstockError,
    ProtocolViolation,
    PublisherError,
    SparkUnavailable,
    StorageError,
    UndefinedPublication,
)

FIRST_PAUSE: Final = 0.2
_PAUSE_OF_REFUSED_S: Final = 60.0

_NO_RIGHT: Final = "42501"
_PUBLISHER_HEALS: Final = (
    "08",  # connection exceptions
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    _NO_RIGHT,  # rights come back with the next GRANT
    "53",  # too many connections, out of memory, its disk is full
    "55006",  # object_in_use
    "55P03",  # lock_not_available
    "57014",  # query_canceled: a timeout, or somebody's pg_cancel_backend
    "57P01",  # admin_shutdown
    "57P02",  # crash_shutdown
    "57P03",  # cannot_connect_now: it starts up
    "57P05",  # idle_session_timeout
)
"""A publisher's SQLSTATEs, or their first characters, whose causes pass by themselves or by a
repair of the publisher."""

_INTERNAL_ERROR: Final = "XX000"

_STORAGE_HEALS: Final = (
    "42501",  # insufficient_privilege: read-only, or rights that were taken away
    "53",  # disk_full, too many open files
    "55P03",  # the state store is locked
    "58030",  # io_error: also an object store, or the state store, that is out of reach
)
"""SQLSTATEs of a warehouse or state store that heal likewise. A file that is gone (58P01) does
not."""


class Verdict(Enum):
    """The decision about an error: the worker starts again by itself, or it stops."""

    RETRY = "retry"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on an error. ``pause``: seconds before the next try; 0 for STOP."""

    verdict: Verdict
    pause: float = 0.0


STOP: Final = Decision(Verdict.STOP)


def max_tries(error: BaseException) -> int | None:
    """Return how many times in a row an error is retried: None for ever, 0 never."""
    match error:
        case AuthenticationFailure():
            return None  # a password is changed on two sides, and never at the same time
        case ConnectionFailure() | ObjectInUse() | CommitConflict() | SparkUnavailable():
            return None
        case ConfigurationLimitExceeded():
            return None  # until another subscription is dropped, or the limit is changed
        case UndefinedPublication():
            return None  # until the list of publications is altered
        case PublisherError():
            if error.sqlstate == _INTERNAL_ERROR:
                return 4  # the next walsender decodes afresh and may do better
            return None if error.sqlstate.startswith(_PUBLISHER_HEALS) else 0
        case StorageError():
            return None if heals(error) else 4
        case ProtocolViolation():
            return 4
        case PenstockError():
            return 0
        case OSError() | Py4JError():
            return None  # the machine or Spark has failed: an executor is lost, or its disk full
        case _:
            return 3


def disables(error: BaseException) -> bool:
    """Return whether an error disables a subscription with disable_on_error: one that is not
    retried for ever, a refused login, or a right that is missing at the publisher."""
    if isinstance(error, AuthenticationFailure):
        return True
    if isinstance(error, PublisherError) and error.sqlstate == _NO_RIGHT:
        return True
    return max_tries(error) is not None


def heals(error: StorageError) -> bool:
    """Return whether the storage may later accept the refused operation."""
    return error.sqlstate.startswith(_STORAGE_HEALS)


def decide(
    error: BaseException,
    failures: int,
    longest_pause: float,
    draw: float | None = None,
    *,
    disable_on_error: bool = False,
) -> Decision:
    """Decide what to do about an error.

    ``failures``: failures in a row, including this one. ``longest_pause``:
    wal_retrieve_retry_interval, seconds. ``draw``: 0..1, for the jitter. ``disable_on_error``: stop
    at errors that it ``disables`` for.

    The pause doubles from 0.2 s on, and half of it is random, so that many nodes do not come back
    to a restarted server at once.
    """
    limit = max_tries(error)
    if disable_on_error and disables(error):
        return STOP
    if limit is not None and failures > limit:
        return STOP
    if isinstance(error, AuthenticationFailure):  # servers and firewalls count failed logins
        longest_pause = max(longest_pause, _PAUSE_OF_REFUSED_S)
    pause = min(longest_pause, FIRST_PAUSE * 2.0 ** min(failures - 1, 16))
    jitter = random.random() if draw is None else draw
    return Decision(Verdict.RETRY, pause / 2 + pause / 2 * jitter)
