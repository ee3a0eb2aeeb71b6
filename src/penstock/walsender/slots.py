"""Replication slots of the node: made, held by one session at a time, moved, dropped (slot.c).

In: sessions by their pids. Out: slots that survive the node's end, except temporary ones, which
live here and end with their session. What a slot has confirmed is in the catalog before its client
is relied upon. Where SQL functions have read a slot up to is known here at once, and durable when
their client has the rows. Who may use slots, and how they are named, is ``slot_checks``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTransaction, Slot
from penstock.decoding import LogicalDecodingContext, OutputPlugin, find_plugin
from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    InvalidParameterValue,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    RequiredChangesRemoved,
    StorageError,
    UndefinedObject,
)
from penstock.failpoint import (
    AFTER_SLOT_ANSWER,
    AFTER_SLOT_CREATE,
    AFTER_SLOT_DROP,
    AFTER_SLOT_READ,
    AFTER_SLOT_SAVED,
    failpoint,
)
from penstock.lakehouse.checkpoint import interval_seconds
from penstock.lakehouse.state import load
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.slot_checks import check_name, check_usable

_RETRY_S: Final = 0.05
"""Seconds between two questions whether a session that waits for a slot was cancelled."""


WAL_REMOVED: Final = "wal_removed"
"""RS_INVAL_WAL_REMOVED: log entries or files that the slot still needs are gone."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as pg_replication_slots shows it."""

    slot: Slot
    temporary: bool
    active_pid: int | None


@dataclass(slots=True)
class _Read:
    """Where a session's statements have read a slot up to, which is not durable. ``sent``: up to
    there the rows are out; ``unsent``: of a statement whose rows are not, which holds the slot."""

    pid: int
    sent: Lsn | None = None
    unsent: Lsn | None = None


