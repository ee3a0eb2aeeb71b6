"""Synchronous replication: commits that wait for subscribers (syncrep.c).

``SyncRep`` compares the clients' confirmed positions with a commit's position, by the current value
of synchronous_standby_names, and returns the state of each stream for pg_stat_replication. A commit
is in the log and visible to all before its session waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from penstock.lsn import Lsn
from penstock.walsender.senders import Sender, Senders
from penstock.walsender.syncrep_gram import SyncRepConfig, parse

_TICK_S: Final = 0.05
"""Seconds between two checks whether a waiting session was cancelled."""


class WaitFor(Enum):
    """The step that standbys must confirm for a commit, by synchronous_commit."""

    WRITE = "write"
    FLUSH = "flush"
    APPLY = "apply"


MODES: Final[Mapping[str, WaitFor]] = {
    "remote_write": WaitFor.WRITE,
    "on": WaitFor.FLUSH,
    "remote_apply": WaitFor.APPLY,
}
"""The values that wait; ``local`` and ``off`` do not, since a commit is durable here anyway."""


@dataclass(frozen=True, slots=True)
class SyncState:
    """The state of one stream: async (``priority`` 0), or potential, sync, quorum (1 or more)."""

    priority: int
    state: str


ASYNC: Final = SyncState(0, "async")


class SyncRep:
    """Synchronous replication of one node; for every session's thread."""

    def __init__(self, senders: Senders, names: Callable[[], str]) -> None:
        """Take the streams, and ``names``, which returns the parameter's current value."""
        self._senders = senders
        self._names = names
        self._parsed: tuple[str, SyncRepConfig | None] = "", None
        self._confirmed: dict[WaitFor, Lsn] = {}
        self._told = threading.Condition()

    def config(self) -> SyncRepConfig | None:
        """Return the parameter's current rule, None if no commit waits."""
        text = self._names()
        known, found = self._parsed
        if known != text:
            found = parse(text)
            self._parsed = text, found
        return found

    def states(self) -> Mapping[int, SyncState]:
        """Return the state of each stream, by its session's pid."""
        config, senders = self.config(), self._senders.all()
        if config is None:
            return {}
        chosen = {sender.pid for sender in _chosen(config, senders)}
        waited_for = "sync" if config.priority else "quorum"
        return {
            sender.pid: SyncState(place, waited_for if sender.pid in chosen else "potential")
            for sender in senders
            if (place := _place(config, sender))
        }

    def tell(self) -> None:
        """Wake waiting sessions. Call it when a stream has received a reply or has ended, or the
        parameter has changed."""
        with self._told:
            self._told.notify_all()

    def wait(self, position: Lsn, mode: str, given_up: Callable[[], bool]) -> bool:
        """Wait until ``position`` is confirmed as ``mode`` (synchronous_commit) demands, or no
        confirmation is needed any more. Return False if ``given_up`` returned True first."""
        kind = MODES.get(mode)
        if kind is None:
            return True
        with self._told:
            while not self._is_confirmed(position, kind):
                if given_up():
                    return False
                self._told.wait(_TICK_S)
        return True

    def _is_confirmed(self, position: Lsn, kind: WaitFor) -> bool:
        """SyncRepReleaseWaiters; a position confirmed once stays confirmed."""
        config = self.config()
        if config is None:
            return True
        reached = _reached(config, self._senders.all(), kind)
        known = self._confirmed.get(kind, Lsn(0))
        if reached is not None and reached > known:
            known = self._confirmed[kind] = reached
        return known >= position


def _place(config: SyncRepConfig, sender: Sender) -> int:
    """Return a stream's place in the list; 0 (no standby) while its client has flushed nothing."""
    return config.place(sender.application_name) if sender.state.flush else 0


def _chosen(config: SyncRepConfig, senders: Iterable[Sender]) -> list[Sender]:
    """SyncRepGetCandidateStandbys: return the standbys that count; for ANY, all."""
    places = [(place, n, s) for n, s in enumerate(senders) if (place := _place(config, s))]
    found = [sender for _, _, sender in sorted(places, key=lambda item: item[:2])]
    return found[: config.count] if config.priority else found


def _reached(config: SyncRepConfig, senders: Iterable[Sender], kind: WaitFor) -> Lsn | None:
    """SyncRepGetSyncRecPtr: return the position that enough standbys have reached. None if there
    are too few standbys."""
    chosen = _chosen(config, senders)
    if len(chosen) < config.count:
        return None
    positions = sorted((_position(sender, kind) for sender in chosen), reverse=True)
    return positions[config.count - 1]


def _position(sender: Sender, kind: WaitFor) -> Lsn:
    state = sender.state
    match kind:
        case WaitFor.WRITE:
            return state.write or Lsn(0)
        case WaitFor.FLUSH:
            return state.flush or Lsn(0)
    return state.apply or Lsn(0)
