"""The session that changes rows of the lake, as its statements see it.

In: what the session knows. Out: a frozen value for each of its statements.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog import Role, SessionSequences
from penstock.pipeline.query import Interrupts
from penstock.sql.to_duckdb.session_values import SessionValues


@dataclass(frozen=True, slots=True)
class Writer:
    """The session of a statement. ``values``: what expressions may ask of the session;
    ``sequences``: values that the session has taken of sequences."""

    role: Role
    values: SessionValues
    sequences: SessionSequences
    interrupts: Interrupts
