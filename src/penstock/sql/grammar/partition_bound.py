"""Bounds of partitions (gram.y, PartitionBoundSpec; ruleutils.c, get_rule_expr of it).

A ``PartitionBound`` is read from a raw node, or from the text in the catalog; ``str`` prints this
text again. Routing rows to partitions is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.identifiers import simple_quote_literal
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.names import constant, not_supported
from penstock.sql.grammar.raw_node import Json, RawNode

Datum = str | None
"""A constant: the text of its type's output function, None for NULL."""


class Limit(Enum):
    """MINVALUE or MAXVALUE, as an end of a range."""

    MINVALUE = "MINVALUE"
    MAXVALUE = "MAXVALUE"


class Strategy(Enum):
    """PartitionStrategy. DEFAULT takes the rows that no other partition takes."""

    LIST = "list"
    RANGE = "range"
    HASH = "hash"
    DEFAULT = "default"


_STRATEGIES: Final = {"l": Strategy.LIST, "r": Strategy.RANGE, "h": Strategy.HASH}


@dataclass(frozen=True, slots=True)
class PartitionBound:
    """A bound: ``values`` of a list, ``lower`` and ``upper`` of a range, or numbers of a hash."""

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
    """Parse a bound that was printed by ``str``. Raises SqlSyntaxError."""
    match parse_tree(f"CREATE TABLE t PARTITION OF p {text}"):
        case [{"CreateStmt": {"partbound": fields}}]:
            return partition_bound(fields)
    raise SqlSyntaxError("invalid partition bound")


def strategy_of(partition_key: str) -> Strategy:
    """Return the strategy of a partition key in the catalog's form, such as ``RANGE (a)``."""
    return Strategy(partition_key.split(" ", 1)[0].lower())


def key_columns(partition_key: str) -> tuple[str, ...]:
    """Return the columns of a partition key in the catalog's form."""
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


def partition_bound(fields: Json) -> PartitionBound:
    """Read the fields of a PartitionBoundSpec."""
    raw = RawNode("PartitionBoundSpec", fields)
    strategy = _STRATEGIES.get(raw.take("strategy"))
    if raw.take("is_default"):
        strategy = Strategy.DEFAULT
    assert strategy is not None
    found = PartitionBound(
        strategy,
        _values(raw.nodes("listdatums")),
        _limits(raw.nodes("lowerdatums")),
        _limits(raw.nodes("upperdatums")),
        int(raw.take("modulus") or 0),
        int(raw.take("remainder") or 0),
    )
    raw.done()
    return found


def _values(nodes: Sequence[Json]) -> tuple[Datum, ...]:
    values = _limits(nodes)
    for value in values:
        if isinstance(value, Limit):
            raise not_supported(f"{value.value} in a list")
    return values  # type: ignore[return-value]


def _limits(nodes: Sequence[Json]) -> tuple[Datum | Limit, ...]:
    return tuple(_datum(node) for node in nodes)


def _datum(node: Json) -> Datum | Limit:
    """Return a constant; other expressions are refused."""
    match node:
        case {"ColumnRef": {"fields": [{"String": {"sval": "minvalue" | "maxvalue" as limit}}]}}:
            return Limit(limit.upper())
        case {"A_Const": _}:
            value = constant(node)
            if isinstance(value, bool):
                return "true" if value else "false"
            return None if value is None else str(value)
    raise not_supported("an expression as a partition's bound")


def _listed(values: tuple[Datum | Limit, ...]) -> str:
    return ", ".join(_literal(value) for value in values)


def _literal(value: Datum | Limit) -> str:
    if isinstance(value, Limit):
        return value.value
    if value is None:
        return "NULL"
    return value if _is_plain(value) else simple_quote_literal(value)


def _is_plain(value: str) -> bool:
    """Tell whether a constant is printed without quotes: unsigned numbers and booleans."""
    return value in ("true", "false") or (value.isascii() and value.isdigit())
