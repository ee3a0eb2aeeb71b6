"""Turn operators of raw expressions into typed nodes (parse_oper.c, transformAExpr... functions).

The caller's analysis transforms the operands. IN becomes ANY over an array, BETWEEN becomes two
comparisons, and IS DISTINCT FROM NULL becomes a null test.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final, Protocol

from penstock.errors import WrongObjectType
from penstock.pgtypes.pg_type import BOOL, UNKNOWN
from penstock.sql.grammar.parsenodes import (
    AConst,
    AExpr,
    AExprKind,
    BoolOp,
    ConstKind,
    Expression,
)
from penstock.sql.text.limits import too_deep
from penstock.sql.typed.candidates import find_operator
from penstock.sql.typed.coercion import (
    POLYMORPHIC,
    array_of,
    can_coerce,
    coerce,
    common_type,
    concrete,
    element,
    resolve_polymorphic,
    to_boolean,
    to_common_type,
)
from penstock.sql.typed.primnodes import (
    ArrayExpr,
    BoolExpr,
    Const,
    Constants,
    DistinctExpr,
    Form,
    Node,
    NullIfExpr,
    NullTest,
    OpExpr,
    ScalarArrayOpExpr,
    Var,
    children,
)
from penstock.sqlstate import DatatypeMismatch

_NULL: Final = AConst(ConstKind.NULL)
_MAX_REPEATED: Final = 1000
"""The most nodes of an operand that is used more than once in the tree."""


class Transforms(Protocol):
    """The analysis that turns operands into typed trees."""

    def transform(self, raw: Expression) -> Node: ...


def transform_operator(analysis: Transforms, raw: AExpr) -> Node:
    """Return the typed tree of an operator expression."""
    if isinstance(raw.right, tuple):
        if raw.kind is AExprKind.IN:
            return _in(analysis, raw)
        return _between(analysis, raw)
    assert raw.left is not None or raw.kind is AExprKind.OP
    right_raw = raw.right
    match raw.kind:
        case AExprKind.DISTINCT | AExprKind.NOT_DISTINCT:
            return _distinct(analysis, raw, right_raw)
        case AExprKind.NULLIF:
            assert raw.left is not None
            return _null_if(analysis.transform(raw.left), analysis.transform(right_raw))
        case AExprKind.OP_ANY | AExprKind.OP_ALL:
            assert raw.left is not None
            left, right = analysis.transform(raw.left), analysis.transform(right_raw)
            return _scalar_array(raw.operator, left, right, raw.kind is AExprKind.OP_ANY)
    left_node = None if raw.left is None else analysis.transform(raw.left)
    return make_operator(raw.operator, left_node, analysis.transform(right_raw))


def make_operator(name: str, left: Node | None, right: Node) -> OpExpr:
    """Find the operator and coerce its arguments (make_op). Raises 42883, 42725."""
    operator = find_operator(name, left.type if left else None, right.type)
    nodes = (right,) if left is None else (left, right)
    declared = (operator.right,) if left is None else (operator.left, operator.right)
    arguments, result = coerced(nodes, declared, operator.result)
    return OpExpr(result, operator.oid, operator.function, name, arguments)


def coerced(
    nodes: tuple[Node, ...], declared: tuple[int, ...], result: int
) -> tuple[tuple[Node, ...], int]:
    """Coerce arguments to a function's declared types; return them and the result type."""
    resolved = resolve_polymorphic([node.type for node in nodes], declared)
    if resolved is None:
        raise DatatypeMismatch(
            "could not determine polymorphic type because input has type unknown",
        )
    arguments = tuple(
        coerce(node, concrete(target, resolved), "i", Form.IMPLICIT)
        for node, target in zip(nodes, declared, strict=True)
    )
    return arguments, concrete(result, resolved)


def _distinct(analysis: Transforms, raw: AExpr, right_raw: Expression) -> Node:
    assert raw.left is not None
    negated = raw.kind is AExprKind.NOT_DISTINCT
    if right_raw == _NULL:
        return NullTest(BOOL, analysis.transform(raw.left), not negated)
    if raw.left == _NULL:
        return NullTest(BOOL, analysis.transform(right_raw), not negated)
    made = make_operator("=", analysis.transform(raw.left), analysis.transform(right_raw))
    _require_boolean(made, "IS DISTINCT FROM")
    node = DistinctExpr(BOOL, made.oid, made.function, made.name, made.arguments)
    return BoolExpr(BOOL, BoolOp.NOT, (node,)) if negated else node