class Slots:
    """All slots of a node; for use by every session's thread."""

    def __init__(
        self,
        catalog: Catalog,
        sequencer: Sequencer,
        max_replication_slots: int,
        begin_again: Callable[[str], None] = lambda name: None,
        plugin: Callable[[str], OutputPlugin] = find_plugin,
        check_warehouse: Callable[[], None] = lambda: None,
    ) -> None:
        """``begin_again``: told the name of a slot that is made, for counts by name. ``plugin``: an
        output plugin by its name, raises PenstockError. ``check_warehouse``: raises where it is not
        there, so that missing files mean nothing."""
        self._check_warehouse = check_warehouse
        self._begin_again = begin_again
        self.plugin = plugin
        self._catalog = catalog
        self.sequencer: Final = sequencer
        self._max_slots = max_replication_slots
        self._lock = threading.Condition()
        self._active: dict[str, int] = {}
        self._temporary: dict[str, tuple[int, Slot]] = {}
        self._dropped: dict[str, int] = {}
        self._read: dict[str, _Read] = {}

    def all(self) -> tuple[SlotState, ...]:
        """Every slot, sorted by name."""
        # the lock of slots before a transaction of the catalog, here and everywhere below
        with self._lock, self._catalog.read() as t:
            slots = [self._as_read(slot) for slot in t.slots.all()]
            temporary = tuple(self._temporary.values())
            found = [SlotState(slot, False, self._active.get(slot.name)) for slot in slots]
        found += [SlotState(slot, True, pid) for pid, slot in temporary]
        return tuple(sorted(found, key=lambda state: state.slot.name))

    def create(
        self,
        name: str,
        plugin: str,
        *,
        pid: int,
        database: int,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
    ) -> Position:
        """Make a slot at the end of the log; the consistent point that it begins at.

        Raises PenstockError (42602, 42622, 53400, 58P01, 0A000), DuplicateObject.
        """
        check_name(name)
        self._check_new(name)
        self._try(plugin, name, two_phase=two_phase)
        if temporary and failover:
            raise FeatureNotSupported("cannot enable failover for a temporary replication slot")
        # A table that nobody knew until now is in no snapshot; so look for it first. That may take
        # its time: nobody who holds or moves another slot waits for it.
        self.sequencer.step(discover=True)
        with self._lock, self._catalog.write() as t:
            position = Position(t.transactions.end(), t.transactions.versions())
            slot = Slot(
                name=name,
                plugin=plugin,
                database=database,
                restart_lsn=position.lsn,
                confirmed_flush_lsn=position.lsn,
                two_phase=two_phase,
                two_phase_at=position.lsn if two_phase else None,
                failover=failover,
                inactive_since=time.time(),
            )
            self._add(t, slot, pid if temporary else None)
        failpoint(AFTER_SLOT_CREATE)
        return position

    def copy(
        self, source: str, name: str, *, pid: int, temporary: bool | None, plugin: str | None
    ) -> Lsn:
        """pg_copy_logical_replication_slot: a slot at the position of another one, which may be in
        use; where that is. ``temporary``, ``plugin``: None, as the other's. Raises as ``create``,
        and PenstockError (42704, 55000)."""
        with self._lock:
            self._to_copy(source)
        check_name(name)
        self._check_new(name)
        if plugin is not None:
            self._try(plugin, name, two_phase=False)
        with self._lock:
            slot = self._to_copy(source)
            copied = replace(
                slot,
                name=name,
                plugin=plugin or slot.plugin,
                two_phase=False,
                two_phase_at=None,
                failover=False,
                inactive_since=time.time(),
            )
            lasts = source not in self._temporary if temporary is None else not temporary
            with self._catalog.write() as t:
                self._add(t, copied, None if lasts else pid)
        return copied.confirmed_flush_lsn

    def _to_copy(self, source: str) -> Slot:
        slot = self._get(source)
        if slot.invalidation_reason is not None:
            raise NotInPrerequisiteState("cannot copy a replication slot that doesn't reserve WAL")
        return slot

    def _check_new(self, name: str) -> None:
        """What a plugin is not asked for. Raises DuplicateObject."""
        with self._lock, self._catalog.read() as t:
            if name in self._temporary or t.slots.find(name) is not None:
                raise DuplicateObject(f'replication slot "{name}" already exists')

    def _add(self, t: CatalogTransaction, slot: Slot, pid: int | None) -> None:
        """``pid``: of the session that a temporary slot is for."""
        if slot.name in self._temporary:
            raise DuplicateObject(f'replication slot "{slot.name}" already exists')
        # A temporary slot takes its place in the limit for as long as it is made.
        t.slots.create(slot, self._max_slots - len(self._temporary))
        self._dropped.pop(slot.name, None)
        if pid is not None:
            t.slots.delete(slot.name)
            self._temporary[slot.name] = pid, slot
        self._begin_again(slot.name)

    @contextmanager
    def held(self, name: str, pid: int, *, version: int) -> Iterator[Slot]:
        """Hold a slot for one session. Raises ObjectInUse, UndefinedObject; invalidated: 55000.

        One that was dropped just before the node was killed is there again: its client may not
        know that it has dropped it. One that another session's statements have read is there with
        all that they were sent.
        """
        with self._lock:
            try:
                slot = self._get(name)
            except UndefinedObject:
                if name in self._dropped:
                    raise
                with self._catalog.write() as t:
                    slot = t.slots.bring_back(name)
                log.info('replication slot "%s" is back: its client has not heard of its end', name)
            self._acquire(name, pid)
            if name in self._read and self._read[name].pid != pid:
                self._save(name)
        try:
            check_usable(slot, version)
            yield slot
        finally:
            with self._lock:
                # Who has read it holds it until the rows are out.
                if name not in self._read or self._read[name].unsent is None:
                    self._release(name, pid)
                self._touch(name)

    def confirm(self, name: str, flush: Lsn) -> Lsn:
        """Move a held slot up to ``flush``, never back; its confirmed position, durable."""
        with self._lock:
            if name in self._temporary:
                pid, slot = self._temporary[name]
                at = max(slot.confirmed_flush_lsn, flush)
                moved = replace(slot, confirmed_flush_lsn=at, restart_lsn=at)
                self._temporary[name] = pid, moved
                return at
            with self._catalog.write(counted=False) as t:
                return t.slots.confirm(name, flush, flush).confirmed_flush_lsn

    def read_up_to(self, name: str, at: Lsn, *, pid: int) -> None:
        """A session's statement has read a slot that it holds up to ``at``, and goes on holding it
        until the rows are out (``answered``). As with a server, the position counts at once, and a
        node that is killed gives the rows again until their client is known to have them
        (``heard``)."""
        if name in self._temporary:
            self.confirm(name, at)
            return
        with self._lock:
            read = self._read.setdefault(name, _Read(pid))
            read.unsent = max(at, self._get(name).confirmed_flush_lsn)
        failpoint(AFTER_SLOT_READ)

    def answered(self, pid: int, there: Callable[[], bool] = lambda: True) -> None:
        """All rows that the session's statements have read are sent; its client has not been told
        that it may go on. ``there``: whether it has not left meanwhile."""
        if not self._has_read(pid) or not there():
            return
        with self._lock:
            for name, read in self._read.items():
                if read.pid == pid and read.unsent is not None:
                    read.sent, read.unsent = read.unsent, None
                    self._release(name, pid)
        failpoint(AFTER_SLOT_ANSWER)

    def heard(self, pid: int) -> None:
        """The client has spoken after all that it was sent: it has the rows, and the positions
        become durable."""
        if not self._has_read(pid):
            return
        with self._lock:
            for name in [name for name, read in self._read.items() if read.pid == pid]:
                # without the store the client goes on; it is tried again at its next word
                with suppress(StorageError):
                    self._save(name)

    def take_back(self, pid: int, *, sent: bool) -> None:
        """The session's statements have read rows that its client does not have: they are there
        again. ``sent``: also those that were sent, as the connection is broken."""
        if not self._has_read(pid):
            return
        with self._lock:
            for name, read in tuple(self._read.items()):
                if read.pid != pid:
                    continue
                if read.unsent is not None:
                    read.unsent = None
                    self._release(name, pid)
                if sent or read.sent is None:
                    del self._read[name]

    def _has_read(self, pid: int) -> bool:
        """Asked before each statement: without the lock."""
        return any(read.pid == pid for read in tuple(self._read.values()))

    def _as_read(self, slot: Slot) -> Slot:
        """With where statements have read it up to; what a crash needs again is kept."""
        read = self._read.get(slot.name)
        at = read and (read.unsent or read.sent)
        at = max(slot.confirmed_flush_lsn, at or slot.confirmed_flush_lsn)
        return replace(slot, confirmed_flush_lsn=at)

    def _save(self, name: str) -> None:
        """Make durable what was sent. Raises StorageError."""
        read = self._read[name]
        if read.sent is not None:
            with self._catalog.write(counted=False) as t:
                if t.slots.find(name) is not None:
                    t.slots.confirm(name, read.sent, read.sent)
            read.sent = None
            failpoint(AFTER_SLOT_SAVED)
        if read.unsent is None:
            del self._read[name]

    def _release(self, name: str, pid: int) -> None:
        # A session's temporary slot may have ended before its reading did.
        if self._active.get(name) == pid:
            del self._active[name]
        self._lock.notify_all()

    def two_phase_at(self, slot: Slot, start: Lsn, *, wanted: bool) -> Lsn | None:
        """From where on what is prepared goes out when it is prepared, of a held slot that is read
        from ``start`` on; None: never. One that did not do so until now does it from there on
        (CreateDecodingContext), whatever it is asked for later."""
        if not wanted:
            return None
        if slot.two_phase and slot.two_phase_at is not None:
            return slot.two_phase_at
        with self._lock:
            if slot.name in self._temporary:
                pid, now = self._temporary[slot.name]
                now = replace(now, two_phase=True, two_phase_at=start)
                self._temporary[slot.name] = pid, now
                return start
            with self._catalog.write() as t:
                now = t.slots.get(slot.name)
                t.slots.save(replace(now, two_phase=True, two_phase_at=start))
        return start

    @contextmanager
    def decoded(self, name: str) -> Iterator[None]:
        """While changes for a held slot are decoded: one whose changes are gone is lost."""
        try:
            yield
        except RequiredChangesRemoved:
            self._check_warehouse()  # raises: it is not there, and nothing is lost
            self.invalidate(name, WAL_REMOVED)
            raise

    def invalidate(self, name: str, reason: str) -> None:
        """The slot is lost: what it would send is gone (InvalidateObsoleteReplicationSlots)."""
        with self._lock:
            if name in self._temporary:
                pid, slot = self._temporary[name]
                self._temporary[name] = pid, replace(slot, invalidation_reason=reason)
                return
            with self._catalog.write() as t:
                found = t.slots.find(name)
                if found is not None:
                    t.slots.save(replace(found, invalidation_reason=reason))
        log.error('replication slot "%s" is lost: %s', name, reason)

    def oldest(self) -> Lsn | None:
        """From where on transactions are needed; None without slots that can still be used."""
        slots = [state.slot for state in self.all()]
        usable = [slot.restart_lsn for slot in slots if slot.invalidation_reason is None]
        return min(usable, default=None)

    def advance(self, name: str, upto: Lsn, *, pid: int, version: int) -> Lsn:
        """pg_replication_slot_advance; where it is now. Raises PenstockError."""
        if upto <= 0:
            raise InvalidParameterValue("invalid target WAL LSN")
        with self.held(name, pid, version=version) as slot:
            target = min(upto, self.sequencer.position().lsn)
            if target < slot.confirmed_flush_lsn:
                raise NotInPrerequisiteState(
                    f"cannot advance replication slot to {target}, "
                    f"minimum is {slot.confirmed_flush_lsn}"
                )
            return self.confirm(name, target)

    def alter(self, name: str, change: Callable[[Slot], Slot], *, pid: int, version: int) -> None:
        """ALTER_REPLICATION_SLOT. Raises as ``held``."""
        with self.held(name, pid, version=version), self._lock:
            if name in self._temporary:
                owner, slot = self._temporary[name]
                changed = change(slot)
                if changed.failover:
                    raise FeatureNotSupported(
                        "cannot enable failover for a temporary replication slot"
                    )
                self._temporary[name] = owner, changed
                return
            with self._catalog.write() as t:
                t.slots.save(change(t.slots.get(name)))

    def drop(
        self,
        name: str,
        *,
        pid: int,
        wait: bool,
        cancelled: Callable[[], bool],
        until_told: bool = False,
    ) -> None:
        """DROP_REPLICATION_SLOT; ``wait``: until nobody holds it. Raises ObjectInUse.

        ``until_told``: should the node be killed before the session has ended, the slot can still
        be started.
        """
        with self._lock:
            while True:
                self._get(name)
                # who does not wait, or no more, is told by ``_acquire`` who holds it
                if self._active.get(name) is None or not wait or cancelled():
                    break
                self._lock.wait(_RETRY_S)
            self._acquire(name, pid)
            self._read.pop(name, None)
            if self._temporary.pop(name, None) is None:
                with self._catalog.write() as t:
                    (t.slots.drop if until_told else t.slots.delete)(name)
                if until_told:
                    self._dropped[name] = pid
                failpoint(AFTER_SLOT_DROP)
            del self._active[name]

    def end_session(self, pid: int) -> None:
        """The session's temporary slots go with it, and what is left of those it has dropped."""
        with self._lock:
            for name in [n for n, owner in self._dropped.items() if owner == pid]:
                # a session ends without its store too: the rest is one row, and nobody sees it
                with suppress(StorageError), self._catalog.write() as t:
                    t.slots.forget(name)
                    del self._dropped[name]
            for name in [n for n, (owner, _) in self._temporary.items() if owner == pid]:
                del self._temporary[name]
                self._active.pop(name, None)

    def _try(self, plugin: str, slot: str, *, two_phase: bool) -> None:
        """CreateInitDecodingContext: the plugin starts once, and may refuse. Raises PenstockError
        (58P01, 42501)."""
        context = LogicalDecodingContext(
            self.plugin(plugin), plugin_name=plugin, slot_name=slot, two_phase=two_phase
        )
        context.startup(is_init=True)
        context.shutdown()

    def _get(self, name: str) -> Slot:
        if name in self._temporary:
            return self._temporary[name][1]
        with self._catalog.read() as t:
            return self._as_read(t.slots.get(name))

    def _acquire(self, name: str, pid: int) -> None:
        holder = self._active.get(name)
        if holder is None and name in self._temporary and self._temporary[name][0] != pid:
            holder = self._temporary[name][0]
        if holder is not None:
            raise ObjectInUse(f'replication slot "{name}" is active for PID {holder}')
        self._active[name] = pid

    def _touch(self, name: str) -> None:
        if name in self._temporary:
            return
        with self._catalog.write() as t:
            slot = t.slots.find(name)
            if slot is not None:
                t.slots.save(replace(slot, inactive_since=time.time()))


