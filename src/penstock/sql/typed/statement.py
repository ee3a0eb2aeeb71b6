"""Statement-wide state of the analysis: what its queries share (ParseState of parse_node.h).

In: look-ups of tables, views and functions in FROM, types of parameters. Out: the same for every
part of the analysis, and unique names for relations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from penstock.attribute import Attribute
from penstock.sql.grammar.parsenodes import SelectStmt
from penstock.sql.text.object_names import RangeVar
from penstock.sql.typed.query_nodes import Query
from penstock.sql.typed.scope import Scope

FindTable = Callable[[RangeVar], tuple[Attribute, ...]]
"""Returns the columns of a table. Raises UndefinedObject (42P01), PenstockError (42501)."""


class Analyze(Protocol):
    """The analysis of a query within another one."""

    def __call__(self, raw: SelectStmt, parent: Scope | None = None, /) -> Query: ...


@dataclass(frozen=True)
class Surroundings:
    """The look-ups of a statement.

    ``find_view``: the text of a view, "" for a view without rows, None for a relation that is no
    view. ``functions``: functions in FROM that have columns of their own. ``parameters``: types by
    number as far as they are known, None if there can be no parameters.
    """

    find_table: FindTable
    find_view: Callable[[RangeVar], str | None] = lambda relation: None
    functions: Mapping[str, tuple[Attribute, ...]] = field(default_factory=dict)
    parameters: dict[int, int] | None = None


class Relations:
    """The relations of one statement."""

    def __init__(self, around: Surroundings, analyze: Analyze) -> None:
        self.around = around
        self.analyze = analyze
        self._numbers: Iterator[int] = count(1)

    def name(self) -> str:
        """Return a name that no other relation has."""
        return f"r{next(self._numbers)}"