def _null_if(left: Node, right: Node) -> Node:
    made = make_operator("=", left, right)
    _require_boolean(made, "NULLIF")
    type_ = made.arguments[0].type
    return NullIfExpr(type_, made.oid, made.function, made.name, made.arguments)


def _require_boolean(node: OpExpr, construct: str) -> None:
    if node.type != BOOL:
        raise DatatypeMismatch(f"{construct} requires = operator to yield boolean")


def _scalar_array(name: str, left: Node, right: Node, any_: bool) -> Node:
    """Make ``op ANY`` or ``op ALL`` over an array (make_scalar_array_op)."""
    item = UNKNOWN if right.type == UNKNOWN else element(right.type)
    if not item:
        raise WrongObjectType("op ANY/ALL (array) requires array on right side")
    operator = find_operator(name, left.type, item)
    if operator.result != BOOL:
        raise WrongObjectType("op ANY/ALL (array) requires operator to yield boolean")
    resolved = resolve_polymorphic((left.type, item), (operator.left, operator.right))
    if resolved is None or (operator.right in POLYMORPHIC and element(item)):
        raise DatatypeMismatch(
            "could not determine polymorphic type because input has type unknown",
        )
    left = coerce(left, concrete(operator.left, resolved), "i", Form.IMPLICIT)
    right = coerce(right, array_of(concrete(operator.right, resolved)), "i", Form.IMPLICIT)
    return ScalarArrayOpExpr(BOOL, operator.oid, operator.function, name, (left, right), any_)


def _in(analysis: Transforms, raw: AExpr) -> Node:
    """Analyze IN: constants form an array, columns are compared one by one (transformAExprIn)."""
    assert raw.left is not None and isinstance(raw.right, tuple)
    left = analysis.transform(raw.left)
    items = [analysis.transform(item) for item in raw.right]
    if len(items) > 1:
        _check_repeatable(left)
    constants = [item for item in items if not contains_var(item)]
    any_ = raw.operator == "="
    result: Node | None = None
    if len(constants) > 1 or any(isinstance(item, Constants) for item in items):
        type_ = common_type([left.type, *(item.type for item in constants)])
        fits = type_ is not None and all(
            can_coerce([node.type], [type_]) for node in (left, *constants)
        )
        if type_ is not None and fits and array_of(type_):
            elements = tuple(to_common_type(item, type_, "IN") for item in constants)
            array = ArrayExpr(array_of(type_), elements)
            result = _scalar_array(raw.operator, left, array, any_)
            items = [item for item in items if contains_var(item)]
    for each in chain.from_iterable(map(_each, items)):
        compared = to_boolean(make_operator(raw.operator, left, each), "IN")
        operator = BoolOp.OR if any_ else BoolOp.AND
        result = compared if result is None else BoolExpr(BOOL, operator, (result, compared))
    assert result is not None
    return result


def _each(item: Node) -> Iterable[Node]:
    if isinstance(item, Constants):
        return (Const(item.type, text) for text in item.texts)
    return (item,)


def contains_var(node: Node) -> bool:
    """Tell whether the node uses a column (contain_vars_of_level)."""
    return isinstance(node, Var) or any(contains_var(child) for child in children(node))


def _between(analysis: Transforms, raw: AExpr) -> Node:
    """Analyze BETWEEN: comparisons joined by AND and OR (transformAExprBetween)."""
    assert raw.left is not None and isinstance(raw.right, tuple)
    value, low, high = (analysis.transform(each) for each in (raw.left, *raw.right))
    for each in (value, low, high):
        _check_repeatable(each)
    symmetric = raw.kind in (AExprKind.BETWEEN_SYM, AExprKind.NOT_BETWEEN_SYM)
    inside = raw.kind in (AExprKind.BETWEEN, AExprKind.BETWEEN_SYM)
    names, inner = ((">=", "<="), BoolOp.AND) if inside else (("<", ">"), BoolOp.OR)

    def joined(*bounds: Node) -> Node:
        compared = (
            to_boolean(make_operator(name, value, bound), inner.value)
            for name, bound in zip(names, bounds, strict=True)
        )
        return BoolExpr(BOOL, inner, tuple(compared))

    if not symmetric:
        return joined(low, high)
    outer = BoolOp.OR if inside else BoolOp.AND
    return BoolExpr(BOOL, outer, (joined(low, high), joined(high, low)))


def _check_repeatable(node: Node) -> None:
    """Refuse to repeat a large operand: nested, a short text would become a huge tree."""
    waiting, seen = [node], 0
    while waiting:
        waiting += children(waiting.pop())
        seen += 1
        if seen > _MAX_REPEATED:
            raise too_deep()
