"""Typed value expressions: the nodes that are executed (primnodes.h).

``expression_analysis`` makes these frozen nodes, which have PostgreSQL's names. ``type`` is an oid
of pg_type; ``typmod`` is the type modifier or -1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import is_
from typing import Any, Final

from penstock.interrupts import check_for_interrupts
from penstock.sql.grammar.parsenodes import BoolOp


class Form(Enum):
    """CoercionForm: how a function or coercion was written."""

    CALL = "call"
    SQL = "sql"
    EXPLICIT = "explicit"
    IMPLICIT = "implicit"


@dataclass(frozen=True, slots=True)
class Node:
    """Any typed expression."""

    type: int


@dataclass(frozen=True, slots=True)
class Var(Node):
    """A column. ``system``: it is ctid, xmin and the like, or the whole row.

    ``relation``: the name of its relation in the query; "" if there is only one table.
    """

    name: str
    typmod: int = -1
    system: bool = False
    relation: str = ""


@dataclass(frozen=True, slots=True)
class Const(Node):
    """A constant. ``text``: as the type's output function prints it, None for NULL."""

    text: str | None
    typmod: int = -1


@dataclass(frozen=True, slots=True)
class Constants(Node):
    """The constants of a whole column of VALUES, or all elements of an ARRAY[...], which has it as
    its only element. ``texts``: as in ``Const``."""

    texts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class BoundValue(Const):
    """A string that replaces a parameter. As no one prints it, a cast makes a constant of it, as in
    PostgreSQL's planner."""


@dataclass(frozen=True, slots=True)
class Param(Node):
    """``$number``. ``types``: the known types of the statement's parameters."""

    number: int
    types: dict[int, int] = field(compare=False, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class SubscriptingRef(Node):
    """An element of an array."""

    array: Node
    index: Node


@dataclass(frozen=True, slots=True)
class FieldSelect(Node):
    """A field of a row."""

    argument: Node
    name: str


@dataclass(frozen=True, slots=True)
class FuncExpr(Node):
    """A function call. For a coercion, ``arguments`` holds the value alone."""

    oid: int
    name: str
    arguments: tuple[Node, ...]
    form: Form = Form.CALL
    typmod: int = -1


def is_cast(node: FuncExpr) -> bool:
    """Tell whether the call is a coercion, not a call by name."""
    return node.form in (Form.IMPLICIT, Form.EXPLICIT)


@dataclass(frozen=True, slots=True)
class OperatorCall(Node):
    """A call of an operator with one or two arguments; ``function``: oid in pg_proc.

    The four kinds compute different values from the same operator: ``IS DISTINCT FROM``, for
    example, negates it. No kind is a subclass of another, so ``isinstance`` tests for one kind.
    """

    oid: int
    function: int
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OpExpr(OperatorCall):
    """The operator itself."""


@dataclass(frozen=True, slots=True)
class DistinctExpr(OperatorCall):
    """IS DISTINCT FROM; ``name`` is the name of the equality operator."""


@dataclass(frozen=True, slots=True)
class NullIfExpr(OperatorCall):
    """NULLIF; ``type`` is that of the first argument, ``name`` the equality operator's name."""


@dataclass(frozen=True, slots=True)
class ScalarArrayOpExpr(OperatorCall):
    """``a op ANY (array)``, or ``a op ALL (array)`` if ``any`` is False."""

    any: bool = True


@dataclass(frozen=True, slots=True)
class BoolExpr(Node):
    """AND, OR, NOT."""

    operator: BoolOp
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Coercion(Node):
    """The common fields of the three coercions that call no cast function."""

    argument: Node
    typmod: int = -1
    form: Form = Form.IMPLICIT


@dataclass(frozen=True, slots=True)
class RelabelType(Coercion):
    """A cast that changes no bytes."""


@dataclass(frozen=True, slots=True)
class CoerceViaIO(Coercion):
    """A cast by the output and input functions."""


@dataclass(frozen=True, slots=True)
class ArrayCoerceExpr(Coercion):
    """A cast of every element."""


@dataclass(frozen=True, slots=True)
class CollateExpr(Node):
    """COLLATE."""

    argument: Node
    collation: str


@dataclass(frozen=True, slots=True)
class CaseWhen(Node):
    """One branch of CASE."""

    condition: Node
    result: Node


@dataclass(frozen=True, slots=True)
class CaseExpr(Node):
    """CASE. With ``argument``, each condition compares it: its left operand is a CaseTestExpr."""

    argument: Node | None
    whens: tuple[CaseWhen, ...]
    default: Node


@dataclass(frozen=True, slots=True)
class CaseTestExpr(Node):
    """The argument of the CASE around it."""

    typmod: int = -1


@dataclass(frozen=True, slots=True)
class ArrayExpr(Node):
    """ARRAY[...]."""

    elements: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class CoalesceExpr(Node):
    """COALESCE."""

    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class MinMaxExpr(Node):
    """GREATEST or LEAST."""

    greatest: bool
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NullTest(Node):
    """IS [NOT] NULL."""

    argument: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class BooleanTest(Node):
    """IS [NOT] TRUE | FALSE | UNKNOWN; ``test``: the words after IS."""

    argument: Node
    test: str


@dataclass(frozen=True, slots=True)
class OtherNode(Node):
    """An expression that is not evaluated here, such as a subquery or CURRENT_USER.

    ``mutable``: the expression depends on the session or the time.
    """

    name: str
    mutable: bool = False


_LEAVES: Final = (Var, Const, Constants)


def children(node: Node) -> tuple[Node, ...]:
    """Return the child nodes, in the order of PostgreSQL's expression_tree_walker."""
    if isinstance(node, _LEAVES):
        return ()
    found: list[Node] = []
    for name in node.__match_args__:
        value = getattr(node, name)
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, tuple):
            found += [item for item in value if isinstance(item, Node)]
    return tuple(found)


