"""Who may use replication slots (slot.c)."""

from __future__ import annotations

from penstock.errors import InsufficientPrivilege

_ONLY_WITH_DETAIL_SINCE = 16


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
