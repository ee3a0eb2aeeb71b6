"""What a stream is told of changes that it should have had and nobody can give it any more.

In: a place in the log whose changes cannot be told, or what the store said of a version. Out:
errors, with the way back of who reads the slot: a subscriber, or an output plugin's client.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog import Member
from penstock.errors import RequiredChangesRemoved, VersionGone

_MESSAGE: Final = "can no longer get changes from this replication slot"
_SUBSCRIBE_AGAIN: Final = (
    "Drop the slot and the subscription and subscribe again with an emptied table."
)
_ADD_AGAIN: Final = "Add the new table to the publication, if that had named the old one."
MAKE_AGAIN: Final = (
    "Drop the slot and make it again. It begins with what is committed then: read what was before "
    "from the tables."
)
"""For slots of output plugins."""


def lost(member: Member, *, plugin: bool) -> RequiredChangesRemoved:
    """The table was replaced, or its log has a gap and goes on, or went back. ``plugin``: the slot
    is an output plugin's."""
    if member.lost_to is not None and member.from_version != member.to_version:
        return RequiredChangesRemoved(
            _MESSAGE,
            detail=f'The log of the Delta table at "{member.uri}" was at version '
            f"{member.from_version} and goes on at {member.to_version}: changes are missing.",
            hint=MAKE_AGAIN if plugin else _SUBSCRIBE_AGAIN,
        )
    return RequiredChangesRemoved(
        _MESSAGE,
        detail=f'The Delta table at "{member.uri}" was removed and another one made in its place.',
        hint=MAKE_AGAIN if plugin else f"{_ADD_AGAIN} {_SUBSCRIBE_AGAIN}",
    )


def removed(error: VersionGone, *, plugin: bool) -> RequiredChangesRemoved:
    """A version, or files of one, are gone."""
    again = (
        MAKE_AGAIN
        if plugin
        else "Drop the slot and the subscription and subscribe again: the table is copied again."
    )
    return RequiredChangesRemoved(
        _MESSAGE,
        detail=f"{error.message}: log retention or VACUUM has removed it.",
        hint=f"{again} Keep logs and files longer by delta.logRetentionDuration and "
        "delta.deletedFileRetentionDuration.",
    )
