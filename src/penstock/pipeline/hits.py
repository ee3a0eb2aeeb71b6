"""Rows that a search of a data file has found.

``locate`` or ``key_index`` finds them. This module takes arrays of the same length and arranges the
rows for the reader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.pipeline.columns import Integers


@dataclass(frozen=True)
class Hits:
    """Live rows found: their positions in the file, ascending, and the probe rows they match."""

    position: Integers
    probe: Integers

    def of(self, old: Integers) -> tuple[Integers, Integers]:
        """Return the hits of the probe rows ``old``: positions, and indexes into ``old``. A probe
        row that occurs several times in ``old`` has as many hits."""
        order = np.argsort(old, kind="stable")
        begins, ends = (np.searchsorted(old[order], self.probe, side) for side in ("left", "right"))
        many = ends - begins
        nth = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        return np.repeat(self.position, many), order[np.repeat(begins, many) + nth]
