"""Facts that a query can ask about its own session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from penstock.catalog import SessionSequences

SetConfig = Callable[[str, str | None, bool], str]
"""A function that sets a value: (name, value, is_local) -> the new value. The value None stands for
the default. Raises PenstockError for a value that cannot be set."""


@dataclass(frozen=True)
class SessionFacts:
    """The session that asks. ``version``: the reported major version. ``settings``: current values
    by lower-case name; ``set_config``: changes them, None if nothing is kept. ``user``: "" if the
    role is gone. ``warn``: warns the client. ``cancelled``: tells whether the query has to end.
    ``read_only``: the query may change nothing. ``wrote``: called if the query commits something.
    ``emit``: takes prefix and content of a message that goes with the query's transaction block,
    None outside of one. ``sequences``: the values that the session has taken. ``started``: the
    begin of its transaction, in UTC; ``statement_started``: the begin of its statement."""

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
        """The schemas in which unqualified names are looked up, with the user's name for
        ``$user``."""
        text = self.settings.get("search_path", '"$user", public')
        names = (name.strip().strip('"') for name in text.split(","))
        return tuple(self.user if name == "$user" else name for name in names if name)
