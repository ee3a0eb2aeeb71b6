"""Replication commands (walsender.c, exec_replication_command).

A parsed command runs in the session's transaction block. This file creates slots, snapshots and
streams through the node's services: ``slots`` stores slots, ``stream`` sends changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

from penstock.attribute import Attribute
from penstock.backend.authentication import role_now
from penstock.backend.backend import SessionContext
from penstock.backend.cancellation import Cancellation
from penstock.backend.services import SessionServices
from penstock.backend.transaction_block import TransactionBlock
from penstock.catalog import Slot
from penstock.decoding import LogicalDecodingContext
from penstock.decoding.logical import Options
from penstock.errors import (
    FeatureNotSupported,
    NotInPrerequisiteState,
    PenstockError,
    UndefinedObject,
)
from penstock.pgtypes.pg_type import INT4, INT8, TEXT
from penstock.protocol import replication_grammar as c
from penstock.protocol.answers import Answer, Done, Duplex, Notice, Rows, Streaming
from penstock.protocol.replication_grammar import (
    ReplicationCommand,
    ReplicationKind,
    SnapshotAction,
    alter_slot_options,
    create_slot_options,
)
from penstock.sql.builtin.type_cache import field_descriptions
from penstock.sqlstate import UndefinedFile
from penstock.walsender.feed import Feed
from penstock.walsender.lost_changes import SUBSCRIBE_AGAIN
from penstock.walsender.slot_checks import check_replication
from penstock.walsender.stream import SenderState, Stream

_TIMELINE: Final = "1"

log = logging.getLogger(__name__)


class ReplicationCommands:
    """Runs the replication commands of one session."""

    def __init__(
        self,
        context: SessionContext,
        services: SessionServices,
        block: TransactionBlock,
        show: Callable[[str], str],
        cancellation: Cancellation,
    ) -> None:
        self._context = context
        self._services = services
        self._block = block
        self._show = show
        self._cancellation = cancellation

    def run(self, command: ReplicationCommand) -> Iterator[Answer]:
        """Execute one command. Raises PenstockError.

        The REPLICATION attribute is checked each time; PostgreSQL checks it at a walsender's start.
        """
        self._block.check()
        role = role_now(self._services.catalog, self._context.role)
        check_replication(
            superuser=role.superuser, replication=role.replication, version=self._services.version
        )
        self._services.snapshots.withdraw(self._context.pid)
        warnings: list[Notice] = []
        match command:
            case c.IdentifySystem():
                yield self._identify_system()
            case c.Show(name):
                yield _row("SHOW", [(name, TEXT, self._show(name))])
            case c.CreateReplicationSlot():
                try:
                    answer = self._create(command, warnings.append)
                finally:
                    yield from warnings
                yield answer
            case c.AlterReplicationSlot():
                yield self._alter(command)
            case c.DropReplicationSlot(name, wait):
                self._services.slots.drop(
                    name,
                    pid=self._context.pid,
                    wait=wait,
                    cancelled=self._cancellation.requested,
                    until_told=True,
                )
                yield Done("DROP_REPLICATION_SLOT")
            case c.ReadReplicationSlot(name):
                yield self._read(name)
            case c.StartReplication():
                yield from self._start(command)
            case c.TimelineHistory(timeline):
                self._block.outside("TIMELINE_HISTORY")
                raise UndefinedFile(
                    f'could not open file "pg_wal/{timeline:08X}.history": '
                    "No such file or directory",
                )
            case _:
                raise FeatureNotSupported(
                    f"{type(command).__name__} is not supported: the lake has no files to back up "
                    "as PostgreSQL has"
                )

    def _identify_system(self) -> Answer:
        services = self._services
        timeline = INT4 if services.version < 16 else INT8
        return _row(
            "IDENTIFY_SYSTEM",
            [
                ("systemid", TEXT, services.system_identifier),
                ("timeline", timeline, _TIMELINE),
                ("xlogpos", TEXT, str(services.sequencer.position().lsn)),
                ("dbname", TEXT, self._context.parameters.database or None),
            ],
        )

    def _create(self, command: c.CreateReplicationSlot, warn: Callable[[Notice], None]) -> Answer:
        services, version = self._services, self._services.version
        if command.kind is ReplicationKind.PHYSICAL or command.plugin is None:
            create_slot_options(command, version)
            raise FeatureNotSupported("physical replication slots are not supported")
        self._require_database()
        services.slots.check_requirements(version)
        options = create_slot_options(command, version)
        if options.snapshot is SnapshotAction.EXPORT:
            self._block.forbid_export()
        elif options.snapshot is SnapshotAction.USE:
            self._block.check_use(version)
        position = services.slots.create(
            command.slot_name,
            command.plugin,
            pid=self._context.pid,
            database=services.database_oid,
            temporary=command.temporary,
            two_phase=options.two_phase,
            failover=options.failover,
            begin=self._block.check_no_writes,
            warn=warn,
        )
        exported = None
        if options.snapshot is SnapshotAction.EXPORT:
            exported = services.snapshots.export(self._context.pid, position)
        elif options.snapshot is SnapshotAction.USE:
            self._block.use(position)
        return _row(
            "CREATE_REPLICATION_SLOT",
            [
                ("slot_name", TEXT, command.slot_name),
                ("consistent_point", TEXT, str(position.lsn)),
                ("snapshot_name", TEXT, exported),
                ("output_plugin", TEXT, command.plugin),
            ],
        )

    def _alter(self, command: c.AlterReplicationSlot) -> Answer:
        options = alter_slot_options(command, self._services.version)

        def change(slot: Slot) -> Slot:
            failover = slot.failover if options.failover is None else options.failover
            two_phase = slot.two_phase if options.two_phase is None else options.two_phase
            # None: the next stream sets two_phase_at, to the LSN at which it begins.
            at = slot.two_phase_at if two_phase and slot.two_phase else None
            return replace(slot, failover=failover, two_phase=two_phase, two_phase_at=at)

        self._services.slots.alter(
            command.slot_name, change, pid=self._context.pid, version=self._services.version
        )
        return Done("ALTER_REPLICATION_SLOT")

    def _read(self, name: str) -> Answer:
        with suppress(UndefinedObject), self._services.catalog.read() as t:
            t.slots.get(name)
            raise FeatureNotSupported(
                "cannot use READ_REPLICATION_SLOT with a logical replication slot"
            )
        columns = [("slot_type", TEXT), ("restart_lsn", TEXT), ("restart_tli", INT8)]
        return _row("READ_REPLICATION_SLOT", [(name, oid, None) for name, oid in columns])

    def _require_database(self) -> None:
        if not self._context.parameters.database:
            raise NotInPrerequisiteState("logical decoding requires a database connection")

    # Streams

    def _start(self, command: c.StartReplication) -> Iterator[Answer]:
        self._block.outside("START_REPLICATION")
        if command.kind is ReplicationKind.PHYSICAL or command.slot_name is None:
            raise FeatureNotSupported(
                "physical replication is not supported",
                hint="START_REPLICATION SLOT name LOGICAL ... streams logical changes.",
            )
        self._require_database()
        name = command.slot_name
        services = self._services
        with ExitStack() as held:  # until the stream or the session ends
            slot = held.enter_context(
                services.slots.held(name, self._context.pid, version=services.version)
            )
            warnings: list[Notice] = []
            try:
                plugin = held.enter_context(self._plugin(slot, command.options, warnings.append))
            finally:
                yield from warnings
            end = services.sequencer.position().lsn
            if command.start > end:
                # The subscriber has changes that the node's log lacks. New changes would get the
                # same LSNs, and the subscriber would skip them.
                raise PenstockError(
                    f"requested starting point {command.start} is ahead of the WAL flush position "
                    f"of this server {end}",
                    hint="The node's state store may have been restored from an older copy. "
                    f"{SUBSCRIBE_AGAIN}",
                )

            def run(wire: Duplex) -> None:
                with held:
                    self._stream(wire, command, slot, plugin)

            yield Streaming(run)

    def _plugin(
        self, slot: Slot, options: Options, warn: Callable[[Notice], None]
    ) -> LogicalDecodingContext:
        """Return the context of the slot's output plugin. Raises PenstockError for a bad plugin or
        bad options."""
        return self._services.reading.context(
            slot, options, interrupt=self._cancellation.check, warn=warn
        )

    def _stream(
        self,
        wire: Duplex,
        command: c.StartReplication,
        slot: Slot,
        plugin: LogicalDecodingContext,
    ) -> None:
        services, context, name = self._services, self._context, slot.name
        with services.catalog.read() as t:
            start = t.transactions.boundary(max(command.start, slot.confirmed_flush_lsn))
        lake = services.reading.transactions(plugin, slot, start)
        state = SenderState(slot=name, sent=start)
        with services.senders.running(
            context.pid,
            state,
            role=context.role.oid,
            application_name=context.parameters.application_name,
            address=context.address,
            port=context.port,
        ):
            log.info('starting logical decoding for slot "%s": transactions after %s', name, start)
            feed = Feed(services.catalog, services.sequencer, lake.source, start)
            feed.start()
            try:
                with services.slots.decoded(name):
                    Stream(
                        plugin,
                        lake,
                        wire,
                        feed,
                        state,
                        confirm=lambda flush: services.slots.confirm(name, flush),
                        timeout_s=services.wal_sender_timeout_s,
                        check=self._cancellation.check,
                        told=services.sync_rep.tell,
                    ).run()
            finally:
                feed.close()


def _row(tag: str, cells: list[tuple[str, int, str | None]]) -> Rows:
    fields = field_descriptions(Attribute(name, oid) for name, oid, _ in cells)
    return Rows(
        fields, [[None if v is None else v.encode() for _, _, v in cells]], tag, counted=False
    )
