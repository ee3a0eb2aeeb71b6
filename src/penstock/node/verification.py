"""Results of a comparison with the publisher (``verify``), and their one JSON form.

In: results of ``pipeline.compare_tables``. Out: frozen values. Showing them is left to
``cli.verify``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pipeline.compare_tables import CompareProgress, RowDifference, TableDifference

EQUAL: Final = "equal"
PARTIAL: Final = "partial"
"""Equal in the columns that were compared, but not all columns were."""
DIFFERENT: Final = "different"


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result for one table. ``reason``: why it was not compared, None if it was. ``lacking``:
    published columns that the node's table does not have (yet), or that were left out for another
    reason. ``by_design``: differences that arise because the publications leave out operations were
    dropped."""

    name: str
    reason: str | None = None
    difference: TableDifference | None = None
    lacking: tuple[str, ...] = ()
    by_design: bool = False

    @property
    def result(self) -> str | None:
        """One of EQUAL, PARTIAL and DIFFERENT; None if the table was not compared."""
        if self.difference is None:
            return None
        if self.difference.kinds:
            return DIFFERENT
        return PARTIAL if self.lacking or self.by_design else EQUAL

    @property
    def equal(self) -> bool:
        """Tell whether it was compared whole and nothing differs."""
        return self.result == EQUAL

    @property
    def partial(self) -> bool:
        """Tell whether nothing differs, but not all of the table was compared."""
        return self.result == PARTIAL


@dataclass(frozen=True, slots=True)
class Verification:
    """The results for a subscription's tables at ``lsn``."""

    subscription: str
    lsn: Lsn
    tables: tuple[VerifiedTable, ...]

    @property
    def equal(self) -> bool:
        """Tell whether all tables were compared whole and are equal."""
        return all(table.equal for table in self.tables)

    @property
    def partial(self) -> bool:
        """Tell whether nothing differs in any table, but some were not compared whole."""
        return not self.equal and all(table.equal or table.partial for table in self.tables)


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """The progress of a comparison. ``doing``: the present step, in words; ``rows``: the rows
    compared so far, once that has begun."""

    subscription: str
    doing: str
    rows: CompareProgress | None = None


def as_json(verification: Verification) -> dict[str, Any]:
    """Return the whole result as JSON, for programs."""
    return {
        "subscription": verification.subscription,
        "lsn": str(verification.lsn),
        "equal": verification.equal,
        "tables": [_table_json(table) for table in verification.tables],
    }


def _table_json(table: VerifiedTable) -> dict[str, Any]:
    found = table.difference
    return {
        "name": table.name,
        "equal": table.equal,
        "result": table.result,
        "not_compared": table.reason,
        "lacking_columns": list(table.lacking),
        "publisher_rows": found and found.publisher_rows,
        "node_rows": found and found.node_rows,
        "differences": dict(found.kinds) if found else {},
        "all_differences_counted": found and found.whole,
        "examples": [_example_json(example) for example in found.examples] if found else [],
    }


def _example_json(example: RowDifference) -> dict[str, Any]:
    return {**asdict(example), "key": dict(example.key), "columns": list(example.columns)}


def row_text(example: RowDifference) -> str:
    """Return a row's key and the columns in which it differs, for people."""
    key = ", ".join(f"{name} = {_value(text)}" for name, text in example.key)
    times = f" ({example.count:,} times)" if example.count > 1 else ""
    columns = f" in {', '.join(example.columns)}" if example.columns else ""
    return f"{key}{columns}{times}"


def _value(text: str | None) -> str:
    return "NULL" if text is None else quote_literal(text)
