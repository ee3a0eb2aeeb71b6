"""The unprivileged account that a server runs under, since PostgreSQL refuses to run as root.

In: the user of this process. Out: None for an ordinary user (the server runs as the same user), and
for root a user and group id to switch to; also a check whether that account can start a program.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigurationError

_CANDIDATES = ("penstock", "nobody", "postgres", "daemon")


@dataclass(frozen=True)
class Account:
    """A user and group to run a server under."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account that servers run under, None for our own. Raises ConfigurationError if no
    account fits."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL cannot run as root and there is no unprivileged user to run it",
        hint="Create one: useradd --system penstock",
    )


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments of ``subprocess`` that start a program under the account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def can_execute(account: Account | None, program: Path) -> bool:
    """Tell whether the account can start the program; every folder above must let it through."""
    try:
        done = subprocess.run(
            [program, "--version"],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            **as_account(account),
        )
    except OSError:
        return False
    return done.returncode == 0
