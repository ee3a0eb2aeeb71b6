"""Bounds of partitions (gram.y, PartitionBoundSpec; ruleutils.c, get_rule_expr of it).

In: a cursor in front of FOR VALUES or DEFAULT, or the text that the catalog keeps. Out:
``PartitionBound``, whose ``str`` is that text. Which rows a bound takes is left to whoever routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import DuplicateObject, SqlSyntaxError
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.lexer import Kind, lex
from penstock.sql.object_names import non_reserved_word

Datum = str | None
"""A constant: the text of its type's output function, None for NULL."""


class Limit(Enum):
    """An end of a range that is no value."""

    MINVALUE = "MINVALUE"
    MAXVALUE = "MAXVALUE"


class Strategy(Enum):
    """PartitionStrategy; DEFAULT takes what no other partition takes."""

    LIST = "list"
    RANGE = "range"
    HASH = "hash"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class PartitionBound:
    """``values``: of a list; ``lower`` and ``upper``: of a range; the numbers: of a hash."""

    strategy: Strategy
    values: tuple[Datum, ...] = ()
    lower: tuple[Datum | Limit, ...] = ()
    upper: tuple[Datum | Limit, ...] = ()
    modulus: int = 0
    remainder: int = 0

    def __str__(self) -> str:
        match self.strategy:
            case Strategy.DEFAULT:
                return "DEFAULT"
            case Strategy.LIST:
                return f"FOR VALUES IN ({_listed(self.values)})"
            case Strategy.RANGE:
                return f"FOR VALUES FROM ({_listed(self.lower)}) TO ({_listed(self.upper)})"
            case Strategy.HASH:
                numbers = f"modulus {self.modulus}, remainder {self.remainder}"
                return f"FOR VALUES WITH ({numbers})"


def parse_partition_bound(text: str) -> PartitionBound:
    """The bound that ``str`` has printed. Raises SqlSyntaxError."""
    cursor = Cursor(lex(text), text)
    bound = partition_bound(cursor)
    cursor.expect_end()
    return bound


def strategy_of(partition_key: str) -> Strategy:
    """The strategy in PARTITION BY as the catalog keeps it: ``RANGE (a)``."""
    return Strategy(partition_key.split(" ", 1)[0].lower())


def key_columns(partition_key: str) -> tuple[str, ...]:
    """The columns in it."""
    inside = partition_key[partition_key.index("(") + 1 : -1]
    found, at = [], 0
    while at < len(inside):
        if inside[at] == '"':
            end = at + 1
            while inside[end : end + 2] == '""' or inside[end] != '"':
                end += 2 if inside[end : end + 2] == '""' else 1
            found.append(inside[at + 1 : end].replace('""', '"'))
            at = end + 3
        else:
            end = inside.find(",", at)
            end = len(inside) if end < 0 else end
            found.append(inside[at:end])
            at = end + 2
    return tuple(found)


def partition_bound(cursor: Cursor) -> PartitionBound:
    """``PartitionBoundSpec``"""
    if cursor.accept("default"):
        return PartitionBound(Strategy.DEFAULT)
    cursor.expect("for", "values")
    if cursor.accept("with"):
        return _hash(cursor)
    if cursor.accept("in"):
        return PartitionBound(Strategy.LIST, values=_values(cursor))
    cursor.expect("from")
    lower = _limits(cursor)
    cursor.expect("to")
    return PartitionBound(Strategy.RANGE, lower=lower, upper=_limits(cursor))


def _hash(cursor: Cursor) -> PartitionBound:
    cursor.expect_symbol("(")
    found: dict[str, int] = {}
    while True:
        name = non_reserved_word(cursor)
        if cursor.token.kind is not Kind.INTEGER:
            raise cursor.syntax_error()
        number = int(cursor.take().value)
        if name not in ("modulus", "remainder"):
            raise SqlSyntaxError(f'unrecognized hash partition bound specification "{name}"')
        if name in found:
            raise DuplicateObject(f"{name} for hash partition provided more than once")
        found[name] = number
        if not cursor.accept_symbol(","):
            break
    cursor.expect_symbol(")")
    for name in ("modulus", "remainder"):
        if name not in found:
            raise SqlSyntaxError(f"{name} for hash partition must be specified")
    return PartitionBound(Strategy.HASH, modulus=found["modulus"], remainder=found["remainder"])


def _values(cursor: Cursor) -> tuple[Datum, ...]:
    values = _limits(cursor)
    for value in values:
        if isinstance(value, Limit):
            raise not_supported(f"{value.value} in a list")
    return values  # type: ignore[return-value]


def _limits(cursor: Cursor) -> tuple[Datum | Limit, ...]:
    cursor.expect_symbol("(")
    limits = [_datum(cursor)]
    while cursor.accept_symbol(","):
        limits.append(_datum(cursor))
    cursor.expect_symbol(")")
    return tuple(limits)


def _datum(cursor: Cursor) -> Datum | Limit:
    """A constant; other expressions are refused."""
    token = cursor.token
    if cursor.at_symbol(")"):
        raise cursor.syntax_error()
    after = cursor.token_after()
    if not (after.kind is Kind.SYMBOL and after.value in (",", ")")) and token.value not in "+-":
        raise not_supported("an expression as a partition's bound")
    if token.kind is Kind.STRING:
        return cursor.take().value
    if token.kind is Kind.WORD:
        return _word(cursor)
    if token.kind in (Kind.INTEGER, Kind.FLOAT) or token.value in ("+", "-"):
        return str(cursor.numeric_only())
    raise cursor.syntax_error()


def _word(cursor: Cursor) -> Datum | Limit:
    word = cursor.take().value
    match word:
        case "minvalue" | "maxvalue":
            return Limit(word.upper())
        case "null":
            return None
        case "true" | "false":
            return word
    raise not_supported("an expression as a partition's bound")


def _listed(values: tuple[Datum | Limit, ...]) -> str:
    return ", ".join(_literal(value) for value in values)


def _literal(value: Datum | Limit) -> str:
    if isinstance(value, Limit):
        return value.value
    if value is None:
        return "NULL"
    return value if _is_plain(value) else "'" + value.replace("'", "''") + "'"


def _is_plain(value: str) -> bool:
    """Whether a constant stands without quotes, as numbers without a sign and booleans do."""
    return value in ("true", "false") or (value.isascii() and value.isdigit())
