"""What a query can ask about its own session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.catalog import SessionSequences

SetConfig = Callable[[str, str | None, bool], str]
"""(name, value, is_local) -> the new value; None is the default."""


@dataclass(frozen=True)
class SessionFacts:
    """Who asks. ``version``: reported major version. ``settings``: current values by lower-case
    name; ``set_config``: what changes them, None: nothing is kept. ``user``: "" when the role is
    gone. ``warn`` tells the client; ``cancelled``: whether the query is to end. ``read_only``:
    whether it may change nothing. ``wrote``: told that the query commits something. ``emit``: takes
    prefix and content of a message that goes with the transaction block that the query is part of,
    None: it is part of none. ``sequences``: what the session has got of
    them. ``started``: its transaction, in UTC; ``statement_started``: its statement."""

    user: str
    database: str
    version: int
    settings: Mapping[str, str] = field(default_factory=dict)
    superuser: bool = False
    replication: bool = False
    pid: int = 0
    set_config: SetConfig | None = None
    role_oid: int = 0
    warn: Callable[[str], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False
    read_only: bool = False
    wrote: Callable[[], None] = lambda: None
    emit: Callable[[str, bytes], None] | None = None
    sequences: SessionSequences = field(default_factory=SessionSequences)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    statement_started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def search_path(self) -> tuple[str, ...]:
        """Schemas in which unqualified names are looked for, ``$user`` taken out."""
        text = self.settings.get("search_path", '"$user", public')
        names = (name.strip().strip('"') for name in text.split(","))
        return tuple(self.user if name == "$user" else name for name in names if name)
