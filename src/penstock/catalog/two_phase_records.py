"""Records of two-phase commit in the node's log (xact.h, xl_xact_prepare, xl_xact_twophase).

In: nothing. Out: frozen values, and their JSON in a row of the log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from penstock.lsn import Lsn


class TwoPhaseKind(StrEnum):
    """The kinds of records."""

    PREPARE = "prepare"
    COMMIT_PREPARED = "commit"
    ROLLBACK_PREPARED = "rollback"


@dataclass(frozen=True, slots=True)
class PrepareRecord:
    """The record of a PREPARE TRANSACTION: its place in the log, its end, and its time in
    microseconds since the Unix epoch."""

    lsn: Lsn
    end: Lsn
    time: int


@dataclass(frozen=True, slots=True)
class TwoPhaseRecord:
    """A record of two-phase commit. ``prepare``: the PREPARE that is committed or rolled back; None
    in a PREPARE itself."""

    kind: TwoPhaseKind
    gid: str
    prepare: PrepareRecord | None = None


def to_text(record: TwoPhaseRecord) -> str:
    """Return the record as a row keeps it."""
    at = record.prepare
    prepare = None if at is None else [at.lsn, at.end, at.time]
    return json.dumps([record.kind.value, record.gid, prepare])


def from_text(text: str) -> TwoPhaseRecord:
    """Return the record that ``to_text`` has written."""
    kind, gid, prepare = json.loads(text)
    at = None
    if prepare is not None:
        lsn, end, time = prepare
        at = PrepareRecord(Lsn(lsn), Lsn(end), time)
    return TwoPhaseRecord(TwoPhaseKind(kind), gid, at)