# Slots that fall behind, seen against what Delta keeps.
#
# In: slots, the log of transactions, the properties of tables. Out: a warning in the log while
# there is time to act, and slots that are given up when they are older than ``max_slot_keep_age``.
# Nothing is held back: VACUUM and log cleanup are run by others, who look at the tables'
# properties alone.

_RETENTIONS: Final = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 1 week",
}


class Retention:
    """``max_keep_age_s``: seconds that a commit is waited for by a slot that nobody reads, 0: for
    ever. ``now``: seconds since the Unix epoch."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        slots: Slots,
        max_keep_age_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._slots = slots
        self.max_keep_age_s = max_keep_age_s
        self._now = now
        self._warned: dict[str, Lsn] = {}

    def check(self) -> None:
        """Look at every slot once. Raises what the catalog raises."""
        for state in self._slots.all():
            if state.slot.invalidation_reason is None:
                self._check(state)

    def _check(self, state: SlotState) -> None:
        name = state.slot.name
        with self._catalog.read() as t:
            waiting = t.transactions.after(state.slot.confirmed_flush_lsn, 1)
        if not waiting or not waiting[0].commit_time:
            return
        age = self._now() - waiting[0].commit_time / 1e6
        if self.max_keep_age_s and age > self.max_keep_age_s and state.active_pid is None:
            log.warning(
                'slot "%s" is given up: its oldest commit is %d s old (max_slot_keep_age)',
                name,
                age,
            )
            self._slots.invalidate(name, WAL_REMOVED)
        elif self._warned.get(name) != waiting[0].end:
            self._warn(name, waiting[0], age)

    def _warn(self, name: str, oldest: LakeTransaction, age: float) -> None:
        for member in oldest.members:
            for name_of_property, kept in self._retentions(member.uri).items():
                if age <= kept / 2:
                    continue
                log.warning(
                    'slot "%s" is %d s behind, and %s of table "%s" is %d s: the slot will be lost '
                    "when Delta removes what it needs",
                    name,
                    age,
                    name_of_property,
                    member.uri,
                    kept,
                )
                self._warned[name] = oldest.end
                return

    def _retentions(self, uri: str) -> Mapping[str, float]:
        """Seconds by property."""
        try:
            state = load(self._warehouse.storage, uri)
            properties = {} if state is None else state.properties
            return {
                name: interval_seconds(properties.get(name, default))
                for name, default in _RETENTIONS.items()
            }
        except Exception as error:  # one table that cannot be read says nothing of other slots
            reason = error.message if isinstance(error, PenstockError) else repr(error)
            log.warning('retention of table "%s" is not known: %s', uri, reason)
            return {}
