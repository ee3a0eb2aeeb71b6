"""Print typed expressions as pg_get_expr does (ruleutils.c, get_rule_expr).

A typed tree over one table becomes SQL text with all parentheses, casts and types that PostgreSQL
prints. Parsing the text again gives the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import singledispatch
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.identifiers import simple_quote_literal
from penstock.pgtypes.pg_type import BOOL, INT4, NUMERIC, UNKNOWN
from penstock.sql.grammar.parsenodes import BoolOp
from penstock.sql.text.quoting import quote_identifier, type_text
from penstock.sql.typed.primnodes import (
    ArrayExpr,
    BooleanTest,
    BoolExpr,
    CaseExpr,
    CaseTestExpr,
    CoalesceExpr,
    Coercion,
    CollateExpr,
    Const,
    DistinctExpr,
    Form,
    FuncExpr,
    MinMaxExpr,
    Node,
    NullIfExpr,
    NullTest,
    OpExpr,
    ScalarArrayOpExpr,
    Var,
    is_cast,
)

_INDENT: Final = "    "
_BREAK: Final = "\0"
"""Marks line breaks of the layout, as opposed to line breaks inside strings."""


def deparse(node: Node) -> str:
    """Return the text of a whole expression."""
    return re.sub(f" *{_BREAK}", "\n", _show(node, False))


def _show(node: Node, implicit: bool) -> str:
    """Print a node (get_rule_expr). ``implicit``: also print implicit coercions."""
    if isinstance(node, Coercion | FuncExpr) and node.form is Form.IMPLICIT and not implicit:
        return _show(_argument(node), False)
    return _text(node)


def _argument(node: Coercion | FuncExpr) -> Node:
    return node.arguments[0] if isinstance(node, FuncExpr) else node.argument


@singledispatch
def _text(node: Node) -> str:
    raise FeatureNotSupported(f"{type(node).__name__} cannot be printed")


@_text.register
def _var(node: Var) -> str:
    return quote_identifier(node.name)


@_text.register
def _const(node: Const) -> str:
    if node.text is None:
        return f"NULL::{type_text(node.type, node.typmod)}"
    return _labelled(node)


def _labelled(node: Const) -> str:
    text = node.text or ""
    if node.type == BOOL:
        return "true" if text == "t" else "false"
    if node.type == INT4 and text[0] != "-":
        return text
    if node.type == NUMERIC and text[0].isdigit() and ("." in text or "e" in text):
        return text if node.typmod < 0 else f"{text}::{type_text(node.type, node.typmod)}"
    if node.type == UNKNOWN:
        return simple_quote_literal(text)
    return f"{simple_quote_literal(text)}::{type_text(node.type, node.typmod)}"


def _bare(node: Const) -> str:
    """Print a constant without its type (showtype -1)."""
    text = node.text
    if text is None:
        return "NULL"
    plain = node.type in (BOOL, INT4, NUMERIC)
    labelled = _labelled(node)
    return labelled if plain and not labelled.startswith("'") else simple_quote_literal(text)


@_text.register
def _coercion(node: Coercion) -> str:
    return _cast(node.argument, node.type, node.typmod)


def _cast(argument: Node, type_: int, typmod: int) -> str:
    """Print a coercion (get_coercion_expr)."""
    if isinstance(argument, Const) and argument.type == type_ and argument.typmod == -1:
        return f"{_bare(argument)}::{type_text(type_, typmod)}"
    return f"({_show(argument, False)})::{type_text(type_, typmod)}"


@_text.register
def _function(node: FuncExpr) -> str:
    if is_cast(node):
        return _cast(node.arguments[0], node.type, node.typmod)
    if node.form is Form.SQL:
        special = _sql_syntax(node)
        if special is not None:
            return special
    return f"{quote_identifier(node.name)}({_list(node.arguments)})"


def _sql_syntax(node: FuncExpr) -> str | None:
    """Print a call in SQL's own syntax; None if it has none (get_func_sql_syntax)."""
    shown = [_show(argument, False) for argument in node.arguments]
    first = node.arguments[0]
    match node.name:
        case "timezone" if len(shown) == 1:
            return f"({shown[0]} AT LOCAL)"
        case "timezone":
            return f"({shown[1]} AT TIME ZONE {shown[0]})"
        case "extract" if isinstance(first, Const):
            return f"EXTRACT({first.text} FROM {shown[1]})"
        case "position":
            return f"POSITION(({shown[1]}) IN ({shown[0]}))"
        case "substring":
            tail = f" FOR {shown[2]}" if len(shown) > 2 else ""
            return f"SUBSTRING({shown[0]} FROM {shown[1]}{tail})"
        case "overlay":
            tail = f" FOR {shown[3]}" if len(shown) > 3 else ""
            return f"OVERLAY({shown[0]} PLACING {shown[1]} FROM {shown[2]}{tail})"
        case "normalize" | "is_normalized":
            form = node.arguments[1] if len(shown) > 1 else None
            word = f"{form.text}" if isinstance(form, Const) else ""
            if node.name == "normalize":
                return f"NORMALIZE({shown[0]}{word and f', {word}'})"
            return f"({_show(first, True)} IS{word and f' {word}'} NORMALIZED)"
        case "btrim" | "ltrim" | "rtrim":
            word = {"b": "BOTH", "l": "LEADING", "r": "TRAILING"}[node.name[0]]
            characters = f"{shown[1]} " if len(shown) > 1 else ""
            return f"TRIM({word} {characters}FROM {shown[0]})"
    return None


