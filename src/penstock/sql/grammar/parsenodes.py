"""Queries, changes of rows and their expressions as they were written (parsenodes.h).

``raw_statements`` reads the grammar's tree into these frozen nodes, which have PostgreSQL's names.
Nothing is looked up: a name may or may not be a column, and a literal has no type yet. The analysis
(``penstock.sql.typed``) turns these nodes into typed trees.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from penstock.interrupts import check_for_interrupts


@dataclass(frozen=True, slots=True)
class RangeVar:
    """A table's name. ``only``: the name was written with ONLY, which excludes partitions."""

    name: str
    schema: str | None = None
    catalog: str | None = None
    only: bool = False

    def __str__(self) -> str:
        """Return the name as written, without quotes."""
        return ".".join(part for part in (self.catalog, self.schema, self.name) if part)


class RoleKind(Enum):
    """RoleSpecType."""

    NAME = "name"
    CURRENT_ROLE = "CURRENT_ROLE"
    CURRENT_USER = "CURRENT_USER"
    SESSION_USER = "SESSION_USER"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """A role's name, or a word such as CURRENT_USER; ``name`` is empty unless ``kind`` is NAME."""

    name: str = ""
    kind: RoleKind = RoleKind.NAME


@dataclass(frozen=True, slots=True)
class DefElem:
    """One option as written: ``name``, ``name = value`` (DefElem).

    ``arg``: None without a value, int for an integer, else the text that PostgreSQL's defGetString
    returns. Names and unquoted words are folded to lower case.
    """

    name: str
    arg: str | int | None = None


