"""Analyzed queries: every name resolved, every coercion in its place (Query of parsenodes.h).

In: what ``select_analysis`` resolved. Out: frozen nodes. Relations have names that nobody else has
(``r1``), their columns numbers (``c1``), so that no rule about names is left to whoever runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sql.grammar.parsenodes import JoinType, SetOperation, SubLinkKind
from penstock.sql.text.object_names import RangeVar
from penstock.sql.typed.primnodes import Node, Var


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a relation. ``type``: oid of pg_type, ``typmod``: its modifier or -1;
    ``default``: of a table's column, a constant as SQL writes it; ``generation``: the expression
    over the table's columns that makes the values of a generated column; ``virtual``: it is made
    when it is read; ``identity``: as pg_attribute.attidentity."""

    name: str
    type: int
    typmod: int = -1
    default: str | None = field(default=None, compare=False)
    generation: str | None = field(default=None, compare=False)
    virtual: bool = field(default=False, compare=False)
    identity: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SortKey:
    """``node``: what rows are ordered by."""

    node: Node
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class SessionValue(Node):
    """What the session says: ``current_user``, ``now``."""

    name: str


@dataclass(frozen=True, slots=True)
class Aggref(Node):
    """An aggregate. ``arguments``: () of count(*)."""

    oid: int
    name: str
    arguments: tuple[Node, ...]
    distinct: bool = False
    order: tuple[SortKey, ...] = ()
    filter: Node | None = None


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """Of a window. ``start``, ``end``: SQL words with the offset in its place, such as
    ``UNBOUNDED PRECEDING``."""

    mode: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class WindowFunc(Node):
    """A function with OVER; ``aggregate``: what it calls."""

    aggregate: Aggref
    partition: tuple[Node, ...]
    order: tuple[SortKey, ...]
    frame: WindowFrame | None


@dataclass(frozen=True, slots=True)
class SubLink(Node):
    """A subquery in an expression.

    ``test``: of ANY and ALL, a comparison in which ``column`` stands for the query's column.
    """

    kind: SubLinkKind
    query: Query
    test: Node | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """Anything in FROM that has columns. ``name``: its own, such as ``r1``."""

    name: str
    columns: tuple[OutputColumn, ...]

    def variables(self) -> tuple[Var, ...]:
        """Its columns, as expressions name them."""
        return tuple(
            Var(column.type, f"c{number}", column.typmod, relation=self.name)
            for number, column in enumerate(self.columns, 1)
        )


@dataclass(frozen=True, slots=True)
class TableScan(Relation):
    """A table of the lake."""

    table: RangeVar


@dataclass(frozen=True, slots=True)
class SubqueryScan(Relation):
    """A query in FROM."""

    query: Query
    lateral: bool = False


@dataclass(frozen=True, slots=True)
class CteScan(Relation):
    """A query of WITH; ``cte``: its own name."""

    cte: str


@dataclass(frozen=True, slots=True)
class SeriesScan(Relation):
    """generate_series of whole numbers, ``stop`` included."""

    start: int
    stop: int
    step: int


@dataclass(frozen=True, slots=True)
class FunctionScan(Relation):
    """A function in FROM, which sees what stands at its left. ``call``: with its arguments."""

    function: str
    call: Node
    ordinality: bool = False


@dataclass(frozen=True, slots=True)
class ValuesScan(Relation):
    """VALUES."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperationScan(Relation):
    """UNION, INTERSECT, EXCEPT; both sides have the types of ``columns``."""

    operation: SetOperation
    all: bool
    left: Query
    right: Query


@dataclass(frozen=True, slots=True)
class Join:
    """``condition`` None: every pair."""

    type: JoinType
    left: FromNode
    right: FromNode
    condition: Node | None


FromNode = Relation | Join


@dataclass(frozen=True, slots=True)
class Cte:
    """A query of WITH by its own name. ``again``: of one that reads itself, what is done with
    the rows of the time before; ``all``: UNION ALL."""

    name: str
    query: Query
    again: Query | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """``columns``: of the result; ``targets``: their values. ``grouped``: one row for each group.
    ``distinct_on``: the first row of those that have these alike.

    ``limit`` None: all rows. Both may be a parameter.
    """

    columns: tuple[OutputColumn, ...]
    targets: tuple[Node, ...]
    from_: tuple[FromNode, ...] = ()
    where: Node | None = None
    grouped: bool = False
    group: tuple[Node, ...] = ()
    having: Node | None = None
    distinct: bool = False
    distinct_on: tuple[Node, ...] = ()
    sort: tuple[SortKey, ...] = ()
    limit: int | Node | None = None
    offset: int | Node = 0
    ctes: tuple[Cte, ...] = ()
