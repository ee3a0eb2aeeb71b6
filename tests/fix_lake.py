"""A server on a real catalog and warehouse, without Spark: what sessions do by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import write_deltalake

from penstock.attribute import Attribute
from penstock.backend.backend import BackendOptions, Services
from penstock.backend.hba import parse_rules
from penstock.backend.runner import SessionRunner
from penstock.backend.server import ListenOptions, Server
from penstock.backend.services import SessionServices, shown_text
from penstock.backend.startup_report import ALWAYS_REPORTED
from penstock.catalog import Catalog, LakeTransaction, Role
from penstock.decoding import find_plugin
from penstock.decoding.reorder_buffer import DecodingStats
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pg_catalog.node_catalogs import NodeCatalogs, SharedState
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Insert, Text
from penstock.protocol.copy_both import xlog_data
from penstock.relation import Relation, ReplicaIdentity
from penstock.stats.backend_status import Sessions
from penstock.walsender.decoding_options import DecodingOptions
from penstock.walsender.feed import Changes, ChangeSource, Portion, TransactionBegin, TransactionEnd
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Sequencer, SequencerThread
from penstock.walsender.slots import Slots
from penstock.walsender.snapshots import Snapshots

_DATABASE_OID = 16384
RELATION = Relation(
    16385, "public", "a", ReplicaIdentity.DEFAULT, (Attribute("version", 25, key=True),)
)


class VersionsAsRows:
    """One inserted row a member, with the version that it led to."""

    def __init__(self, options: DecodingOptions) -> None:
        self._options = options

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        streamed = self._options.streaming
        for transaction in transactions:
            yield TransactionBegin(transaction, streamed)
            for member in transaction.members:
                cells = (Text(str(member.to_version).encode()),)
                row = Insert(RELATION.oid, cells)
                yield Portion((RELATION,), xlog_data(transaction.begin, 0, encode(row)), 1)
            yield TransactionEnd(transaction)


def slot_reading(
    catalog: Catalog,
    sequencer: Sequencer,
    slots: Slots,
    decoding: Callable[[DecodingOptions], ChangeSource],
    stats: Callable[[str], DecodingStats] = lambda slot: DecodingStats(),
) -> LogicalReading:
    """The reading of slots of pgoutput, by SQL functions and streams."""

    def no_catalogs() -> Any:
        raise AssertionError("pgoutput looks up nothing")

    return LogicalReading(
        catalog,
        sequencer,
        slots,
        find_plugin,
        18,
        lambda: 1 << 20,
        lambda options, context: decoding(options),
        no_catalogs,
        stats,
    )


_TRUST = ["host all all all trust", "host replication all all trust"]


class NoJobs:
    """There is no Spark here."""

    def group(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def interrupt(self, name: str) -> None:
        pass


class LakeServer:
    """``stop`` and ``start`` again with the same catalog: a restart. ``decoding``: what streams of
    pgoutput send."""

    def __init__(
        self,
        folder: Path,
        *,
        max_wal_senders: int = 10,
        decoding: Callable[[DecodingOptions], ChangeSource] = VersionsAsRows,
        **services: Any,
    ) -> None:
        self.max_wal_senders = max_wal_senders
        self.decoding = decoding
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.warehouse = Warehouse(str(folder / "warehouse"))
        self.settings = {"server_version": "18.0", "server_version_num": "180000"}
        self.values = services
        with self.catalog.write() as t:
            t.roles.create("repl", login=True, replication=True, superuser=True)
        self.start()

    def start(self) -> None:
        self.sequencer = Sequencer(self.catalog, self.warehouse)
        self.slots = Slots(self.catalog, self.sequencer, 4)
        self.sessions = Sessions()
        self.senders = Senders()
        self.services = SessionServices(
            **{
                "catalog": self.catalog,
                "sequencer": self.sequencer,
                "slots": self.slots,
                "snapshots": Snapshots(),
                "senders": self.senders,
                "catalog_queries": NodeCatalogs(
                    self.catalog,
                    self.warehouse,
                    SharedState(_DATABASE_OID, self.slots, self.senders, self.sessions),
                ),
                "lake": None,
                "jobs": NoJobs(),
                "run_command": None,
                "reading": slot_reading(
                    self.catalog, self.sequencer, self.slots, self.decoding, self.senders.stats
                ),
                "settings": self.settings,
                "version": 18,
                "system_identifier": "7",
                "database": "lake",
                "database_oid": _DATABASE_OID,
                "wal_sender_timeout_s": lambda: 60.0,
                "sessions": self.sessions,
                **self.values,
            }
        )
        options = BackendOptions(
            18, {**ALWAYS_REPORTED, **self.settings}, parse_rules(_TRUST), b"s"
        )
        self.server = Server(
            ListenOptions(port=0, max_wal_senders=self.max_wal_senders),
            options,
            Services(
                self._find_role,
                lambda name: name == "lake",
                lambda context: SessionRunner(context, self.services),
                lambda _: None,
                sessions=self.sessions,
                shown=lambda text, role: shown_text(text, role, self.catalog, self.warehouse),
            ),
        )
        self.thread = SequencerThread(self.sequencer, 0.01)
        self.sequencer.step(discover=True)
        self.thread.start()
        self.server.start()

    def _find_role(self, name: str) -> Role | None:
        with self.catalog.read() as t:
            return t.roles.find(name)

    def stop(self) -> None:
        self.server.stop()
        self.thread.stop()

    def close(self) -> None:
        self.stop()
        self.catalog.close()

    def connect(
        self, replication: str = "database", user: str = "repl", **options: Any
    ) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.server.port,
            dbname="lake",
            user=user,
            replication=replication,
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            connect_timeout=20,
            **options,
        )

    def write(self, name: str = "a") -> None:
        """One more commit of a table."""
        write_deltalake(
            self.warehouse.table_uri("public", name), pa.table({"id": [1]}), mode="append"
        )

    def end(self) -> Lsn:
        return self.sequencer.position().lsn
