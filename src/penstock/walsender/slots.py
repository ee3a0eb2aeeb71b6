"""The node's replication slots: create, hold for one session at a time, move, drop (slot.c).

Sessions are known by their pids. Slots survive the node's end, except temporary ones, which exist
only in this object and end with their session. A confirmed position is in the catalog before anyone
relies on it. A position that SQL functions have read up to counts at once, and is durable when
their client has the rows. ``slot_checks`` decides who may use slots and how they are named.
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
from penstock.decoding import (
    DecodedSlot,
    LogicalDecodingContext,
    OutputPlugin,
    OutputReader,
    find_plugin,
)
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
from penstock.protocol.answers import Notice
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.slot_checks import check_name, check_usable

_RETRY_S: Final = 0.05
"""Seconds between two checks whether a session that waits for a slot was cancelled."""


WAL_REMOVED: Final = "wal_removed"
"""RS_INVAL_WAL_REMOVED: log entries or files that the slot still needs are gone."""

_LOG: Final = OutputReader()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot as pg_replication_slots shows it."""

    slot: Slot
    temporary: bool
    active_pid: int | None


@dataclass(slots=True)
class _Read:
    """How far a session's statements have read a slot; not durable. ``sent``: the rows up to this
    position were sent. ``unsent``: the position of a statement that still holds the slot, since
    some of its rows were not sent."""

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
        forget_counts: Callable[[str], None] = lambda name: None,
        plugin: Callable[[str], OutputPlugin] = find_plugin,
        check_warehouse: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the node's parts. ``forget_counts`` gets the name of each slot that is made or
        dropped. ``plugin`` finds an output plugin by its name or raises PenstockError.
        ``check_warehouse`` raises if the warehouse is away: missing files then do not mean lost
        changes."""
        self._check_warehouse = check_warehouse
        self._forget_counts = forget_counts
        self.plugin = plugin
        self._catalog = catalog
        self.sequencer: Final = sequencer
        self._max_slots = max_replication_slots
        self._lock = threading.Condition()
        self._active: dict[str, int] = {}
        self._temporary: dict[str, tuple[int, Slot]] = {}
        self._dropped: dict[str, int] = {}
        self._read: dict[str, _Read] = {}

    def check_requirements(self, version: int) -> None:
        """Raise NotInPrerequisiteState if there can be no slots (CheckSlotRequirements)."""
        if not self._max_slots:
            quoted = '"max_replication_slots"' if version >= 17 else "max_replication_slots"
            raise NotInPrerequisiteState(f"replication slots can only be used if {quoted} > 0")

    def all(self) -> tuple[SlotState, ...]:
        """Return every slot, sorted by name."""
        # Here and everywhere below, the lock comes before a transaction of the catalog.
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
        begin: Callable[[], None] = lambda: None,
        warn: Callable[[Notice], None] = _LOG.warn,
    ) -> Position:
        """Make a slot at the end of the log, and return its consistent point.

        ``begin``: called before the plugin is started; it may raise an error. ``warn`` takes the
        plugin's warnings. Raises PenstockError (42602, 42622, 53400, 58P01, 0A000),
        DuplicateObject.
        """
        check_name(name)
        self._check_new(name)
        begin()
        self._try(plugin, name, warn, two_phase=two_phase)
        if temporary and failover:
            raise FeatureNotSupported("cannot enable failover for a temporary replication slot")
        # A table that is not followed yet is in no snapshot, so look for new tables first. This may
        # take time; it is outside the lock, so users of other slots need not wait.
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
        self,
        source: str,
        name: str,
        *,
        pid: int,
        temporary: bool | None,
        plugin: str | None,
        begin: Callable[[], None] = lambda: None,
        warn: Callable[[Notice], None] = _LOG.warn,
    ) -> Lsn:
        """Make a slot at the position of another slot, which may be in use; return the position
        (pg_copy_logical_replication_slot). A ``temporary`` or ``plugin`` of None is copied too.
        Raises as ``create``, and PenstockError (42704, 55000)."""
        with self._lock:
            self._to_copy(source)
        check_name(name)
        self._check_new(name)
        begin()
        if plugin is not None:
            self._try(plugin, name, warn, two_phase=False)
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
        """Raise DuplicateObject if the slot exists, before its plugin is started."""
        with self._lock, self._catalog.read() as t:
            if name in self._temporary or t.slots.find(name) is not None:
                raise DuplicateObject(f'replication slot "{name}" already exists')

    def _add(self, t: CatalogTransaction, slot: Slot, pid: int | None) -> None:
        """Add a slot; ``pid`` is that of a temporary slot's session, otherwise None."""
        if slot.name in self._temporary:
            raise DuplicateObject(f'replication slot "{slot.name}" already exists')
        # A temporary slot counts against the limit, so it is created in the catalog and deleted.
        t.slots.create(slot, self._max_slots - len(self._temporary))
        self._dropped.pop(slot.name, None)
        if pid is not None:
            t.slots.delete(slot.name)
            self._temporary[slot.name] = pid, slot
        self._forget_counts(slot.name)

    @contextmanager
    def held(self, name: str, pid: int, *, version: int) -> Iterator[Slot]:
        """Hold a slot for one session in the ``with`` block.

        Raises ObjectInUse, UndefinedObject, and 55000 if the slot is invalidated. A slot that was
        dropped just before the node was killed comes back, since its client may not know that the
        drop succeeded. If another session's statements have read the slot, it begins after their
        rows.
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
                # A statement that has read the slot holds it until its rows are sent.
                if name not in self._read or self._read[name].unsent is None:
                    self._release(name, pid)
                self._touch(name)

    def confirm(self, name: str, flush: Lsn) -> Lsn:
        """Move a held slot up to ``flush``, never back; return its durable confirmed position."""
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
        """Note that a session's statement has read its held slot up to ``at``. It holds the slot
        until its rows are sent (``answered``). As in a server, the position counts at once. After a
        crash the rows are read again unless their client is known to have them (``heard``).
        """
        if name in self._temporary:
            self.confirm(name, at)
            return
        with self._lock:
            read = self._read.setdefault(name, _Read(pid))
            read.unsent = max(at, self._get(name).confirmed_flush_lsn)
        failpoint(AFTER_SLOT_READ)

    def answered(self, pid: int, there: Callable[[], bool] = lambda: True) -> None:
        """Note that all rows that the session's statements have read are sent, before the client
        gets ReadyForQuery. ``there`` tells whether the client is still connected."""
        if not self._has_read(pid) or not there():
            return
        with self._lock:
            for name, read in self._read.items():
                if read.pid == pid and read.unsent is not None:
                    read.sent, read.unsent = read.unsent, None
                    self._release(name, pid)
        failpoint(AFTER_SLOT_ANSWER)

    def heard(self, pid: int) -> None:
        """Make positions durable, since the client's next message shows that it has the rows."""
        if not self._has_read(pid):
            return
        with self._lock:
            for name in [name for name, read in self._read.items() if read.pid == pid]:
                # The client goes on without the store; its next message tries again.
                with suppress(StorageError):
                    self._save(name)

    def take_back(self, pid: int, *, sent: bool) -> None:
        """Move slots back: undo the session's reading of rows that its client does not have. With
        ``sent`` (the connection is broken), sent rows count as not received."""
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
        """Tell whether a session has read a slot; without the lock, since each statement asks."""
        return any(read.pid == pid for read in tuple(self._read.values()))

    def _as_read(self, slot: Slot) -> Slot:
        """Return a slot at the position that statements have read up to. Only the confirmed
        position moves; restart_lsn stays, since the rows are needed again after a crash."""
        read = self._read.get(slot.name)
        at = read and (read.unsent or read.sent)
        at = max(slot.confirmed_flush_lsn, at or slot.confirmed_flush_lsn)
        return replace(slot, confirmed_flush_lsn=at)

    def _save(self, name: str) -> None:
        """Make the position of the sent rows durable. Raises StorageError."""
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

    def two_phase_at(self, slot: Slot, start: Lsn, *, twophase: bool) -> Lsn | None:
        """Return the position from which PREPAREs are sent, None without ``twophase``. The slot is
        held and read from ``start`` on. If it has not sent PREPAREs yet, it sends them from
        ``start`` on, and later calls cannot change that (CreateDecodingContext)."""
        if not twophase:
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
        """Run the ``with`` block, which decodes a held slot; invalidate it if changes are gone."""
        try:
            yield
        except RequiredChangesRemoved:
            self._check_warehouse()  # raises if the warehouse is away; then no changes are lost
            self.invalidate(name, WAL_REMOVED)
            raise

    def invalidate(self, name: str, reason: str) -> None:
        """Mark a slot as lost, since its changes are gone (InvalidateObsoleteReplicationSlots)."""
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
        """Return the position from which slots need transactions, None without usable slots."""
        slots = [state.slot for state in self.all()]
        usable = [slot.restart_lsn for slot in slots if slot.invalidation_reason is None]
        return min(usable, default=None)

    def advance(self, name: str, upto: Lsn, *, pid: int, version: int) -> Lsn:
        """pg_replication_slot_advance: return the slot's new position. Raises PenstockError."""
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
        """Change a slot (ALTER_REPLICATION_SLOT). Raises as ``held``."""
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
        """Drop a slot (DROP_REPLICATION_SLOT); ``wait`` until nobody holds it. Raises ObjectInUse.

        With ``until_told``, the slot can still be started if the node is killed before the session
        has ended.
        """
        with self._lock:
            while True:
                self._get(name)
                # If the session does not wait (any more), ``_acquire`` reports the slot's holder.
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
            self._forget_counts(name)

    def end_session(self, pid: int) -> None:
        """Remove the session's temporary slots, and the rows of slots that it has dropped."""
        with self._lock:
            for name in [n for n, owner in self._dropped.items() if owner == pid]:
                # A session must end even without the store; only a row that nobody sees stays.
                with suppress(StorageError), self._catalog.write() as t:
                    t.slots.forget(name)
                    del self._dropped[name]
            for name in [n for n, (owner, _) in self._temporary.items() if owner == pid]:
                del self._temporary[name]
                self._active.pop(name, None)
                self._forget_counts(name)

    def _try(
        self, plugin: str, slot: str, warn: Callable[[Notice], None], *, two_phase: bool
    ) -> None:
        """CreateInitDecodingContext: start the plugin once, which may refuse. Raises PenstockError
        (58P01, 42501)."""
        decoded = DecodedSlot(slot, plugin, two_phase)
        reader = OutputReader(warn=warn)
        context = LogicalDecodingContext(self.plugin(plugin), decoded, reader=reader)
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


# Slots that fall behind the retention of Delta tables.
#
# The server log gets a warning about such a slot while there is time to act. A slot that nobody
# reads is invalidated if its oldest commit is older than ``max_slot_keep_age``. The node cannot
# prevent the removal of files: others run VACUUM and log cleanup, and obey only the tables'
# properties.

_RETENTIONS: Final = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 1 week",
}


class Retention:
    """A watch over the age of the commits that slots still need. An unread slot is invalidated if
    such a commit is older than ``max_keep_age_s`` (0: never). ``now`` returns seconds since the
    Unix epoch."""

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
        """Check every slot once. Raises what the catalog raises."""
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
        """Return seconds by property, {} if the table cannot be read."""
        try:
            state = load(self._warehouse.storage, uri)
            properties = {} if state is None else state.properties
            return {
                name: interval_seconds(properties.get(name, default))
                for name, default in _RETENTIONS.items()
            }
        except Exception as error:  # one table's error must not stop the checks of others
            reason = error.message if isinstance(error, PenstockError) else repr(error)
            log.warning('retention of table "%s" is not known: %s', uri, reason)
            return {}
