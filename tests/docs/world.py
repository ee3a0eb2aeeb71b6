"""Where the blocks of a page are run: a server, a folder with a home, a Python that goes on.

In: blocks. Out: what they print. The publisher is configured by the guide's own blocks; between two
blocks the world waits until a running node has caught up, and its subscribers have, as a reader of
the page would.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psycopg

from docs.blocks import Block, blocks
from docs.python_blocks import NEW_PAGE
from penstock import Node
from penstock.embedded import EmbeddedPostgres, ends_with_parent, wait_until
from penstock.embedded.installation import clients
from penstock.embedded.server import free_port
from penstock.lsn import Lsn
from penstock.node import guc
from penstock.node.status import SubscriptionStatus

GUIDE = "docs/follow-your-database.md"
FEED = "docs/feed-postgresql.md"
DATABASE = "shop"
REPORTS = "reports"
_PYTHON = Path(__file__).with_name("python_blocks.py")
_CAUGHT_UP_SECONDS = 120.0


@contextlib.contextmanager
def shop_server() -> Iterator[EmbeddedPostgres]:
    """A publisher with the guide's postgresql.conf and pg_hba.conf, and an empty database shop."""
    guide = blocks(GUIDE)
    (conf,) = [b.text for b in guide if b.kind == "ini postgresql.conf"]
    (hba,) = [b.text for b in guide if b.kind == "text pg_hba.conf"]
    settings = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in conf.splitlines())
    with EmbeddedPostgres(
        18,
        settings={name: value.strip("'") for name, value in settings.items()},
        hba=[line.replace("192.0.2.10/32", "127.0.0.1/32") for line in hba.splitlines()],
    ) as server:
        server.psql(f"CREATE DATABASE {DATABASE}")
        yield server


@contextlib.contextmanager
def reports_server() -> Iterator[EmbeddedPostgres]:
    """A stock PostgreSQL with an empty database reports, which subscribes to a node."""
    with EmbeddedPostgres(18) as server:
        server.psql(f"CREATE DATABASE {REPORTS}")
        yield server


