"""What the options of slot commands mean (walsender.c, parseCreateReplSlotOptions; define.c).

In: a command as parsed. Out: its options, checked, with PostgreSQL's errors. Whether the slot
exists and whether a snapshot can be exported here is left to the walsender.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.errors import InvalidParameterValue, PenstockError, SqlSyntaxError
from penstock.guc import def_get_boolean
from penstock.protocol.replication_commands import (
    AlterReplicationSlot,
    CreateReplicationSlot,
    Option,
    ReplicationKind,
)
from penstock.protocol.replication_grammar import LATEST_VERSION

_FAILOVER_SINCE: Final = 17
_ALTER_TWO_PHASE_SINCE: Final = 18


class SnapshotAction(StrEnum):
    """What becomes of the snapshot at the slot's consistent point (CRSSnapshotAction)."""

    EXPORT = "export"
    NOTHING = "nothing"
    USE = "use"


@dataclass(frozen=True, slots=True)
class CreateSlotOptions:
    """Options of CREATE_REPLICATION_SLOT with their defaults."""

    snapshot: SnapshotAction = SnapshotAction.EXPORT
    reserve_wal: bool = False
    two_phase: bool = False
    failover: bool = False


@dataclass(frozen=True, slots=True)
class AlterSlotOptions:
    """Options of ALTER_REPLICATION_SLOT; None: stays as it is."""

    failover: bool | None = None
    two_phase: bool | None = None


def create_slot_options(
    command: CreateReplicationSlot, version: int = LATEST_VERSION
) -> CreateSlotOptions:
    """Raises SqlSyntaxError (42601), InvalidParameterValue (22023), PenstockError (XX000)."""
    logical = command.kind is ReplicationKind.LOGICAL
    fitting = {"snapshot": logical, "reserve_wal": not logical, "two_phase": logical}
    if version >= _FAILOVER_SINCE:
        fitting["failover"] = logical
    snapshot = SnapshotAction.EXPORT
    flags: dict[str, bool] = {}
    for option in _without_duplicates(command.options, fitting):
        if not fitting[option.name]:
            raise _conflicting()
        if option.name == "snapshot":
            snapshot = _snapshot_action(option)
        else:
            flags[option.name] = def_get_boolean(option.name, option.value)
    return CreateSlotOptions(snapshot, **flags)


def alter_slot_options(
    command: AlterReplicationSlot, version: int = LATEST_VERSION
) -> AlterSlotOptions:
    """Raises SqlSyntaxError (42601), PenstockError (XX000)."""
    known = {"failover", "two_phase"} if version >= _ALTER_TWO_PHASE_SINCE else {"failover"}
    options = _without_duplicates(command.options, known)
    return AlterSlotOptions(
        **{option.name: def_get_boolean(option.name, option.value) for option in options}
    )


def _snapshot_action(option: Option) -> SnapshotAction:
    if option.value is None:
        raise SqlSyntaxError(f"{option.name} requires a parameter")
    try:
        return SnapshotAction(str(option.value))
    except ValueError:
        raise InvalidParameterValue(
            f"unrecognized value for CREATE_REPLICATION_SLOT option"
            f' "{option.name}": "{option.value}"'
        ) from None


def _without_duplicates(options: Iterable[Option], known: Iterable[str]) -> Iterable[Option]:
    """One after another, so that the first error in the text is the one reported."""
    seen: set[str] = set()
    for option in options:
        if option.name not in known:
            raise PenstockError(f"unrecognized option: {option.name}")
        if option.name in seen:
            raise _conflicting()
        seen.add(option.name)
        yield option


def _conflicting() -> SqlSyntaxError:
    return SqlSyntaxError("conflicting or redundant options")
