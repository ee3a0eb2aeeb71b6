"""Operators of catalog queries that queries of tables may not use: computed patterns, bits, arrays.

In: the operator's name and its operands. Out: a ``Value``, or None for what is left to
``duckdb_operators``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from penstock.pgtypes.pg_type import BOOL, BPCHAR, INTEGERS
from penstock.sql.to_duckdb.duckdb_predicate import is_like_escape
from penstock.sql.to_duckdb.duckdb_values import (
    STRINGS,
    Value,
    duckdb_type,
)
from penstock.sql.to_duckdb.text_functions import COMMON_PATTERN
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Const, FuncExpr, Node

_BACKSLASH: Final = "'\\'"
_PATTERNS: Final = {
    "~": "regexp_matches({0}, {1}, 's')",
    "!~": "NOT regexp_matches({0}, {1}, 's')",
    "~*": "regexp_matches({0}, {1}, 'is')",
    "!~*": "NOT regexp_matches({0}, {1}, 'is')",
    "~~": "{0} LIKE {1} ESCAPE '\\'",
    "!~~": "{0} NOT LIKE {1} ESCAPE '\\'",
    "~~*": "{0} ILIKE {1} ESCAPE '\\'",
    "!~~*": "{0} NOT ILIKE {1} ESCAPE '\\'",
}
_BITS: Final = {"&": "&", "|": "|", "<<": "<<", ">>": ">>"}
_HAS_ALL: Final = "(list_has_all({0}, {1}) AND len({1}) = list_count({1}))"
"""array_contain_compare: a NULL is in no array."""
_LISTS: Final = {"@>": (0, 1), "<@": (1, 0)}
_OVERLAP: Final = "list_has_any({0}, {1})"
_CONCATENATION: Final = "textcat_tt"


class Compiler(Protocol):
    """Who makes values of nodes."""

    def value(self, node: Node) -> Value: ...

    def python(self, name: str, values: Sequence[Value]) -> Value: ...


def operation(compiler: Compiler, name: str, first: Node, second: Node, type_: int) -> Value | None:
    """What a lake's query may not do: patterns that are computed, bits, arrays."""
    if name in _PATTERNS and isinstance(second, FuncExpr) and is_like_escape(second):
        if all(isinstance(node, Const) for node in second.arguments):
            return None
        left, right, by = (compiler.value(node).sql for node in (first, *second.arguments))
        sql = _PATTERNS[name].removesuffix(_BACKSLASH).format(left, right)
        return Value(f"({sql}{by})", BOOL)
    computed = not isinstance(second, Const)
    if name in _PATTERNS and computed:
        text, pattern = compiler.value(first), compiler.value(second)
        if "~~" not in name:
            pattern = compiler.python(COMMON_PATTERN, [pattern])
        return Value(f"({_PATTERNS[name].format(text.sql, pattern.sql)})", BOOL)
    if name in _BITS and {first.type, second.type} <= INTEGERS:
        sql = f"({compiler.value(first).sql} {_BITS[name]} {compiler.value(second).sql})"
        return Value(f"CAST({sql} AS {duckdb_type(type_, None)})", type_)
    if name == "||" and {first.type, second.type} <= STRINGS - {BPCHAR}:
        joined = compiler.python(_CONCATENATION, [compiler.value(first), compiler.value(second)])
        return replace(joined, type=type_)
    arrays = [node for node in (first, second) if element(node.type)]
    if not arrays:
        return None
    values = [compiler.value(node) for node in (first, second)]
    if name == "||":
        lists = [v.sql if element(v.type) else f"[{v.sql}]" for v in values]
        return Value(f"list_concat({lists[0]}, {lists[1]})", type_, values[0].shape)
    if name != "&&" and name not in _LISTS:
        return None
    found = _OVERLAP if name == "&&" else _HAS_ALL
    outer, inner = _LISTS.get(name, (0, 1))
    return Value(found.format(values[outer].sql, values[inner].sql), BOOL)
