"""The servers and nodes of one test file, at the orders of the Perl modules in ``lib``.

In: one JSON object a line on a unix socket: ``new``, ``init``, ``start``, ``stop``, ``reload`` and
``append_conf``, each with the name that the test gave its server. Out: one JSON object a line; a
failed order has ``error``. SQL does not come this way: the test's psql talks to the ports.
``close`` stops whatever a file has left running, so that the next one begins with nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import PenstockError
from tap.members import LakeNode, Member, StockServer
from tap.roles import Role


class MakeNode(Protocol):
    """Makes the node of a name, in a folder of its own."""

    def __call__(self, name: str) -> LakeNode: ...


class Keeper:
    """Listens on ``path`` from ``serve`` on, in a thread of its own."""

    def __init__(self, path: Path, role: Role, file: str, make_node: MakeNode) -> None:
        self.path = path
        self._role = role
        self._file = file
        self._make_node = make_node
        self._members: dict[str, Member] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, name="keeper", daemon=True)
        self._thread.start()

    def close(self) -> list[str]:
        """Ends the socket and every member; returns what could not be ended, as text."""
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        troubles = []
        for member in self._members.values():
            try:
                member.close()
            except Exception as error:
                troubles.append(f"{member.name}: {error!r}")
        self._members.clear()
        return troubles

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    answer = self._answer(json.loads(line))
                    with contextlib.suppress(OSError):
                        stream.write(json.dumps(answer).encode() + b"\n")
                        stream.flush()

    def _answer(self, order: dict[str, Any]) -> dict[str, Any]:
        actions: dict[str, Callable[[dict[str, Any]], None]] = {
            "new": self._new,
            "init": lambda o: self._members[o["name"]].init(o["extra"]),
            "start": lambda o: self._members[o["name"]].start(),
            "stop": lambda o: self._members[o["name"]].stop(o["mode"]),
            "reload": lambda o: self._members[o["name"]].reload(),
            "append_conf": lambda o: self._members[o["name"]].append_conf(o["file"], o["text"]),
        }
        error = ""
        try:
            actions[order["do"]](order)
        except PenstockError as refused:
            error = refused.report()
        except Exception as broken:
            error = repr(broken)
        member = self._members.get(order["name"])
        facts = {"error": error} if error else {}
        if member is not None:
            facts |= {
                "port": str(member.port),
                "log": str(member.log),
                "folder": str(member.folder),
            }
        return facts

    def _new(self, order: dict[str, Any]) -> None:
        name = order["name"]
        if not re.fullmatch(r"\w+", name):
            raise ValueError(f"a name of a server: {name}")
        former = self._members.pop(name, None)
        if former is not None:
            former.close()
        if self._role.is_node(self._file, name):
            self._members[name] = self._make_node(name)
        else:
            self._members[name] = StockServer(name, self._role.version)
