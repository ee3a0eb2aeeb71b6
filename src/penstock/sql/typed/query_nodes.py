"""Analyzed queries: all names are resolved, all coercions added (Query of parsenodes.h).

``select_analysis`` makes these frozen nodes. Relations have unique names (``r1``) and numbered
columns (``c1``), so the code that runs the nodes needs no rules about names.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.attribute import Attribute
from penstock.sql.grammar.parsenodes import JoinType, RangeVar, SetOperation, SubLinkKind
from penstock.sql.typed.primnodes import Node, Var


@dataclass(frozen=True, slots=True)
class SortKey:
    """An item of ORDER BY. ``node``: the expression that rows are ordered by."""

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
    """The frame of a window. ``start``, ``end``: SQL such as ``1 PRECEDING``, offsets filled in."""

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

    ``test``: for ANY and ALL, the comparison; in it, ``column`` stands for the query's column.
    """

    kind: SubLinkKind
    query: Query
    test: Node | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """An item of FROM that has columns. ``name``: a unique name, such as ``r1``."""

    name: str
    columns: tuple[Attribute, ...]

    def variables(self) -> tuple[Var, ...]:
        """Return the relation's columns, for use in expressions."""
        return tuple(
            Var(column.type_oid, f"c{number}", column.typmod, relation=self.name)
            for number, column in enumerate(self.columns, 1)
        )


@dataclass(frozen=True, slots=True)
class TableScan(Relation):
    """A table of the lake, or a catalog. ``system``: the system columns that it has."""

    table: RangeVar
    system: tuple[Attribute, ...] = ()

    def system_variables(self) -> tuple[Var, ...]:
        """Return the system columns, which ``*`` leaves out, for use in expressions."""
        return tuple(
            Var(column.type_oid, column.name, relation=self.name) for column in self.system
        )


@dataclass(frozen=True, slots=True)
class SubqueryScan(Relation):
    """A query in FROM."""

    query: Query
    lateral: bool = False


@dataclass(frozen=True, slots=True)
class CteScan(Relation):
    """A reference to a WITH query; ``cte``: the name of the query."""

    cte: str


@dataclass(frozen=True, slots=True)
class SeriesScan(Relation):
    """generate_series of constant integers, ``stop`` included."""

    start: int
    stop: int
    step: int


@dataclass(frozen=True, slots=True)
class FunctionScan(Relation):
    """A function in FROM. ``call``: the call; its arguments may use relations further left."""

    function: str
    call: Node
    ordinality: bool = False


@dataclass(frozen=True, slots=True)
class ValuesScan(Relation):
    """VALUES."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class SetOperationScan(Relation):
    """UNION, INTERSECT or EXCEPT; both sides have the types of ``columns``."""

    operation: SetOperation
    all: bool
    left: Query
    right: Query


@dataclass(frozen=True, slots=True)
class Join:
    """A join. ``condition`` None: every pair of rows matches."""

    type: JoinType
    left: FromNode
    right: FromNode
    condition: Node | None


FromNode = Relation | Join


@dataclass(frozen=True, slots=True)
class Cte:
    """A query of WITH with its unique name.

    ``again``: the recursive term, which reads the rows of the previous step; None if the query is
    not recursive. ``all``: UNION ALL.
    """

    name: str
    query: Query
    again: Query | None = None
    all: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A query. ``columns``: the result's columns; ``targets``: their values.

    ``grouped``: one row for each group. ``distinct_on``: the keys of DISTINCT ON. ``limit`` None:
    all rows. ``limit`` and ``offset`` may be parameters.
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
