"""Options of subscriptions (subscriptioncmds.c, parse_subscription_options).

In: options as written, and the form of statement that they stand in. Out: ``SubOpts``, or
PostgreSQL's error; notices about options that have no effect, or may surprise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from penstock import guc
from penstock.catalog.pg_subscription import (
    COPY_TARGETS,
    SCHEMA_CHANGES,
    UNSENT_CHANGES,
    SubscriptionOptions,
)
from penstock.catalog.table_choice import TableChoice, read_choice
from penstock.commands.define import (
    conflicting_options,
    def_get_boolean,
    def_get_streaming_mode,
    def_get_string,
)
from penstock.commands.scope import notice, warning
from penstock.errors import InvalidParameterValue, SqlSyntaxError
from penstock.lakehouse.new_columns import JSONB_AS
from penstock.lakehouse.table_layout import (
    CLUSTER_BY,
    PARTITION_BY,
    NewTableLayouts,
    column_lists,
)
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.out_of_range import OUT_OF_RANGE
from penstock.pipeline.conflict import CONFLICT_RESOLUTIONS
from penstock.protocol.answers import Notice
from penstock.sql import DefElem
from penstock.sql.text.interval_literals import read_interval
from penstock.sqlstate import InvalidName, NameTooLong


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOpts(SubscriptionOptions):
    """Options with PostgreSQL's defaults; ``specified`` are the names that were written.

    ``slot_name``: None stands for NONE if it was specified, else for the subscription's name.
    ``lsn``: the LSN to skip; INVALID stands for NONE.
    """

    connect: bool = True
    enabled: bool = True
    create_slot: bool = True
    slot_name: str | None = None
    copy_data: bool = True
    refresh: bool = True
    two_phase: bool = False
    lsn: Lsn = INVALID
    system_identifier: str = ""
    specified: frozenset[str] = frozenset()

    @property
    def kept(self) -> dict[str, Any]:
        """The options that were written and go into the row."""
        return {name: getattr(self, name) for name in KEPT if name in self.specified}


_SYNCHRONOUS_COMMIT: Final = ("local", "remote_write", "remote_apply", "on", "off")
_SYNCHRONOUS_COMMIT_HIDDEN: Final = ("true", "false", "yes", "no", "1", "0")

KEPT: Final = frozenset(each.name for each in fields(SubscriptionOptions))
"""Options that go into the row as they are, under their own names."""
CREATE: Final = KEPT | {"connect", "enabled", "create_slot", "slot_name", "copy_data", "two_phase"}
SYSTEM_IDENTIFIER: Final = "system_identifier"
SET: Final = CREATE - {"connect", "enabled", "create_slot", "copy_data"} | {SYSTEM_IDENTIFIER}
REFRESH: Final = frozenset({"copy_data", "copy_target"})
SKIP: Final = frozenset({"lsn"})
SET_PUBLICATION: Final = frozenset({"copy_data", "copy_target", "refresh"})


def parse_subscription_options(options: Sequence[DefElem], supported: frozenset[str]) -> SubOpts:
    """Check options in the order written, then their combination.

    Raises SqlSyntaxError, InvalidParameterValue.
    """
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in supported:
            raise SqlSyntaxError(f'unrecognized subscription parameter: "{option.name}"')
        if option.name in values:
            raise conflicting_options()
        values[option.name] = _READERS.get(option.name, def_get_boolean)(option)
    parsed = SubOpts(**values, specified=frozenset(values))
    NewTableLayouts.of(parsed.partition_by, parsed.cluster_by)
    if "connect" in supported:
        parsed = _without_connection(parsed)
        _check_slot_name(parsed)
    return parsed


def _without_connection(options: SubOpts) -> SubOpts:
    """Return the options as connect = false makes them: without a connection nothing can be
    enabled, created or copied."""
    if options.connect:
        return options
    for name in ("enabled", "create_slot", "copy_data"):
        if getattr(options, name) and name in options.specified:
            raise _mutually_exclusive("connect = false", f"{name} = true")
    return replace(options, enabled=False, create_slot=False, copy_data=False)


def _check_slot_name(options: SubOpts) -> None:
    """Check slot_name = NONE, which leaves nothing to stream from."""
    if options.slot_name is not None or "slot_name" not in options.specified:
        return
    for name in ("enabled", "create_slot"):
        if not getattr(options, name):
            continue
        if name in options.specified:
            raise _mutually_exclusive("slot_name = NONE", f"{name} = true")
        raise SqlSyntaxError(f"subscription with slot_name = NONE must also set {name} = false")


def _mutually_exclusive(one: str, other: str) -> SqlSyntaxError:
    return SqlSyntaxError(f"{one} and {other} are mutually exclusive options")


def _slot_name(option: DefElem) -> str | None:
    name = def_get_string(option)
    if name == "none":
        return None
    validate_slot_name(name)
    return name


def _synchronous_commit(option: DefElem) -> str:
    value = def_get_string(option)
    if value.lower() not in _SYNCHRONOUS_COMMIT + _SYNCHRONOUS_COMMIT_HIDDEN:
        raise InvalidParameterValue(
            f'invalid value for parameter "synchronous_commit": "{value}"',
            hint=f"Available values: {', '.join(_SYNCHRONOUS_COMMIT)}.",
        )
    return value


def _origin(option: DefElem) -> str:
    """Return origin, which is kept, shown and sent as it was written."""
    value = def_get_string(option)
    if value.lower() not in ("any", "none"):
        raise InvalidParameterValue(f'unrecognized origin value: "{value}"')
    return value


def _one_of(values: Sequence[str]) -> Callable[[DefElem], str]:
    def read(option: DefElem) -> str:
        value = def_get_string(option).lower()
        if value not in values:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option.name}": "{value}"',
                hint=f"Available values: {', '.join(values)}.",
            )
        return value

    return read


def _column_lists(option: DefElem) -> str:
    text = def_get_string(option)
    column_lists(option.name, text)
    return text


def _tables(option: DefElem) -> TableChoice:
    return read_choice(option.name, option.arg)


def _verify_interval(option: DefElem) -> int:
    """Return seconds, from a number, or an interval as interval_in reads it; 0 for ``off``."""
    text = def_get_string(option).strip().lower()
    if guc.parse_bool(text) is False:
        return 0
    if text.isdecimal():
        seconds = int(text)
    else:
        value = read_interval(text)
        days = value.months * 30 + value.days
        seconds = days * 86400 + value.microseconds // 1_000_000
    guc.check_range(option.name, seconds, 1, guc.INT_MAX, "s")
    return seconds


def _verify_rate(option: DefElem) -> int:
    """Return bytes; a number without a unit is in kB, as in PostgreSQL's parameters."""
    number = guc.read_integer(option.name, def_get_string(option), "kB")
    guc.check_range(option.name, number, 1, guc.INT_MAX, "kB")
    return number << 10


