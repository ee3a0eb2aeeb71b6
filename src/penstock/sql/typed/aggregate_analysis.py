"""Aggregates and window functions (parse_agg.c, ParseFuncOrColumn of parse_func.c).

A call with typed arguments becomes an Aggref, or a WindowFunc if it has OVER. The code that runs
aggregates refuses the aggregates that it cannot compute.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.pgtypes.pg_type import INT2, INT4, INT8
from penstock.sql.builtin import functions
from penstock.sql.grammar.parsenodes import FuncCall, WindowDef
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import to_target, whole_constant
from penstock.sql.typed.function_analysis import AGGREGATE, found_function
from penstock.sql.typed.primnodes import Form, Node, children
from penstock.sql.typed.query_nodes import Aggref, SortKey, WindowFrame, WindowFunc
from penstock.sqlstate import (
    DatatypeMismatch,
    GroupingError,
    InvalidColumnReference,
    InvalidPrecedingOrFollowingSize,
    WindowingError,
)

# FRAMEOPTION_* of parsenodes.h
_NONDEFAULT, _RANGE, _ROWS, _GROUPS = 0x1, 0x2, 0x4, 0x8
_STARTS: Final = {
    0x20: "UNBOUNDED PRECEDING",
    0x200: "CURRENT ROW",
    0x800: "{} PRECEDING",
    0x2000: "{} FOLLOWING",
}
_ENDS: Final = {
    0x100: "UNBOUNDED FOLLOWING",
    0x400: "CURRENT ROW",
    0x1000: "{} PRECEDING",
    0x4000: "{} FOLLOWING",
}
_EXCLUSIONS: Final = {
    0x8000: " EXCLUDE CURRENT ROW",
    0x10000: " EXCLUDE GROUP",
    0x20000: " EXCLUDE TIES",
}


def aggregate(
    raw: FuncCall,
    arguments: tuple[Node, ...],
    order: tuple[SortKey, ...],
    filter_: Node | None,
) -> Aggref:
    """Return the typed call. Raises PenstockError (42803, 42809, 42883), FeatureNotSupported."""
    function, nodes, result = found_function(raw, arguments)
    within = (*arguments, *(key.node for key in order))
    if function.kind == AGGREGATE and raw.over is None:
        if any(map(has_window, within)):
            raise GroupingError("aggregate function calls cannot contain window function calls")
        if any(map(_has_aggregate, within)):
            raise GroupingError("aggregate function calls cannot be nested")
    if filter_ is not None and has_window(filter_):
        raise WindowingError("window functions are not allowed in FILTER")
    if filter_ is not None and _has_aggregate(filter_):
        raise GroupingError("aggregate functions are not allowed in FILTER")
    if raw.distinct and any(key.node not in nodes for key in order):
        raise InvalidColumnReference(
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
        )
    return Aggref(result, function.oid, function.name, nodes, raw.distinct, order, filter_)


def window(
    function: Aggref,
    definition: WindowDef,
    partition: tuple[Node, ...],
    order: tuple[SortKey, ...],
    offsets: tuple[Node | None, Node | None],
) -> WindowFunc:
    """Return the typed call with OVER. Raises FeatureNotSupported."""
    if function.distinct:
        raise FeatureNotSupported("DISTINCT is not implemented for window functions")
    if function.order:
        raise FeatureNotSupported("aggregate ORDER BY is not implemented for window functions")
    if function.filter is not None and functions()[function.oid].kind != AGGREGATE:
        raise FeatureNotSupported("FILTER is not implemented for non-aggregate window functions")
    if any(has_window(node) for node in (*function.arguments, *partition)):
        raise WindowingError("window function calls cannot be nested")
    frame = _frame(definition, offsets, order)
    return WindowFunc(function.type, function, partition, order, frame)


def _frame(
    definition: WindowDef, offsets: tuple[Node | None, Node | None], order: tuple[SortKey, ...]
) -> WindowFrame | None:
    options = definition.frame
    if not options & _NONDEFAULT:
        return None
    modes = {_RANGE: "RANGE", _ROWS: "ROWS", _GROUPS: "GROUPS"}
    mode = next(word for bit, word in modes.items() if options & bit)
    start = next(word for bit, word in _STARTS.items() if options & bit)
    end = next((word for bit, word in _ENDS.items() if options & bit), "CURRENT ROW")
    whole = len(order) == 1 and order[0].node.type in (INT2, INT4)
    if mode == "RANGE" and any(offsets) and not whole:
        raise FeatureNotSupported("this frame of a window is not supported")
    exclude = next((word for bit, word in _EXCLUSIONS.items() if options & bit), "")
    return WindowFrame(
        mode,
        _bound(start, offsets[0], mode, "starting"),
        _bound(end, offsets[1], mode, "ending") + exclude,
    )


def _bound(words: str, offset: Node | None, mode: str, which: str) -> str:
    """Return a bound with its number of rows or groups (transformFrameOffset)."""
    if "{}" not in words:
        return words
    if offset is None:
        raise FeatureNotSupported("this frame of a window is not supported")
    node = to_target(offset, INT8, -1, "a", Form.IMPLICIT)
    if node is None:
        raise DatatypeMismatch(
            f"argument of {mode} must be type bigint, not type {type_name(offset.type)}",
        )
    count = whole_constant(node)
    if count is None or count.text is None:
        raise FeatureNotSupported("this frame of a window is not supported")
    if int(count.text) < 0:
        raise InvalidPrecedingOrFollowingSize(f"frame {which} offset must not be negative")
    return words.format(count.text)


def _has_aggregate(node: Node) -> bool:
    return isinstance(node, Aggref) or any(_has_aggregate(child) for child in children(node))


def has_window(node: Node) -> bool:
    """Tell whether the node holds a function with OVER."""
    return isinstance(node, WindowFunc) or any(has_window(child) for child in children(node))


def contains_aggregate(nodes: tuple[Node, ...]) -> bool:
    """Tell whether one of the nodes contains an aggregate."""
    return any(_computes(node) for node in nodes)


def _computes(node: Node) -> bool:
    if isinstance(node, WindowFunc):
        inner = node.aggregate
        below = (*inner.arguments, *node.partition, *(key.node for key in node.order))
        return any(_computes(child) for child in below)
    return isinstance(node, Aggref) or any(_computes(child) for child in children(node))
