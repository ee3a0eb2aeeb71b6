"""The last connections are a superuser's: who is let in, and what the others are told."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from backend.test_server import Node
from penstock.backend.server import ListenOptions
from penstock.embedded import EmbeddedPostgres
from penstock.embedded.installation import pinned_server
from penstock.errors import ConfigurationError

pytestmark = pytest.mark.postgres

_CLIENTS = ["reader", "reader", "reader", "repl", "boss", "reader", "boss", "boss", "reader"]
Connect = Callable[[str, str], psycopg.Connection[Any]]


def _told(connect: Connect, stack: ExitStack) -> list[str]:
    """What each of the clients is told, all of whom stay; "" if it is let in."""
    found = []
    for user in _CLIENTS:
        replication = "database" if user == "repl" else "false"
        try:
            stack.enter_context(connect(user, replication))
        except psycopg.OperationalError as error:
            found.append(str(error).partition("FATAL:  ")[2].strip())
            time.sleep(0.5)  # a server's process still has its slot when it has told its error
        else:
            found.append("")
    return found


@pytest.mark.parametrize("version", [15, 18])
def test_the_last_connections_are_the_superusers(version: int) -> None:
    if version != 18:
        try:
            pinned_server(version)
        except ConfigurationError as error:
            pytest.skip(error.message)
    limits = {"max_connections": 5, "superuser_reserved_connections": 2, "max_wal_senders": 1}
    node = Node()
    listen = ListenOptions(max_connections=5, superuser_reserved_connections=2, max_wal_senders=1)
    node.start(listen, version=version)
    assert node.server is not None
    with ExitStack() as stack:
        stack.callback(node.server.stop)
        stock = stack.enter_context(EmbeddedPostgres(version, settings=limits))

        def of_stock(user: str, replication: str) -> psycopg.Connection[Any]:
            conninfo = stock.conninfo()
            return psycopg.connect(conninfo, user=user, replication=replication, autocommit=True)

        def of_node(user: str, replication: str) -> psycopg.Connection[Any]:
            return psycopg.connect(node.conninfo(user, replication=replication), autocommit=True)

        first = stack.enter_context(psycopg.connect(stock.conninfo(), autocommit=True))
        for role in ("reader LOGIN", "repl LOGIN REPLICATION", "boss LOGIN SUPERUSER"):
            first.execute(f"CREATE ROLE {role}")
        stack.enter_context(of_node("boss", "false"))
        theirs, ours = _told(of_stock, stack), _told(of_node, stack)
        assert any("reserved" in told for told in theirs)
        assert ours == theirs


def test_connections_are_left_for_others() -> None:
    """What a stock server says on standard error, which begins with the program's name."""
    for version, message in (
        (15, "superuser_reserved_connections (3) must be less than max_connections (3)"),
        (
            18,
            '"superuser_reserved_connections" (3) plus "reserved_connections" (0) must be less '
            'than "max_connections" (3)',
        ),
    ):
        with pytest.raises(ConfigurationError) as caught:
            Node().start(ListenOptions(max_connections=3), version=version)
        assert caught.value.message == message