class World:
    """A folder in which blocks run; a context manager that ends what they have started."""

    def __init__(self, folder: Path, server: EmbeddedPostgres) -> None:
        self.folder = folder
        self.server = server
        self.node_port = free_port()
        self.metrics_port = free_port()
        self.names: dict[str, str] = {}
        """What else of the examples is replaced, and by what."""
        self._home = folder / "home"
        self._home.mkdir()
        self._node: subprocess.Popen[bytes] | None = None
        self._python: subprocess.Popen[str] | None = None
        self._log: IO[bytes] = (folder / "node.log").open("ab")

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end_python()
            self.stop_node()
        finally:
            self._log.close()

    def new_page(self) -> None:
        """The next Python block begins with no names; the process is the same, and its Spark."""
        if self._python is not None:
            self._ask_python(NEW_PAGE, "", "a new page")

    def end_python(self) -> None:
        """The next Python block begins in a new process."""
        if self._python is None:
            return
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.close()
        self._python.wait(60)
        self._python.stdout.close()
        self._python = None

    def run(self, part: Sequence[Block]) -> None:
        """Run blocks in order; assert what the page says they print."""
        printed = ""
        for block in part:
            if block.kind == "text output":
                assert_like(printed, block)
            elif block.runs:
                printed = self._run(block)

    def _run(self, block: Block) -> str:
        text = self._local(block.text)
        match block.kind:
            case "sh background":
                self._start_node(text)
                printed = ""
            case "sh environment":
                names = re.findall(r"^export (\w+)=", text, re.MULTILINE)
                assert all(name in os.environ for name in names), f"{block}: {names}"
                printed = ""
            case "sh stops-node":
                self.stop_node()
                printed = self._shell(text, block)
            case "sh":
                printed = self._shell(text, block)
            case "sql publisher":
                printed = self.server.psql(text, DATABASE)
            case "sql node":
                printed = self._shell(f'penstock sql -D node "{text}"', block)
            case "sql lake":
                conninfo = f"host=127.0.0.1 port={self.node_port} dbname=lake user=admin"
                printed = self._psql(conninfo, text, block)
            case "sql subscriber":
                printed = self._psql(self.server.conninfo(REPORTS), text, block)
            case "sql spark" | "python" | "python spark":
                self._start_python()
                printed = self._ask_python(block.kind, text, block)
            case _:
                raise AssertionError(f"{block}: nobody runs {block.kind!r}")
        self._wait_caught_up()
        self._wait_subscribers()
        return printed

    def _local(self, text: str) -> str:
        """The example's names replaced by ours."""
        port = self.server.port
        for name, ours in self.names.items():
            text = text.replace(name, ours)
        return (
            text.replace("db.example.com:5432", f"127.0.0.1:{port}")
            .replace("penstock@state.example.com", f"postgres@127.0.0.1:{port}")
            .replace("host=db.example.com", f"host=127.0.0.1 port={port}")
            .replace("lake.example.com:9187", f"127.0.0.1:{self.metrics_port}")
            .replace("lake.example.com", "127.0.0.1")
            .replace("5440", str(self.node_port))
            .replace("9187", str(self.metrics_port))
            .replace("/srv/node", str(self.folder / "node"))
        )

    def _environment(self) -> dict[str, str]:
        """Ours, with a home of its own; what was fetched once is not fetched again for it."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folders = [Path(sys.executable).parent, clients().program("psql").parent]
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        return {**os.environ, "HOME": str(self._home), "XDG_CACHE_HOME": cache, "PATH": path}

    def _shell(self, text: str, block: Block) -> str:
        return self._program(["bash", "-e", "-c", text], "", block)

    def _psql(self, conninfo: str, text: str, block: Block) -> str:
        return self._program(["psql", "-X", "-v", "ON_ERROR_STOP=1", conninfo], text, block)

    def _program(self, command: Sequence[str], text: str, block: Block) -> str:
        environment = self._environment()
        done = subprocess.run(
            [shutil.which(command[0], path=environment["PATH"]) or command[0], *command[1:]],
            cwd=self.folder,
            env=environment,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{block}: exit status {done.returncode}\n{done.stdout}"
        return done.stdout

    def _start_node(self, text: str) -> None:
        self._node = subprocess.Popen(
            [*ends_with_parent("TERM"), "bash", "-c", f"exec {text}"],
            cwd=self.folder,
            env=self._environment(),
            stdout=self._log,
            stderr=self._log,
        )

    def stop_node(self) -> None:
        """SIGTERM, as the page says; the node ends by itself with exit status 0."""
        if self._node is None:
            return
        self._node.send_signal(signal.SIGTERM)
        try:
            status = self._node.wait(60)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
            raise
        finally:
            self._node = None
        assert status == 0, f"penstock start: exit status {status}\n{self.node_log()}"

    def node_log(self) -> str:
        """The end of what the node in the background has printed."""
        return (self.folder / "node.log").read_text("utf-8", "replace")[-4000:]

    def _wait_caught_up(self) -> None:
        """Until every subscription of the node in the background has a cut at this moment."""
        if self._node is None:
            return
        lsn = Lsn.parse(self.server.psql("SELECT pg_current_wal_flush_lsn()"))
        with Node(self.folder / "node") as node:
            wait_until(
                lambda: all(_at(node, status, lsn) for status in node.status()),
                f"cut at {lsn}",
                _CAUGHT_UP_SECONDS,
                state=lambda: f"{node.status()}\n{self.node_log()}",
                guard=self._require_node,
            )

    def _require_node(self) -> None:
        assert self._node is not None
        assert self._node.poll() is None, f"the node has ended\n{self.node_log()}"

    def _wait_subscribers(self) -> None:
        """Until the node's port is open, and who subscribes has what the lake holds now."""
        if self._node is None or not guc.load(self.folder / "node").port:
            return
        wait_until(
            self._subscribers_caught_up,
            "subscribers with what the lake holds",
            _CAUGHT_UP_SECONDS,
            state=self.node_log,
            guard=self._require_node,
        )

    def _subscribers_caught_up(self) -> bool:
        conninfo = f"host=127.0.0.1 port={self.node_port} dbname=lake user=admin"
        passfile = str(self._home / ".pgpass")
        try:
            with psycopg.connect(conninfo, passfile=passfile, autocommit=True) as node:
                # Any statement of the node's looks for tables and commits first.
                node.execute("ALTER ROLE admin LOGIN")
                slots = node.execute(
                    "SELECT confirmed_flush_lsn >= pg_current_wal_lsn() FROM pg_replication_slots"
                ).fetchall()
        except psycopg.OperationalError as error:
            assert "Connection refused" in str(error), error
            return False
        copied = self.server.psql(
            "SELECT coalesce(bool_and(srsubstate = 'r'), true) FROM pg_subscription_rel",
            REPORTS,
        )
        return copied == "t" and all(confirmed for (confirmed,) in slots)

    def _start_python(self) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, _PYTHON],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )

    def _ask_python(self, kind: str, text: str, what: object) -> str:
        assert self._python is not None
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"kind": kind, "text": text}) + "\n")
        self._python.stdin.flush()
        answer = json.loads(self._python.stdout.readline() or '{"error": "Python has ended"}')
        assert "error" not in answer, f"{what}: {answer['error']}\n{self.node_log()}"
        printed: str = answer["printed"]
        return printed


def _at(node: Node, status: SubscriptionStatus, lsn: Lsn) -> bool:
    assert not status.stopped, status
    cut = node.cut(status.name)
    ready = all(table.state == "r" for table in status.tables)
    return ready and cut is not None and cut.lsn >= lsn


def assert_like(printed: str, block: Block) -> None:
    """Whether ``printed`` is what the block shows, ``...`` standing for anything."""
    wanted = ".*".join(re.escape(part) for part in block.text.strip().split("..."))
    shown = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    assert re.fullmatch(wanted, shown, re.DOTALL), f"{block} shows other output than:\n{shown}"
