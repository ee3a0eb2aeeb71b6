"""What a test calls a node of its own: a stock PostgreSQL server, or a Penstock node.

In: orders as PostgreSQL's ``Cluster.pm`` gives them. Out: a server on a port of 127.0.0.1, where
the role ``postgres`` may do everything without a password, in a database of that name.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import penstock
from penstock.embedded import EmbeddedPostgres, free_port
from penstock.embedded.server import StopMode

_STOCK_CONF = """
log_line_prefix = '%m [%p] %q%a '
log_statement = all
wal_retrieve_retry_interval = '100ms'
max_wal_senders = 10
max_replication_slots = 10
restart_after_crash = off
"""


class Member(Protocol):
    """One server of a test."""

    name: str

    @property
    def port(self) -> int: ...
    @property
    def log(self) -> Path: ...
    @property
    def folder(self) -> Path: ...
    def init(self, extra: Sequence[str]) -> None: ...
    def start(self) -> None: ...
    def stop(self, mode: str) -> None: ...
    def reload(self) -> None: ...
    def append_conf(self, file: str, text: str) -> None: ...
    def close(self) -> None: ...


class StockServer:
    """A PostgreSQL server from the packages that ``penstock.embedded`` knows."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self._server = EmbeddedPostgres(version, settings={"wal_level": "logical"})

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def log(self) -> Path:
        return self._server.log_path

    @property
    def folder(self) -> Path:
        return self._server.data_dir

    def init(self, extra: Sequence[str]) -> None:
        # The first start makes the data folder, and settles the port for the connection strings.
        self._server.start()
        self._server.stop()
        self.append_conf("postgresql.conf", _STOCK_CONF)

    def start(self) -> None:
        self._server.start()

    def stop(self, mode: str) -> None:
        modes: dict[str, StopMode] = {"immediate": "immediate", "smart": "smart"}
        self._server.stop(modes.get(mode, "fast"))

    def reload(self) -> None:
        self._server.reload()

    def append_conf(self, file: str, text: str) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as conf:
            conf.write(f"{text}\n")

    def close(self) -> None:
        self._server.close()


class LakeNode:
    """A node on a warehouse of its own; ``spark``: the session that all nodes of a run share."""

    def __init__(self, name: str, folder: Path, log: Path, spark: Callable[[], Any]) -> None:
        self.name = name
        self.folder = folder
        self.log = log
        self.port = free_port()
        self._spark = spark
        self._node: penstock.Node | None = None
        log.write_text("")
        self._handler = logging.FileHandler(log)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s:  %(message)s"))

    def init(self, extra: Sequence[str]) -> None:
        node = penstock.Node.init(self.folder)
        try:
            node.sql("CREATE ROLE postgres SUPERUSER LOGIN REPLICATION")
        finally:
            node.close()
        for parameter, value in {
            "port": str(self.port),
            "database": '"postgres"',
            "hba": '["host all all 127.0.0.1/32 trust"]',
            "fsync": "false",
            "wal_retrieve_retry_interval": '"100ms"',
            # As a server does, which is what the tests ask for.
            "default_unsent_changes": '"keep"',
        }.items():
            self._set(parameter, value)

    def start(self) -> None:
        logging.getLogger("penstock").addHandler(self._handler)
        self._node = penstock.Node(self.folder, spark=self._spark())
        self._node.start()

    def stop(self, mode: str) -> None:
        if self._node is not None:
            node, self._node = self._node, None
            try:
                node.close()
            finally:
                logging.getLogger("penstock").removeHandler(self._handler)

    def reload(self) -> None:
        """A node reads its parameters when it starts."""

    def append_conf(self, file: str, text: str) -> None:
        """Takes the parameters that a node has, too; the others have no meaning for it."""
        for parameter, value in re.findall(r"^\s*(\w+)\s*=\s*(.+?)\s*$", text, re.MULTILINE):
            bare = value.strip("'")
            self._set(parameter, bare if bare.isdigit() else f'"{bare}"')

    def close(self) -> None:
        try:
            self.stop("fast")
        finally:
            self._handler.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _set(self, parameter: str, value: str) -> None:
        file = self.folder / "penstock.toml"
        line = re.compile(rf"^(# )?{parameter} = .*$", re.MULTILINE)
        file.write_text(line.sub(f"{parameter} = {value}", file.read_text("utf-8")), "utf-8")
