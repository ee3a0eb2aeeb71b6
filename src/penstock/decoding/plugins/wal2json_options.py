"""The options of wal2json, and which tables, actions and messages they let pass.

In: names and values as given. Out: frozen values, or wal2json's errors (22023, 42602, 0A000).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from penstock.decoding.plugins.options import boolean, not_parsed, unknown
from penstock.errors import FeatureNotSupported
from penstock.sqlstate import InvalidName

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
_SPACE: Final = " \t\n\r\v\f"
_ITEM: Final = r"(?:\\.|[^\\,\s])+"
_FLAGS_OF_LISTS: Final = re.ASCII | re.DOTALL
_T = TypeVar("_T")

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
    add_msg_prefixes: tuple[str, ...] = ()
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
        return not self.add_msg_prefixes or prefix in self.add_msg_prefixes


def read_options(options: Sequence[tuple[str, str | None]]) -> Wal2JsonOptions:
    """Raises wal2json's errors for a value that is none, and InvalidParameterValue for an option
    that is not built or that wal2json has not."""
    read = Wal2JsonOptions()
    for name, value in options:
        if name in _FLAGS:
            read = replace(read, **{_FLAGS[name]: boolean(name, value)})  # type: ignore[arg-type]
            continue
        match name:
            case "format-version":
                read = replace(read, format_version=_format_version(name, value))
            case "actions" if value is not None:
                read = replace(read, actions=_actions(name, value))
            case "add-tables":
                read = replace(read, add_tables=_tables(name, value or ""))
            case "filter-tables":
                read = replace(read, filter_tables=_more(read.filter_tables, name, value, _tables))
            case "add-msg-prefixes":
                read = replace(
                    read, add_msg_prefixes=_more(read.add_msg_prefixes, name, value, _items)
                )
            case "filter-msg-prefixes":
                found = _more(read.filter_msg_prefixes, name, value, _items)
                read = replace(read, filter_msg_prefixes=found)
            case "actions":
                continue
            case "include-unchanged-toast":
                raise InvalidName(f'parameter "{name}" was deprecated')
            case _:
                raise unknown(name, value)
    return read


def _format_version(name: str, value: str | None) -> int:
    """Without a value, the newest."""
    if value is None:
        return _NEWEST_FORMAT
    if not re.fullmatch(r"\s*[+-]?\d{1,9}\s*", value, re.ASCII):
        raise not_parsed(name, value)
    version = int(value)
    if version > _NEWEST_FORMAT:
        raise FeatureNotSupported(
            f"client sent format_version={version} but we only support format {_NEWEST_FORMAT}"
            " or lower"
        )
    if version < 1:
        raise FeatureNotSupported(
            f"client sent format_version={version} but we only support format 1 or higher"
        )
    return version


def _actions(name: str, value: str) -> frozenset[str]:
    """An empty list is one: nothing is sent but messages."""
    wanted = _items(name, value)
    for action in wanted:
        if action not in _ACTIONS:
            raise not_parsed(name, action)
    return frozenset(wanted)


def _more(
    before: tuple[_T, ...],
    name: str,
    value: str | None,
    read: Callable[[str, str], tuple[_T, ...]],
) -> tuple[_T, ...]:
    """A list that is given again is added to the one before; without a value it is empty."""
    return () if value is None else before + read(name, value)


def _tables(name: str, value: str) -> tuple[TablePattern, ...]:
    """Everything after the first dot is the table's name."""
    found: list[TablePattern] = []
    for item in _items(name, value):
        parts = re.fullmatch(r"((?:\\.|[^\\.])*)\.(.*)", item, re.DOTALL)
        if parts is None:
            raise _no_list(name, value)
        found.append((_name(parts[1]), _name(parts[2])))
    return tuple(found)


def _name(text: str) -> str | None:
    return None if text == "*" else re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _items(name: str, value: str) -> tuple[str, ...]:
    """split_string_to_list: at commas, white space around them; a backslash, which stays, takes
    both their meaning."""
    if not value.strip(_SPACE):
        return ()
    if not re.fullmatch(rf"\s*{_ITEM}(\s*,\s*{_ITEM})*\s*", value, _FLAGS_OF_LISTS):
        raise _no_list(name, value)
    return tuple(re.findall(_ITEM, value, _FLAGS_OF_LISTS))


def _no_list(name: str, value: str) -> InvalidName:
    return InvalidName(f'could not parse value "{value}" for parameter "{name}"')


def _matches(pattern: TablePattern, schema: str, table: str) -> bool:
    return pattern[0] in (None, schema) and pattern[1] in (None, table)