def _system_identifier(option: DefElem) -> str:
    text = def_get_string(option)
    if not re.fullmatch("[0-9]{1,20}", text):
        raise InvalidParameterValue(
            f'invalid value for parameter "{option.name}": "{text}"',
            hint="SELECT system_identifier FROM pg_control_system() on the publisher.",
        )
    return text


def _lsn(option: DefElem) -> Lsn:
    text = def_get_string(option)
    if text == "none":
        return INVALID
    lsn = Lsn.parse(text)
    if lsn == INVALID:
        raise InvalidParameterValue(f"invalid WAL location (LSN): {text}")
    return lsn


_READERS: Final[dict[str, Callable[[DefElem], Any]]] = {
    "slot_name": _slot_name,
    "synchronous_commit": _synchronous_commit,
    "streaming": def_get_streaming_mode,
    "origin": _origin,
    "copy_target": _one_of(COPY_TARGETS),
    "on_table_error": _one_of(("stop", "park")),
    "schema_change": _one_of(SCHEMA_CHANGES),
    "unsent_changes": _one_of(UNSENT_CHANGES),
    "history": _tables,
    "conflict_resolution": _one_of(CONFLICT_RESOLUTIONS),
    "out_of_range": _one_of(OUT_OF_RANGE),
    PARTITION_BY: _column_lists,
    CLUSTER_BY: _column_lists,
    "jsonb_as": _one_of(JSONB_AS),
    "verify_interval": _verify_interval,
    "verify_rate": _verify_rate,
    "lsn": _lsn,
    SYSTEM_IDENTIFIER: _system_identifier,
}


def validate_slot_name(name: str) -> None:
    """Check a slot's name (ReplicationSlotValidateName, slot.c). Raises InvalidParameterValue
    (42602, 42622)."""
    if not name:
        raise InvalidName(f'replication slot name "{name}" is too short')
    if len(name.encode()) >= 64:
        raise NameTooLong(f'replication slot name "{name}" is too long')
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise InvalidName(
            f'replication slot name "{name}" contains invalid character',
            hint="Replication slot names may only contain lower case letters, numbers, "
            "and the underscore character.",
        )


def without_effect(options: SubOpts) -> tuple[Notice, ...]:
    """Return a notice for each option that was written and has no effect."""
    if "synchronous_commit" not in options.specified:
        return ()
    return (
        notice(
            "synchronous_commit has no effect on this node",
            detail="What a cut holds is on disk before it is acknowledged (parameter fsync).",
        ),
    )


def different_origin(subscription: str, publications: Sequence[str]) -> list[Notice]:
    """Return the warning about publications with tables that the publisher subscribes to
    (check_publications_origin)."""
    if not publications:
        return []
    names = ", ".join(f'"{name}"' for name in publications)
    one = len(publications) == 1
    to = f"a publication ({names}) that contains" if one else f"publications ({names}) that contain"
    return [
        warning(
            f'subscription "{subscription}" requested copy_data with origin = NONE but might copy '
            "data that had a different origin",
            detail=f"The subscription being created subscribes to {to} tables that are written to "
            "by other subscriptions.",
            hint="Verify that initial data copied from the publisher tables did not come from "
            "other origins.",
            sqlstate="55000",
        )
    ]


def without_identity(tables: Sequence[tuple[str, str]]) -> list[Notice]:
    """Return warnings about tables without a replica identity. PostgreSQL reports it only when the
    first update fails, in somebody's application."""
    return [
        warning(
            f'table "{schema}.{table}" has no replica identity',
            hint="The publisher refuses updates and deletes of its rows. There: ALTER TABLE ... "
            "ADD PRIMARY KEY, or ALTER TABLE ... REPLICA IDENTITY FULL.",
        )
        for schema, table in tables
    ]
