"""The session that changes rows of the lake, as its statements see it.

Each statement gets a frozen value with the state of its session.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog import Role, SessionSequences
from penstock.pipeline.query import Interrupts
from penstock.sql.to_duckdb.session_values import SessionValues


@dataclass(frozen=True, slots=True)
class Writer:
    """The session of a statement. ``values``: the session's values that expressions may use;
    ``sequences``: values that the session has taken from sequences."""

    role: Role
    values: SessionValues
    sequences: SessionSequences
    interrupts: Interrupts
