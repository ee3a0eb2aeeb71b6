"""Errors for a stream whose changes are gone for good.

Either the node's log has a mark that changes are lost, or an error says that a version is gone. The
hint says how the slot's reader (a subscriber, or an output plugin's client) recovers.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog import Member
from penstock.errors import RequiredChangesRemoved, VersionGone

_MESSAGE: Final = "can no longer get changes from this replication slot"
SUBSCRIBE_AGAIN: Final = (
    "Drop the subscription, which drops the slot, too; empty its tables, and subscribe again: they "
    "are copied again."
)
"""The hint for slots of subscriptions. A stock server cannot drop a subscription whose slot is gone
without further statements."""
_ADD_AGAIN: Final = "Add the new table to the publication, if that had named the old one."
MAKE_AGAIN: Final = (
    "Drop the slot and make it again. It begins with what is committed then: read what was before "
    "from the tables."
)
"""The hint for slots of output plugins."""


def lost(member: Member, *, plugin: bool) -> RequiredChangesRemoved:
    """Return the error for a table that was replaced, or whose Delta log has a gap or went back.
    ``plugin``: the slot is an output plugin's."""
    if member.lost_to is not None and member.from_version != member.to_version:
        return RequiredChangesRemoved(
            _MESSAGE,
            detail=f'The log of the Delta table at "{member.uri}" was at version '
            f"{member.from_version} and goes on at {member.to_version}: changes are missing.",
            hint=MAKE_AGAIN if plugin else SUBSCRIBE_AGAIN,
        )
    return RequiredChangesRemoved(
        _MESSAGE,
        detail=f'The Delta table at "{member.uri}" was removed and another one made in its place.',
        hint=MAKE_AGAIN if plugin else f"{_ADD_AGAIN} {SUBSCRIBE_AGAIN}",
    )


def removed(error: VersionGone, *, plugin: bool) -> RequiredChangesRemoved:
    """Return the error for a version that is gone, or has lost some of its files."""
    again = MAKE_AGAIN if plugin else SUBSCRIBE_AGAIN
    return RequiredChangesRemoved(
        _MESSAGE,
        detail=f"{error.message}: log retention or VACUUM has removed it.",
        hint=f"{again} Raise delta.logRetentionDuration and delta.deletedFileRetentionDuration to "
        "keep logs and files longer.",
    )
