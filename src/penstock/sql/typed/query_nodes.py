"""Analyzed queries: every name resolved, every coercion in its place (Query of parsenodes.h).

``select_analysis`` makes these frozen nodes. Each relation has a unique name (``r1``) and numbers
its columns (``c1``), so the code that runs the nodes needs no rules about names.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.attribute import Attribute
from penstock.sql.grammar.parsenodes import JoinType, RangeVar, SetOperation, SubLinkKind
from penstock.sql.typed.primnodes import Node, Var


@dataclass(frozen=True, slots=True)
class SortKey:
    """An item of ORDER BY. ``node``: the expression by which rows are ordered."""

    node: Node
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class SessionValue(Node):
    """A value of the session: ``current_user``, ``now``."""

    name: str


@dataclass(frozen=True, slots=True)
class Aggref(Node):
    """An aggregate. ``arguments``: () for count(*)."""

    oid: int
    name: str
    arguments: tuple[Node, ...]
    distinct: bool = False
    order: tuple[SortKey, ...] = ()
    filter: Node | None = None


@dataclass(frozen=True, slots=True)
class WindowFrame:
    """The frame of a window. ``start``, ``end``: SQL words with the offset in its place, such as
    ``UNBOUNDED PRECEDING``."""

    mode: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class WindowFunc(Node):
    """A function with OVER. ``aggregate``: the call itself."""

    aggregate: Aggref
    partition: tuple[Node, ...]
    order: tuple[SortKey, ...]
    frame: WindowFrame | None


@dataclass(frozen=True, slots=True)
class SubLink(Node):
    """A subquery in an expression.

    ``test``: for ANY and ALL, a comparison in which ``column`` stands for the query's column.
    """

    kind: SubLinkKind
    query: Query
    test: Node | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """Anything in FROM that has columns. ``name``: its own, such as ``r1``."""

    name: str
    columns: tuple[Attribute, ...]

    def variables(self) -> tuple[Var, ...]:
        """Return its columns, as expressions name them."""
        return tuple(
            Var(column.type_oid, f"c{number}", column.typmod, relation=self.name)
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
    """A function in FROM, which sees the relations at its left. ``call``: with its arguments."""

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
    """A join. ``condition`` None: every pair."""

    type: JoinType
    left: FromNode
    right: FromNode
    condition: Node | None


FromNode = Relation | Join


@dataclass(frozen=True, slots=True)
class Cte:
    """A query of WITH by its unique name.

    ``again``: the second query of a recursive one, over the rows of the previous step. ``all``:
    UNION ALL.
    """

    name: str
    query: Query
    again: Query | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``columns``: of the result; ``targets``: their values.

    ``grouped``: one row for each group. ``distinct_on``: only the first of the rows that are equal
    in these values. ``limit`` None: all rows. ``limit`` and ``offset`` may be a parameter.
    """

    columns: tuple[Attribute, ...]
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
