"""The session of a statement that changes rows of the lake, as a frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog import Role, SessionSequences
from penstock.pipeline.query import Interrupts
from penstock.sql.to_duckdb.session_values import SessionValues


@dataclass(frozen=True, slots=True)
class Writer:
    """The session of a statement. ``values``: values of the session for expressions, such as
    current_user; ``sequences``: the values that the session has taken from sequences."""

    role: Role
    values: SessionValues
    sequences: SessionSequences
    interrupts: Interrupts
