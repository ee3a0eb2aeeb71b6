"""The publishing half of a node: its port, and the services that its sessions share.

``reload`` applies parameters after they were read again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.backend.backend import BackendOptions, Services, SessionContext
from penstock.backend.hba import parse_rules
from penstock.backend.runner import SessionRunner
from penstock.backend.server import ListenOptions, Server
from penstock.backend.services import SessionServices, shown_text
from penstock.backend.startup_report import ALWAYS_REPORTED
from penstock.backend.turns import Turns
from penstock.catalog import Catalog, Role
from penstock.errors import ConfigurationError
from penstock.executor.lake import SparkLake
from penstock.guc.guc_tables import settings
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.warehouse import Warehouse
from penstock.node import guc
from penstock.node.guc import LiveParameters, Parameters, reload_told
from penstock.node.logical_decoding import logical_reading, plugin_finder
from penstock.node.session_commands import SessionCommands
from penstock.pg_catalog.database import Connections
from penstock.pg_catalog.node_catalogs import NodeCatalogs, SharedState
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.protocol.answers import StatementRunner
from penstock.query_memory import MEMORY
from penstock.stats.backend_status import Sessions
from penstock.wait_event import Patience
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Sequencer, SequencerThread
from penstock.walsender.slots import Retention, Slots
from penstock.walsender.snapshots import Snapshots
from penstock.walsender.syncrep import SyncRep

log = logging.getLogger(__name__)

DATABASE_OID: Final = 16384
"""The first oid that a new cluster gives out (FirstNormalObjectId): there is one database."""
_ALPN: Final = "postgresql"
"""The protocol's name in a TLS handshake (PG_ALPN_PROTOCOL)."""


class ServingNode:
    """Server and sequencer of a started node."""

    def __init__(
        self,
        folder: Path,
        parameters: LiveParameters,
        spark: Cluster,
        warehouse: Warehouse,
        catalog: Catalog,
        sessions: Sessions,
        indexes: KeyIndexes,
        connections: Connections,
    ) -> None:
        """Prepare the server. ``sessions``: the list of sessions and workers; ``indexes``: the
        files' key indexes, which workers use, too; ``connections``: for catalog queries. Raises
        ConfigurationError if rules, certificate, version or numbers of connections are
        invalid."""
        self._connections, self._indexes = connections, indexes
        self._catalog = catalog
        self._folder, self._live = folder, parameters
        self._warehouse = warehouse
        self._shown = dict(_settings(self._parameters))
        self._reloading = threading.Lock()
        self.sequencer = Sequencer(catalog, warehouse)
        now = self._parameters
        self._thread = SequencerThread(self.sequencer, now.sequencer_interval, self._keep_up)
        self.senders = Senders()
        self.sync_rep = SyncRep(self.senders, lambda: self._parameters.synchronous_standby_names)
        self.sessions = sessions
        self.slots = Slots(
            catalog,
            self.sequencer,
            now.max_replication_slots,
            self.senders.forget,
            plugin_finder(lambda: self._parameters),
            warehouse.check_there,
        )
        parts = (spark, warehouse, catalog, self.sequencer, self.slots)
        self.reading = logical_reading(*parts, lambda: self._parameters, self.senders.stats)
        self._retention = Retention(catalog, warehouse, self.slots, now.max_slot_keep_age)
        self.max_wal_senders = now.max_wal_senders
        self.max_replication_slots = now.max_replication_slots
        MEMORY.limit = now.query_mem
        self._turns = Turns(_at_once(now))
        self._services = self._session_services(spark, warehouse)
        self._options = self._backend_options(server_tls(folder, now))
        self._server = Server(
            _listen_options(now),
            self._options,
            Services(
                self._find_role,
                self._has_database,
                self._open_session,
                lambda _: None,
                sessions=self.sessions,
                shown=lambda text, role: shown_text(text, role, catalog, warehouse),
                answered=self.slots.answered,
                heard=self.slots.heard,
            ),
        )

    @property
    def shared(self) -> SharedState:
        """The state that the catalogs show."""
        return SharedState(
            DATABASE_OID, self.slots, self.senders, self.sessions, self.sync_rep.states
        )

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._server.port

    def start(self) -> None:
        """Put existing commits in order, then accept clients. Raises ConfigurationError."""
        self._blocks.finish()
        self._prepared.finish()
        self.sequencer.step(discover=True)
        self._server.start()
        self._thread.start()

    def stop(self, patience: Patience | None = None) -> None:
        """End every session and the threads."""
        patience = patience or Patience()
        self._server.stop(patience)
        self._thread.stop(patience)

    @property
    def _parameters(self) -> Parameters:
        return self._live.now

    def reload(self) -> None:
        """Reload the parameters. If this raises PenstockError, nothing has changed."""
        with self._reloading:
            self._live.reload()
            now, tls = self._parameters, self._options.tls
            try:
                tls = server_tls(self._folder, now)
            except ConfigurationError as error:
                log.error("%s", error.report())
                log.error("SSL configuration was not reloaded")
            self._options = self._backend_options(tls)
            self._server.take(self._options)
            self._shown.update(_settings(now))
            self._thread.interval_s = now.sequencer_interval
            MEMORY.limit = now.query_mem
            self._turns.allow(_at_once(now))
            self._retention.max_keep_age_s = now.max_slot_keep_age
            self.sync_rep.tell()

    def _keep_up(self) -> None:
        """Find Delta logs with gaps, invalidate slots that are too old, and forget transactions
        that no slot needs."""
        # An unmounted warehouse has no logs at all; that must not invalidate slots.
        self._warehouse.check_there()
        self._blocks.finish()
        self._prepared.finish()
        self.sequencer.check_logs()
        self._retention.check()
        # Read the end first: a slot that is made meanwhile begins at this end, or later.
        with self._catalog.read() as t:
            end = t.transactions.end()
        oldest = self.slots.oldest()
        self.sequencer.prune(end if oldest is None else oldest)

    def _session_services(self, spark: Cluster, warehouse: Warehouse) -> SessionServices:
        parameters, catalog = self._parameters, self._catalog
        lake = SparkLake(
            spark,
            warehouse,
            catalog,
            self.sequencer,
            parameters.max_prepared_transactions,
            self.slots.oldest,
            self._indexes,
        )
        self._blocks, self._prepared = lake.blocks, lake.prepared
        commands = SessionCommands(
            catalog,
            warehouse,
            self.sequencer,
            parameters.database,
            parameters.server_version,
            parameters.default_unsent_changes,
        )
        return SessionServices(
            catalog=catalog,
            sequencer=self.sequencer,
            slots=self.slots,
            snapshots=Snapshots(),
            senders=self.senders,
            catalog_queries=NodeCatalogs(
                catalog,
                warehouse,
                self.shared,
                self._connections,
                lambda: reload_told(self._folder, self.reload),
                self.reading,
            ),
            lake=lake,
            jobs=spark,
            run_command=commands,
            blocks=commands,
            settings=self._shown,
            version=parameters.server_version,
            system_identifier=_system_identifier(catalog.node_info.node_id),
            database=parameters.database,
            database_oid=DATABASE_OID,
            wal_sender_timeout_s=lambda: self._parameters.wal_sender_timeout,
            reading=self.reading,
            sessions=self.sessions,
            sync_rep=self.sync_rep,
            turns=self._turns,
        )

    def _backend_options(self, tls: ssl.SSLContext | None) -> BackendOptions:
        parameters = self._parameters
        return BackendOptions(
            version=parameters.server_version,
            settings={**ALWAYS_REPORTED, **_settings(parameters)},
            rules=parse_rules(parameters.hba),
            secret=hashlib.sha256(self._catalog.node_info.node_id.encode()).digest(),
            tls=tls,
            authentication_timeout_s=parameters.authentication_timeout,
            idle_session_timeout_s=parameters.idle_session_timeout,
        )

    def _find_role(self, name: str) -> Role | None:
        with self._catalog.read() as t:
            return t.roles.find(name)

    def _has_database(self, name: str) -> bool:
        return name == self._parameters.database

    def _open_session(self, context: SessionContext) -> StatementRunner:
        return SessionRunner(context, self._services)


