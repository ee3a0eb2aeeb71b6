"""Value expressions as they were written: raw parse trees (parsenodes.h).

In: expressions that ``raw_statements`` reads. Out: frozen nodes with PostgreSQL's names, nothing
looked up: a name may or may not be a column, a literal has no type yet. ``expression_analysis``
makes typed trees of them (``primnodes``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
    """An operator. ``left`` None: a prefix operator. IN and BETWEEN have a list at the right."""

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
    """AND and OR of two or more, NOT of one."""

    operator: BoolOp
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ANullTest(Expression):
    """``argument IS [NOT] NULL``."""

    argument: Expression
    negated: bool


@dataclass(frozen=True, slots=True)
class ABooleanTest(Expression):
    """``argument IS [NOT] TRUE | FALSE | UNKNOWN``; ``test``: the words behind IS."""

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
    """A window. ``name``: of WINDOW, or of OVER name. ``refname``: in OVER (name ...). ``frame``:
    bits of FRAMEOPTION (parsenodes.h)."""

    name: str | None
    refname: str | None
    partition: tuple[Expression, ...]
    order: tuple[SortBy, ...]
    frame: int
    start: Expression | None
    end: Expression | None


@dataclass(frozen=True, slots=True)
class FuncCall(Expression):
    """``name(arguments)``. ``sql_syntax``: written with words of its own, as EXTRACT(x FROM y).
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
    ``steps``: all subscripts and fields, except for slices.
    """

    argument: Expression
    slice: bool = False
    field: str = ""
    steps: tuple[Subscript | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Default(Expression):
    """DEFAULT in place of a value."""
