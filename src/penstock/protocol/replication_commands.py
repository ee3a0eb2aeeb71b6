"""The commands of the streaming replication protocol (replnodes.h; Streaming Replication Protocol).

Frozen values as ``replication_grammar`` reads them from text. Options are kept as written; what
those of a slot mean is read by ``slot_options``, those of a plugin by the plugin.
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
    """``value``: a string, a number, or None where there is none."""

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

    ``timeline``: 0 where none is given; ``options``: of the output plugin, values strings or None.
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
    """BASE_BACKUP [(options)]; recognised, for whoever runs commands to refuse"""

    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadManifest:
    """UPLOAD_MANIFEST; recognised, for whoever runs commands to refuse"""


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