def _at_once(parameters: Parameters) -> int:
    """Return how many statements of a role run at once; 0: no limit."""
    said = parameters.max_running_statements
    return said if said >= 0 else max(1, (os.cpu_count() or 1) - 1)


def _listen_options(parameters: Parameters) -> ListenOptions:
    addresses = (address.strip() for address in parameters.listen_addresses.split(","))
    return ListenOptions(
        tuple(addresses),
        parameters.port,
        parameters.max_connections,
        parameters.max_wal_senders,
        parameters.superuser_reserved_connections,
    )


def _settings(parameters: Parameters) -> Mapping[str, str]:
    """Return the parameters that a server also has, and numbers and booleans that only a node has,
    as SHOW prints them, by lower-case name."""
    version = parameters.server_version
    known = settings(version)
    shown = {
        name: known[name].shown(known[name].read(text))
        for name, text in guc.plain(parameters)
        if name in known
    }
    own = {name: text for name, text in guc.plain(parameters, texts=False) if name not in known}
    return {
        **own,
        **shown,
        "server_version": f"{version}.0",
        "server_version_num": f"{version * 10000}",
        "ssl": "on" if parameters.ssl_cert_file else "off",
    }


def _system_identifier(node_id: str) -> str:
    """Return a positive 64-bit number like the one in pg_control."""
    digest = hashlib.sha256(node_id.encode()).digest()
    return str(int.from_bytes(digest[:8], "big") >> 1)


def server_tls(folder: Path, parameters: Parameters) -> ssl.SSLContext | None:
    """Return the TLS context for clients' connections; None: without TLS. Raises
    ConfigurationError."""
    if not parameters.ssl_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([_ALPN])
    key: Any = folder / parameters.ssl_key_file if parameters.ssl_key_file else None
    try:
        context.load_cert_chain(folder / parameters.ssl_cert_file, key, _no_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f'could not load server certificate file "{parameters.ssl_cert_file}": {error}',
            hint="ssl_cert_file and ssl_key_file are PEM files, relative to the node's folder.",
        ) from None
    return context


def _no_passphrase() -> str:
    """Raise ConfigurationError where OpenSSL would prompt: a reload would wait for the answer."""
    raise ConfigurationError(
        "private key file is protected by a passphrase, and nobody is there to be asked for it",
        hint="Take the passphrase off: openssl pkey -in server.key -out server.key",
    )
