"""VACUUM and ANALYZE (parsenodes.h, VacuumStmt).

Options are ignored: they only control how PostgreSQL vacuums and analyzes its heaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.sql.grammar.names import Readers, range_var
from penstock.sql.grammar.parsenodes import RangeVar, Statement
from penstock.sql.grammar.raw_node import RawNode
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class Vacuum(Statement):
    """VACUUM or ANALYZE, as ``tag`` says, of some tables; () means all tables."""

    tag: str
    relations: tuple[RangeVar, ...]


def _vacuum(raw: RawNode, _source: Source) -> Vacuum:
    raw.ignore("options")
    tag = "VACUUM" if raw.take("is_vacuumcmd") else "ANALYZE"
    return Vacuum(tag, tuple(_relation(RawNode.of(node)) for node in raw.nodes("rels")))


def _relation(raw: RawNode) -> RangeVar:
    fields = raw.node("relation")
    assert fields is not None
    raw.ignore("va_cols")
    raw.done()
    return range_var(fields)


READERS: Final[Readers] = {"VacuumStmt": _vacuum}
