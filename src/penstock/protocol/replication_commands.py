"""The commands of the streaming replication protocol (replnodes.h; Streaming Replication Protocol).

In: nothing. Out: frozen values, which ``replication_grammar`` reads from text. Options are kept as
written; ``replication_grammar`` interprets those of a slot, the plugin those of a plugin.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from penstock.lsn import Lsn


class ReplicationKind(Enum):
    """ReplicationKind of replnodes.h."""

    PHYSICAL = auto()
    LOGICAL = auto()


@dataclass(frozen=True, slots=True)
class Option:
    """An option. ``value``: a string, a number, or None if the option has none."""

    name: str
    value: str | int | bool | None = None


@dataclass(frozen=True, slots=True)
class IdentifySystem:
    """IDENTIFY_SYSTEM"""


@dataclass(frozen=True, slots=True)
class ReadReplicationSlot:
    """READ_REPLICATION_SLOT slot_name"""

    slot_name: str


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW name"""

    name: str


@dataclass(frozen=True, slots=True)
class CreateReplicationSlot:
    """CREATE_REPLICATION_SLOT slot_name [TEMPORARY] {PHYSICAL | LOGICAL plugin} [options]

    ``plugin``: None for PHYSICAL.
    """

    slot_name: str
    kind: ReplicationKind
    temporary: bool = False
    plugin: str | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterReplicationSlot:
    """ALTER_REPLICATION_SLOT slot_name (options)"""

    slot_name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class DropReplicationSlot:
    """DROP_REPLICATION_SLOT slot_name [WAIT]"""

    slot_name: str
    wait: bool = False


@dataclass(frozen=True, slots=True)
class StartReplication:
    """START_REPLICATION [SLOT slot_name] [PHYSICAL | LOGICAL] start [TIMELINE t | (options)]

    ``timeline``: 0 if none is given. ``options``: of the output plugin; values are strings or None.
    """

    slot_name: str | None
    kind: ReplicationKind
    start: Lsn
    timeline: int = 0
    options: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    """TIMELINE_HISTORY timeline"""

    timeline: int


@dataclass(frozen=True, slots=True)
class BaseBackup:
    """BASE_BACKUP [(options)]; recognised, so that whoever runs commands can refuse it"""

    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadManifest:
    """UPLOAD_MANIFEST; recognised, so that whoever runs commands can refuse it"""


ReplicationCommand = (
    IdentifySystem
    | ReadReplicationSlot
    | Show
    | CreateReplicationSlot
    | AlterReplicationSlot
    | DropReplicationSlot
    | StartReplication
    | TimelineHistory
    | BaseBackup
    | UploadManifest
)
