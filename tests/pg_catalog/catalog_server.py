"""A server that answers by ``CatalogDatabase`` alone, and psql against it or a real one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.backend.backend import BackendOptions, Services, SessionContext
from penstock.backend.hba import parse_rules
from penstock.backend.server import ListenOptions, Server
from penstock.catalog import Role
from penstock.errors import PenstockError
from penstock.pg_catalog import CatalogDatabase, reads_catalog_only
from penstock.protocol.answers import Answer, Prepared, Rows
from penstock.protocol.backend_messages import TransactionStatus
from penstock.sql.grammar.raw_statements import parse_query
from statement_runner import PlainRunner


class CatalogRunner(PlainRunner):
    """Runs catalog queries and nothing else."""

    def __init__(self, database: CatalogDatabase) -> None:
        self.database = database
        self.prepared: dict[str, Prepared] = {}

    changes_nothing = True

    def simple(self, text: str) -> Generator[Answer, None, None]:
        yield from self.execute(self.prepare(text, ()), ())

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        query = parse_query(text)
        if not reads_catalog_only(query):
            raise PenstockError(f"no catalog query: {text}", sqlstate="0A000")
        return Prepared(text, self.database.describe(query, types), query)

    @property
    def transaction_status(self) -> TransactionStatus:
        return TransactionStatus.IDLE

    def failed(self) -> tuple[()]:
        return ()

    def execute(self, prepared: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        types = prepared.description.parameters
        fields, rows = self.database.query(prepared.statement, parameters, types)
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