@dataclass(frozen=True, slots=True)
class Statement:
    """Any statement. ``notices``: NOTICEs (42622) that parsing raised."""

    notices: tuple[str, ...] = field(default=(), kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Expression:
    """Any raw expression."""


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as written. ``names``: without pg_catalog; ``array``: [] or ARRAY follows it."""

    names: tuple[str, ...]
    typmods: tuple[int, ...] = ()
    array: bool = False


@dataclass(frozen=True, slots=True)
class ColumnRef(Expression):
    """``[[schema.]table.]column``."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParamRef(Expression):
    """``$number``."""

    number: int


@dataclass(frozen=True, slots=True)
class ParamValue(Expression):
    """A parameter with the value from Bind (ParamExternData). ``text``: None for NULL."""

    type_oid: int
    text: str | None


class ConstKind(Enum):
    """The kind of a literal in the text."""

    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    BOOLEAN = "boolean"
    NULL = "null"


@dataclass(frozen=True, slots=True)
class AConst(Expression):
    """A literal; ``value``: its text, signs folded into numbers, ``true`` or ``false``."""

    kind: ConstKind
    value: str = ""


@dataclass(frozen=True, slots=True)
class ALiterals(Expression):
    """Many literals of one kind, or NULL: all items of an IN, or a whole column of a VALUES, whose
    only row has it."""

    kind: ConstKind
    values: tuple[str | None, ...]


class AExprKind(Enum):
    """A_Expr_Kind."""

    OP = "op"
    OP_ANY = "any"
    OP_ALL = "all"
    DISTINCT = "distinct"
    NOT_DISTINCT = "not distinct"
    NULLIF = "nullif"
    IN = "in"
    LIKE = "like"
    ILIKE = "ilike"
    SIMILAR = "similar"
    BETWEEN = "between"
    NOT_BETWEEN = "not between"
    BETWEEN_SYM = "between symmetric"
    NOT_BETWEEN_SYM = "not between symmetric"


@dataclass(frozen=True, slots=True)
class AExpr(Expression):
    """An operator. ``left`` None: a prefix operator. For IN and BETWEEN ``right`` is a list."""

    kind: AExprKind
    operator: str
    left: Expression | None
    right: Expression | tuple[Expression, ...]


class BoolOp(Enum):
    """BoolExprType."""

    AND = "AND"
    OR = "OR"
    NOT = "NOT"


@dataclass(frozen=True, slots=True)
class ABool(Expression):
    """AND and OR of two or more operands, NOT of one."""

    operator: BoolOp
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ANullTest(Expression):
    """``argument IS [NOT] NULL``."""

    argument: Expression
    negated: bool


@dataclass(frozen=True, slots=True)
class ABooleanTest(Expression):
    """``argument IS [NOT] TRUE | FALSE | UNKNOWN``; ``test``: the words after IS."""

    argument: Expression
    test: str


@dataclass(frozen=True, slots=True)
class TypeCast(Expression):
    """``argument::type``, ``CAST(argument AS type)`` or ``type 'literal'``."""

    argument: Expression
    type: TypeName


@dataclass(frozen=True, slots=True)
class CollateClause(Expression):
    """``argument COLLATE name``."""

    argument: Expression
    collation: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SortBy:
    """An item of ORDER BY. ``nulls_first`` None: the direction decides."""

    expression: Expression
    descending: bool = False
    nulls_first: bool | None = None


@dataclass(frozen=True, slots=True)
class WindowDef:
    """A window. ``name``: the name in WINDOW, or in OVER name. ``refname``: the name in
    OVER (name ...). ``frame``: FRAMEOPTION bits (parsenodes.h)."""

    name: str | None
    refname: str | None
    partition: tuple[Expression, ...]
    order: tuple[SortBy, ...]
    frame: int
    start: Expression | None
    end: Expression | None


@dataclass(frozen=True, slots=True)
class FuncCall(Expression):
    """``name(arguments)``. ``sql_syntax``: the call has SQL's own syntax: EXTRACT(x FROM y).
    ``star``: ``count(*)``. The other fields are for aggregates and window functions."""

    name: tuple[str, ...]
    arguments: tuple[Expression, ...]
    sql_syntax: bool = False
    star: bool = False
    distinct: bool = False
    order: tuple[SortBy, ...] = ()
    filter: Expression | None = None
    over: WindowDef | None = None
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class NamedArg(Expression):
    """``name => argument`` in a call."""

    name: str
    argument: Expression


@dataclass(frozen=True, slots=True)
class ACase(Expression):
    """``CASE [argument] WHEN ... THEN ... [ELSE default] END``."""

    argument: Expression | None
    whens: tuple[tuple[Expression, Expression], ...]
    default: Expression | None


@dataclass(frozen=True, slots=True)
class ACoalesce(Expression):
    """``COALESCE(arguments)``."""

    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AMinMax(Expression):
    """``GREATEST(arguments)`` or ``LEAST(arguments)``."""

    greatest: bool
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AArray(Expression):
    """``ARRAY[elements]``."""

    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ARow(Expression):
    """``ROW(...)`` or ``(a, b)``."""

    fields: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class SqlValueFunction(Expression):
    """CURRENT_USER, CURRENT_DATE and the like. ``typmod``: the digits of CURRENT_TIME(3), or -1."""

    name: str
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class Subscript:
    """``[index]``"""

    index: Expression


@dataclass(frozen=True, slots=True)
class Indirection(Expression):
    """``argument[...]``, ``(argument).field``.

    ``slice``: a subscript has a colon. ``field``: the first field, "" if there are only subscripts.
    ``steps``: all subscripts and fields in order, without slices.
    """

    argument: Expression
    slice: bool = False
    field: str = ""
    steps: tuple[Subscript | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Default(Expression):
    """DEFAULT in place of a value."""


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
    """A table or a WITH query in FROM, by its name."""

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
    """A JOIN. CROSS JOIN is an inner join without a condition."""

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
    """SELECT, VALUES, TABLE, or two such queries combined by ``operation``.

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
    """OverridingKind: what to do with values for identity columns."""

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
    """UPDATE. ``targets``: the columns with their new values."""

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


RowStmt = InsertStmt | UpdateStmt | DeleteStmt
"""A statement that changes rows."""
PreparableStmt = SelectStmt | RowStmt


def field_names(kind: type) -> Collection[str]:
    """Return the names of a class's fields, none if it is no node's. ``dataclasses.fields`` would
    be half the time of a catalog query."""
    return getattr(kind, "__dataclass_fields__", ())


def nodes_of(tree: Any) -> Iterator[Any]:
    """Yield every node of a tree, the root included (raw_expression_tree_walker)."""
    left = [tree]
    while left:
        item = left.pop()
        if isinstance(item, tuple):
            left += reversed(item)
        elif hasattr(type(item), "__dataclass_fields__"):
            check_for_interrupts()
            yield item
            if not isinstance(item, ALiterals):
                left += [getattr(item, name) for name in field_names(type(item))][::-1]


def mutated(tree: Any, change: Callable[[Expression], Expression | None]) -> Any:
    """Return the tree with expressions replaced (expression_tree_mutator). ``change`` returns the
    replacement of an expression, or None to keep it and change the expressions below it."""
    if isinstance(tree, tuple):
        items = tuple(mutated(item, change) for item in tree)
        return tree if all(map(operator.is_, items, tree)) else items
    if isinstance(tree, ALiterals) or not hasattr(type(tree), "__dataclass_fields__"):
        return tree
    check_for_interrupts()
    if isinstance(tree, Expression) and (found := change(tree)) is not None:
        return found
    values = {name: getattr(tree, name) for name in field_names(type(tree))}
    new = {name: mutated(value, change) for name, value in values.items()}
    changed = {name: value for name, value in new.items() if value is not values[name]}
    return replace(tree, **changed) if changed else tree
