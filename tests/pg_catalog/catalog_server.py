"""A server that answers by ``CatalogDatabase`` alone, and psql against it or a real one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.backend.backend import BackendOptions, Services, SessionContext
from penstock.backend.hba import parse_rules
from penstock.backend.server import ListenOptions, Server
from penstock.catalog import Role
from penstock.errors import PenstockError
from penstock.pg_catalog import CatalogDatabase, reads_catalog_only
from penstock.protocol.answers import Answer, Description, Prepared, Rows
from penstock.protocol.backend_messages import TransactionStatus


class CatalogRunner:
    """Runs catalog queries and nothing else."""

    def __init__(self, database: CatalogDatabase) -> None:
        self.database = database
        self.prepared: dict[str, Prepared] = {}

    def simple(self, text: str) -> Iterable[Answer]:
        return self.execute(self.prepare(text, ()), ())

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        if not reads_catalog_only(text):
            raise PenstockError(f"no catalog query: {text}", sqlstate="0A000")
        parameters = self.database.parameter_types(text, types)
        fields = self.database.describe(text, types)
        return Prepared(text, Description(parameters, fields))

    @property
    def transaction_status(self) -> TransactionStatus:
        return TransactionStatus.IDLE

    def failed(self) -> tuple[()]:
        return ()

    def execute(self, statement: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        types = statement.description.parameters
        fields, rows = self.database.query(statement.text, parameters, types)
        return [Rows(fields, rows)]

    def cancel(self) -> None:
        pass

    def terminate(self) -> None:
        pass

    def close(self) -> None:
        self.database.close()


@contextlib.contextmanager
def catalog_server(
    open_database: Callable[[SessionContext], CatalogDatabase], version: int, name: str
) -> Iterator[str]:
    """The connection string of a running server."""
    role = Role(10, "postgres", superuser=True, login=True, replication=True)
    settings = {
        "server_version": f"{version}.0",
        "server_encoding": "UTF8",
        "standard_conforming_strings": "on",
        "client_encoding": "UTF8",
    }
    server = Server(
        ListenOptions(port=0),
        BackendOptions(
            version=version,
            settings=settings,
            rules=parse_rules(["host all all 127.0.0.1/32 trust"]),
            secret=b"s" * 32,
        ),
        Services(
            {"postgres": role}.get,
            lambda database: database == name,
            lambda context: CatalogRunner(open_database(context)),
            lambda _: None,
        ),
    )
    server.start()
    try:
        yield f"host=127.0.0.1 port={server.port} dbname={name} user=postgres"
    finally:
        server.stop()


def run_psql(program: Path, conninfo: str, script: str) -> tuple[str, str]:
    """What psql prints, and its errors."""
    done = subprocess.run(
        [program, "-X", "-P", "pager=off", "-d", conninfo],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout, done.stderr
