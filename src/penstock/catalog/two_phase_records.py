"""Records of two-phase commit in the node's log (xact.h, xl_xact_prepare, xl_xact_twophase).

In: nothing. Out: frozen values, and the JSON that a row of the log keeps of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from penstock.lsn import Lsn


class TwoPhaseKind(StrEnum):
    """Which of the three records it is."""

    PREPARE = "prepare"
    COMMIT_PREPARED = "commit"
    ROLLBACK_PREPARED = "rollback"


@dataclass(frozen=True, slots=True)
class PrepareRecord:
    """Where PREPARE TRANSACTION stands in the log, where its record ends, and when it was:
    microseconds since the Unix epoch."""

    lsn: Lsn
    end: Lsn
    time: int


@dataclass(frozen=True, slots=True)
class TwoPhaseRecord:
    """``prepare``: of what is committed or rolled back; None in a PREPARE itself."""

    kind: TwoPhaseKind
    gid: str
    prepare: PrepareRecord | None = None


def to_text(record: TwoPhaseRecord) -> str:
    """As a row keeps it."""
    at = record.prepare
    prepare = None if at is None else [at.lsn, at.end, at.time]
    return json.dumps([record.kind.value, record.gid, prepare])


def from_text(text: str) -> TwoPhaseRecord:
    """The reverse."""
    kind, gid, prepare = json.loads(text)
    at = None
    if prepare is not None:
        lsn, end, time = prepare
        at = PrepareRecord(Lsn(lsn), Lsn(end), time)
    return TwoPhaseRecord(TwoPhaseKind(kind), gid, at)
