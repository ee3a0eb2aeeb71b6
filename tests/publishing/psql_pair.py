"""psql 18 against the node and against a real PostgreSQL 18: both must print the same.

In: scripts as a user types them. Out: what psql prints, or an assertion where the two differ.
Owners are alike since both know the server's superuser; what a lake calls otherwise is put right
here.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from dataclasses import dataclass

from fix_postgres import Database
from penstock.embedded.installation import clients
from publishing.lake_node import PASSWORD, LakeNode

SUPERUSER = "postgres"


def psql(conninfo: str, script: str) -> str:
    """Everything that psql prints for a script, errors among it with their SQLSTATEs."""
    done = subprocess.run(
        [str(clients().program("psql")), "-X", "-a", "-P", "pager=off", "-d", conninfo],
        input="\\set VERBOSITY verbose\n" + script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PGPASSWORD": PASSWORD},
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout


@dataclass(frozen=True)
class Pair:
    """A node and a database of a PostgreSQL 18, side by side."""

    lake: LakeNode
    server: Database

    def both(self, script: str, user: str = SUPERUSER) -> str:
        """Run a script on both; what both have printed."""
        server = self.server.server.conninfo(self.server.name, user)
        wanted = normal(psql(server, script)).replace(self.server.name, "lake")
        printed = normal(psql(self.lake.conninfo(user), script))
        lines = difflib.unified_diff(wanted.splitlines(), printed.splitlines(), "server", "node")
        assert printed == wanted, "\n".join(lines)
        return printed


_NOT_OURS = re.compile(
    r"(LOCATION|SCHEMA NAME|TABLE NAME|COLUMN NAME|CONSTRAINT NAME|LINE \d+):| +\^$"
    r"|(No p|P)artition constraint"
)


def normal(printed: str) -> str:
    """Less the places in a server's source, and positions."""
    kept = [
        line
        for line in re.sub(r"^psql:<stdin>:\d+: ", "", printed, flags=re.MULTILINE).splitlines()
        if not _NOT_OURS.match(line)
    ]
    text = re.sub(r"(minimum is) [0-9A-F/]+", r"\1 ...", "\n".join(kept))
    return text.replace("| penstock |", "| postgres |")  # what the node itself owns
