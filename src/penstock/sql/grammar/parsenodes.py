"""Queries and changes of rows as they were written: raw parse trees (parsenodes.h).

In: statements that ``raw_statements`` reads. Out: frozen nodes with PostgreSQL's names; nothing is
looked up. Expressions are those of ``penstock.sql.grammar.expressions``, and subqueries.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.sql.grammar.expressions import Expression, SortBy, WindowDef
from penstock.sql.text.object_names import RangeVar


class SubLinkKind(Enum):
    """SubLinkType."""

    EXISTS = "exists"
    ANY = "any"
    ALL = "all"
    EXPR = "expr"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class ASubLink(Expression):
    """A subquery in an expression, such as ``test operator ANY (query)``."""

    kind: SubLinkKind
    query: SelectStmt
    test: Expression | None
    operator: str


@dataclass(frozen=True, slots=True)
class Star:
    """``*`` or ``relation.*``."""

    qualifier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResTarget:
    """An item of a SELECT list or of SET. ``name``: the alias, or the column that is set."""

    value: Expression | Star
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """``AS name (columns)``."""

    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeTable:
    """A table, or a query of WITH, by its name."""

    relation: RangeVar
    alias: Alias | None = None


@dataclass(frozen=True, slots=True)
class RangeSubselect:
    """A query in FROM."""

    query: SelectStmt
    alias: Alias | None = None
    lateral: bool = False


@dataclass(frozen=True, slots=True)
class RangeFunction:
    """A function in FROM. ``ordinality``: its rows are numbered."""

    call: Expression
    alias: Alias | None = None
    ordinality: bool = False


class JoinType(Enum):
    """JoinType of nodes.h."""

    INNER = "INNER"
    LEFT = "LEFT"
    RIGHT = "RIGHT"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class JoinExpr:
    """A JOIN. CROSS JOIN is an inner one without a condition."""

    type: JoinType
    left: FromItem
    right: FromItem
    natural: bool = False
    using: tuple[str, ...] = ()
    condition: Expression | None = None


FromItem = RangeTable | RangeSubselect | RangeFunction | JoinExpr


class SetOperation(Enum):
    """SetOperation of parsenodes.h."""

    UNION = "UNION"
    INTERSECT = "INTERSECT"
    EXCEPT = "EXCEPT"


@dataclass(frozen=True, slots=True)
class CommonTableExpr:
    """A query of WITH."""

    name: str
    query: SelectStmt
    columns: tuple[str, ...] = ()
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class SelectStmt:
    """SELECT, VALUES, TABLE, or two of them joined by ``operation``.

    ``distinct`` None: all rows; (): DISTINCT; expressions: DISTINCT ON.
    """

    targets: tuple[ResTarget, ...] = ()
    from_: tuple[FromItem, ...] = ()
    where: Expression | None = None
    group: tuple[Expression, ...] = ()
    having: Expression | None = None
    distinct: tuple[Expression, ...] | None = None
    windows: tuple[WindowDef, ...] = ()
    values: tuple[tuple[Expression, ...], ...] = ()
    order: tuple[SortBy, ...] = ()
    limit: Expression | None = None
    offset: Expression | None = None
    ctes: tuple[CommonTableExpr, ...] = ()
    operation: SetOperation | None = None
    all: bool = False
    left: SelectStmt | None = None
    right: SelectStmt | None = None


class Overriding(Enum):
    """OverridingKind: the treatment of values for identity columns."""

    NOT_SET = "OVERRIDING_NOT_SET"
    USER_VALUE = "OVERRIDING_USER_VALUE"
    SYSTEM_VALUE = "OVERRIDING_SYSTEM_VALUE"


@dataclass(frozen=True, slots=True)
class InsertStmt:
    """INSERT INTO. ``columns`` None: all columns. ``query`` None: DEFAULT VALUES."""

    relation: RangeVar
    columns: tuple[str, ...] | None
    query: SelectStmt | None
    override: Overriding = Overriding.NOT_SET


@dataclass(frozen=True, slots=True)
class UpdateStmt:
    """UPDATE. ``targets``: columns with their values."""

    relation: RangeVar
    alias: Alias | None
    targets: tuple[ResTarget, ...]
    where: Expression | None


@dataclass(frozen=True, slots=True)
class DeleteStmt:
    """DELETE FROM."""

    relation: RangeVar
    alias: Alias | None
    where: Expression | None


QueryStatement = SelectStmt | InsertStmt | UpdateStmt | DeleteStmt
