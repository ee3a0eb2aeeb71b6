"""Options of publications (publicationcmds.c, parse_publication_options).

In: options as written. Out: the fields of ``Publication`` that they set, or PostgreSQL's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.commands.define import (
    conflicting_options,
    def_get_boolean,
    def_get_string,
    split_identifier_string,
)
from penstock.errors import SqlSyntaxError
from penstock.sql import DefElem

_ACTIONS: Final = ("insert", "update", "delete", "truncate")
_GENERATED_COLUMNS: Final = {"none": "n", "stored": "s"}


def parse_publication_options(options: Sequence[DefElem]) -> dict[str, Any]:
    """Names of ``Publication``'s fields and their values. Raises SqlSyntaxError."""
    fields: dict[str, Any] = {}
    seen: set[str] = set()
    for option in options:
        reader = _READERS.get(option.name)
        if reader is None:
            raise SqlSyntaxError(f'unrecognized publication parameter: "{option.name}"')
        if option.name in seen:
            raise conflicting_options()
        seen.add(option.name)
        fields |= reader(option)
    return fields


def _publish(option: DefElem) -> dict[str, Any]:
    actions = split_identifier_string(def_get_string(option))
    if actions is None:
        raise SqlSyntaxError('invalid list syntax in parameter "publish"')
    for action in actions:
        if action not in _ACTIONS:
            raise SqlSyntaxError(f'unrecognized value for publication option "publish": "{action}"')
    return {action: action in actions for action in _ACTIONS}


def _via_root(option: DefElem) -> dict[str, Any]:
    return {"via_root": def_get_boolean(option)}


def _generated_columns(option: DefElem) -> dict[str, Any]:
    """defGetGeneratedColsOption"""
    text = "" if option.arg is None else str(option.arg)
    value = _GENERATED_COLUMNS.get(text.lower())
    if value is None:
        raise SqlSyntaxError(
            f'invalid value for publication parameter "{option.name}": "{text}"',
            detail='Valid values are "none" and "stored".',
        )
    return {"generated_columns": value}


_READERS: Final = {
    "publish": _publish,
    "publish_via_partition_root": _via_root,
    "publish_generated_columns": _generated_columns,
}