def column_names(node: Node) -> frozenset[str]:
    """Return the names of the columns that an expression over one table uses."""
    own = {node.name} if isinstance(node, Var) else set()
    return frozenset(own).union(*map(column_names, children(node)))


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return the expression with its columns replaced by values (ReplaceVarsFromTargetList)."""
    if isinstance(node, Var):
        return values[node.name]
    return mutated(node, lambda child: substituted(child, values))


def mutated(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the node with ``change`` of each of its children (expression_tree_mutator)."""
    check_for_interrupts()
    if isinstance(node, _LEAVES):
        return node
    changed: dict[str, Any] = {}
    for name in node.__match_args__:
        value = getattr(node, name)
        if isinstance(value, Node):
            new: object = change(value)
        elif isinstance(value, tuple):
            new = tuple([change(item) if isinstance(item, Node) else item for item in value])
            if all(map(is_, new, value)):
                continue
        else:
            continue
        if new is not value:
            changed[name] = new
    return replace(node, **changed) if changed else node


def typmod_of(node: Node) -> int:
    """Return the modifier of an expression's values, or -1 if it is unknown (exprTypmod)."""
    if isinstance(node, CollateExpr):
        return typmod_of(node.argument)
    if isinstance(node, CoalesceExpr | MinMaxExpr):
        return _common(node.type, node.arguments)
    if isinstance(node, CaseExpr):
        return _common(node.type, (node.default, *(when.result for when in node.whens)))
    if isinstance(node, NullIfExpr):
        return typmod_of(node.arguments[0])
    if isinstance(node, ArrayExpr):
        first = node.elements[0] if node.elements else None
        return -1 if first is None else _common(first.type, node.elements)
    return int(getattr(node, "typmod", -1))


def _common(type_: int, nodes: tuple[Node, ...]) -> int:
    typmods = {typmod_of(node) if node.type == type_ else -1 for node in nodes}
    return typmods.pop() if len(typmods) == 1 else -1
