"""SELECT on PostgreSQL's catalogs and views for the library and the command line.

In: the text of a query, the node's catalog. Out: a result with Python values: numbers, booleans and
None where PostgreSQL has them, and PostgreSQL's text for everything else. The answers are the ones
that sessions on the port get. Which process uses a slot is known to that process only: beside it,
slots show no ``active_pid`` and ``pg_stat_replication`` is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.catalog import Catalog
from penstock.commands.scope import CommandResult
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.guc import Parameters
from penstock.node.logical_decoding import logical_reading, plugin_finder
from penstock.node.serving import DATABASE_OID, ServingNode
from penstock.pg_catalog.connections import Connections
from penstock.pg_catalog.node_catalogs import NodeCatalogs
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import NODE_OWNER
from penstock.pgtypes.pg_type import BOOL, FLOATS, INTEGERS, OID, XID
from penstock.protocol.answers import Rows
from penstock.stats.backend_status import Sessions
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots

_PID: Final = 0
_OWNER: Final = "penstock"
"""Who may write the node's folder is its superuser."""
_PYTHON: Final[Mapping[int, Callable[[str], Any]]] = {
    BOOL: lambda text: text == "t",
    **dict.fromkeys((*INTEGERS, OID, XID), int),
    **dict.fromkeys(FLOATS, float),
}


class NodeQueries:
    """Answers without a session."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        parameters: Parameters,
        serving: ServingNode | None,
        connections: Connections,
        reload: Callable[[], None],
        spark: Spark,
    ) -> None:
        """``serving``: the publishing half, where this process runs it. ``reload``: has the
        parameters read again (pg_reload_conf)."""
        sequencer = Sequencer(catalog, warehouse) if serving is None else serving.sequencer
        self._slots = slots = (
            Slots(
                catalog,
                sequencer,
                parameters.max_replication_slots,
                plugin=plugin_finder(lambda: parameters),
                check_warehouse=warehouse.check_there,
            )
            if serving is None
            else serving.slots
        )
        self.reading = (
            logical_reading(spark, warehouse, catalog, sequencer, slots, lambda: parameters)
            if serving is None
            else serving.reading
        )
        self._catalogs = NodeCatalogs(
            catalog,
            warehouse,
            slots,
            Senders() if serving is None else serving.senders,
            DATABASE_OID,
            sequencer.troubles,
            Sessions() if serving is None else serving.sessions,
            connections,
            reload,
            self.reading,
            dict if serving is None else serving.sync_rep.states,
        )
        self._parameters = parameters

    def answers(self, text: str) -> bool:
        """Whether the query reads nothing but catalogs."""
        return self._catalogs.reads_catalog_only(text)

    def rows(self, text: str) -> Rows:
        """Run one SELECT, with rows as sessions get them. Raises PostgreSQL's errors."""
        return self._catalogs.query(text, (), self._facts())

    def query(self, text: str) -> CommandResult:
        """As ``rows``, with Python values."""
        found = self.rows(text)
        readers = [_PYTHON.get(field.type_oid, str) for field in found.fields]
        rows = tuple(
            tuple(
                None if cell is None else read(bytes(cell).decode())
                for read, cell in zip(readers, row, strict=True)
            )
            for row in found.rows
        )
        self._slots.answered(_PID)
        return CommandResult(
            f"SELECT {len(rows)}", columns=tuple(field.name for field in found.fields), rows=rows
        )

    def heard(self) -> None:
        """The caller has the rows: slots that they were read from do not give them again."""
        self._slots.heard(_PID)

    def failed(self) -> None:
        """The caller has got nothing of what was asked."""
        self._slots.take_back(_PID, sent=True)

    def _facts(self) -> SessionFacts:
        version = self._parameters.server_version
        return SessionFacts(
            pid=_PID,
            user=_OWNER,
            role_oid=NODE_OWNER,
            superuser=True,
            replication=True,
            database=self._parameters.database,
            version=version,
            settings={"server_version": f"{version}.0"},
            set_config=lambda name, value, is_local: value or "",
        )
