"""Who changes rows of the lake: the session whose statement it is.

In: what the session knows. Out: a frozen value for every statement of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.catalog import Role, SessionSequences
from penstock.pipeline.query import Interrupts
from penstock.sql.to_duckdb.session_values import SessionValues


@dataclass(frozen=True, slots=True)
class Writer:
    """``values``: what its expressions may ask of it; ``sequences``: what it has got of them."""

    role: Role
    values: SessionValues
    sequences: SessionSequences
    interrupts: Interrupts
