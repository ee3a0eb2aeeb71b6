"""Checks before a replication slot is created or used: its name, its state, the role (slot.c).

Each check raises PostgreSQL's error, or returns nothing.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.catalog import Slot
from penstock.errors import InsufficientPrivilege, NotInPrerequisiteState
from penstock.sqlstate import InvalidName, NameTooLong
from penstock.walsender.lost_changes import MAKE_AGAIN, SUBSCRIBE_AGAIN

PGOUTPUT: Final = "pgoutput"
"""The plugin of subscriptions."""
_VALID: Final = re.compile(r"[a-z0-9_]+")
_NAME_SIZE: Final = 63  # NAMEDATALEN - 1, bytes
_ONLY_WITH_DETAIL_SINCE: Final = 16


def check_name(name: str) -> None:
    """ReplicationSlotValidateName. Raises PenstockError (42602, 42622)."""
    if not name:
        raise InvalidName(f'replication slot name "{name}" is too short')
    if len(name.encode()) > _NAME_SIZE:
        raise NameTooLong(f'replication slot name "{name}" is too long')
    if not _VALID.fullmatch(name):
        raise InvalidName(
            f'replication slot name "{name}" contains invalid character',
            hint="Replication slot names may only contain lower case letters, numbers, "
            "and the underscore character.",
        )


def check_usable(slot: Slot, version: int) -> None:
    """Raise NotInPrerequisiteState if the slot has been invalidated."""
    reason = slot.invalidation_reason
    if reason is None:
        return
    if version >= 18:  # the texts changed in that version
        raise NotInPrerequisiteState(
            f'can no longer access replication slot "{slot.name}"',
            detail=f'This replication slot has been invalidated due to "{reason}".',
            hint=SUBSCRIBE_AGAIN if slot.plugin == PGOUTPUT else MAKE_AGAIN,
        )
    raise NotInPrerequisiteState(
        f'cannot read from logical replication slot "{slot.name}"',
        detail="This slot has been invalidated because it exceeded the maximum reserved size.",
    )


def check_replication(*, superuser: bool, replication: bool, version: int) -> None:
    """CheckSlotPermissions. Raises InsufficientPrivilege."""
    if superuser or replication:
        return
    if version < _ONLY_WITH_DETAIL_SINCE:
        raise InsufficientPrivilege(
            "must be superuser or replication role to use replication slots"
        )
    raise InsufficientPrivilege(
        "permission denied to use replication slots",
        detail="Only roles with the REPLICATION attribute may use replication slots.",
    )