@_text.register
def _operator(node: OpExpr) -> str:
    if len(node.arguments) == 1:
        return f"({node.name} {_show(node.arguments[0], True)})"
    left, right = (_show(argument, True) for argument in node.arguments)
    return f"({left} {node.name} {right})"


@_text.register
def _distinct(node: DistinctExpr) -> str:
    left, right = (_show(argument, True) for argument in node.arguments)
    return f"({left} IS DISTINCT FROM {right})"


@_text.register
def _null_if(node: NullIfExpr) -> str:
    return f"NULLIF({_list(node.arguments)})"


@_text.register
def _scalar_array(node: ScalarArrayOpExpr) -> str:
    left, right = (_show(argument, True) for argument in node.arguments)
    return f"({left} {node.name} {'ANY' if node.any else 'ALL'} ({right}))"


@_text.register
def _bool(node: BoolExpr) -> str:
    shown = [_show(argument, False) for argument in node.arguments]
    if node.operator is BoolOp.NOT:
        return f"(NOT {shown[0]})"
    return "(" + f" {node.operator.value} ".join(shown) + ")"


@_text.register
def _collate(node: CollateExpr) -> str:
    return f"({_show(node.argument, True)} COLLATE {quote_identifier(node.collation)})"


@_text.register
def _case(node: CaseExpr) -> str:
    head = f" {_show(node.argument, True)}" if node.argument else ""
    lines = []
    for when in node.whens:
        condition = when.condition if node.argument is None else _compared(when.condition)
        lines.append(f"WHEN {_show(condition, False)} THEN {_show(when.result, True)}")
    lines.append(f"ELSE {_show(node.default, True)}")
    body = "".join([head, *(f"{_BREAK}{line}" for line in lines)])
    return f"{_BREAK}CASE{body.replace(_BREAK, _BREAK + _INDENT)}{_BREAK}END"


def _compared(condition: Node) -> Node:
    """Return the expression after WHEN in ``CASE x WHEN y``: the comparison's right operand."""
    if isinstance(condition, OpExpr) and len(condition.arguments) == 2:
        left = condition.arguments[0]
        while isinstance(left, Coercion | FuncExpr | CollateExpr):
            left = left.argument if not isinstance(left, FuncExpr) else left.arguments[0]
        if isinstance(left, CaseTestExpr):
            return condition.arguments[1]
    return condition


@_text.register
def _array(node: ArrayExpr) -> str:
    shown = f"ARRAY[{_list(node.elements)}]"
    return shown if node.elements else f"{shown}::{type_text(node.type)}"


@_text.register
def _coalesce(node: CoalesceExpr) -> str:
    return f"COALESCE({_list(node.arguments)})"


@_text.register
def _min_max(node: MinMaxExpr) -> str:
    return f"{'GREATEST' if node.greatest else 'LEAST'}({_list(node.arguments)})"


@_text.register
def _null_test(node: NullTest) -> str:
    return f"({_show(node.argument, True)} IS {'NOT ' if node.negated else ''}NULL)"


@_text.register
def _boolean_test(node: BooleanTest) -> str:
    return f"({_show(node.argument, False)} IS {node.test})"


def _list(nodes: Sequence[Node]) -> str:
    return ", ".join(_show(node, True) for node in nodes)
