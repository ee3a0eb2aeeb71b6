"""The options of wal2json, and which tables, actions and messages they let pass.

In: names and values as given. Out: frozen values, or wal2json's error texts (22023).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.decoding.plugins.options import boolean, not_parsed, unknown
from penstock.errors import InvalidParameterValue

_NEWEST_FORMAT: Final = 2
_FLAGS: Final = {
    name.replace("_", "-"): name
    for name in (
        *("include_xids", "include_timestamp", "include_schemas", "include_types"),
        *("include_typmod", "include_type_oids", "include_column_positions", "include_not_null"),
        *("include_pk", "include_lsn", "include_transaction", "pretty_print", "write_in_chunks"),
        "numeric_data_types_as_string",
    )
}
_ACTIONS: Final = frozenset({"insert", "update", "delete", "truncate"})

TablePattern = tuple[str | None, str | None]
"""Schema and table; None for all."""


@dataclass(frozen=True, slots=True)
class Wal2JsonOptions:
    """Their defaults are wal2json's. ``actions``: those that are sent."""

    format_version: int = 1
    include_xids: bool = False
    include_timestamp: bool = False
    include_schemas: bool = True
    include_types: bool = True
    include_typmod: bool = True
    include_type_oids: bool = False
    include_column_positions: bool = False
    include_not_null: bool = False
    include_pk: bool = False
    include_lsn: bool = False
    include_transaction: bool = True
    numeric_data_types_as_string: bool = False
    pretty_print: bool = False
    write_in_chunks: bool = False
    actions: frozenset[str] = _ACTIONS
    add_tables: tuple[TablePattern, ...] | None = None
    filter_tables: tuple[TablePattern, ...] = ()
    add_msg_prefixes: tuple[str, ...] | None = None
    filter_msg_prefixes: tuple[str, ...] = ()

    def wants_table(self, schema: str, table: str) -> bool:
        """``filter-tables`` first, then ``add-tables``."""
        if any(_matches(pattern, schema, table) for pattern in self.filter_tables):
            return False
        added = self.add_tables
        return added is None or any(_matches(pattern, schema, table) for pattern in added)

    def wants_message(self, prefix: str) -> bool:
        """``filter-msg-prefixes`` first, then ``add-msg-prefixes``."""
        if prefix in self.filter_msg_prefixes:
            return False
        return self.add_msg_prefixes is None or prefix in self.add_msg_prefixes


def read_options(options: Sequence[tuple[str, str | None]]) -> Wal2JsonOptions:
    """Raises InvalidParameterValue: for a value that is none, and for an option that is not built
    or that wal2json has not."""
    read = Wal2JsonOptions()
    for name, value in options:
        if name in _FLAGS:
            read = replace(read, **{_FLAGS[name]: boolean(name, value)})  # type: ignore[arg-type]
            continue
        match name:
            case "format-version":
                read = replace(read, format_version=_format_version(name, value))
            case "actions":
                read = replace(read, actions=_actions(value))
            case "add-tables" if value:
                read = replace(read, add_tables=_tables(name, value))
            case "filter-tables" if value:
                read = replace(read, filter_tables=_tables(name, value))
            case "add-msg-prefixes" if value:
                read = replace(read, add_msg_prefixes=tuple(_items(value)))
            case "filter-msg-prefixes" if value:
                read = replace(read, filter_msg_prefixes=tuple(_items(value)))
            case "add-tables" | "filter-tables" | "add-msg-prefixes" | "filter-msg-prefixes":
                continue
            case _:
                raise unknown(name, value)
    return read


def _format_version(name: str, value: str | None) -> int:
    if value is None:
        return 1
    if not re.fullmatch(r"[+-]?\d{1,9}", value, re.ASCII):
        raise not_parsed(name, value)
    version = int(value)
    if version > _NEWEST_FORMAT:
        raise InvalidParameterValue(
            f"client sent format_version={version} but we only support format {_NEWEST_FORMAT}"
            " or lower"
        )
    if version < 1:
        raise InvalidParameterValue(
            f"client sent format_version={version} but we only support format 1 or higher"
        )
    return version


def _actions(value: str | None) -> frozenset[str]:
    wanted = frozenset(_items(value or ""))
    for action in sorted(wanted - _ACTIONS):
        raise InvalidParameterValue(f'unknown action: "{action}"')
    return wanted or _ACTIONS


def _tables(name: str, value: str) -> tuple[TablePattern, ...]:
    found = []
    for item in _split(value, ","):
        parts = _split(item.strip(" "), ".")
        if len(parts) != 2:
            raise not_parsed(name, value)
        found.append((_name(parts[0]), _name(parts[1])))
    return tuple(found)


def _split(text: str, separator: str) -> list[str]:
    """At separators without a backslash in front."""
    parts = [""]
    for piece in re.findall(r"\\.|[^\\]|\\$", text, re.DOTALL):
        if piece == separator:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _name(text: str) -> str | None:
    return None if text == "*" else re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _items(value: str) -> list[str]:
    return [item.strip(" ") for item in value.split(",") if item.strip(" ")]


def _matches(pattern: TablePattern, schema: str, table: str) -> bool:
    return pattern[0] in (None, schema) and pattern[1] in (None, table)
