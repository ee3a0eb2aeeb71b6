"""A statement that commits waits for standbys before its client is told (SyncRepWaitForLSN).

In: a session's settings, where the log ends before and after its statement. Out: nothing, or
PostgreSQL's warning where the wait was given up: what is committed stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock.backend.cancellation import Cancellation
from penstock.backend.services import SessionServices
from penstock.lsn import Lsn
from penstock.protocol.answers import Notice
from penstock.sql import Statement
from penstock.sql.command_tag import reads
from penstock.walsender.syncrep import MODES

_WARNING: Final = "01000"
_SHUTDOWN: Final = "57P01"
_DETAIL: Final = (
    "The transaction has already committed locally, but might not have been replicated to the "
    "standby."
)


@dataclass(frozen=True, slots=True)
class Before:
    """Where the log ends before a commit; ``mode``: the synchronous_commit that holds for it, which
    may be the block's alone."""

    lsn: Lsn
    mode: str


class StandbyWait:
    """Of one session. ``mode``: its synchronous_commit now."""

    def __init__(
        self, services: SessionServices, mode: Callable[[], str], cancellation: Cancellation
    ) -> None:
        self._services = services
        self._mode = mode
        self._cancellation = cancellation
        self._wrote = False

    def before(self, statement: Statement) -> Before | None:
        """Where the log ends, before a statement that may commit; None: nobody is waited for."""
        if reads(statement):
            return None
        return self.now()

    def wrote(self) -> None:
        """The query that runs commits something."""
        self._wrote = True

    @contextmanager
    def query(self, warnings: list[Notice]) -> Iterator[None]:
        """A query runs inside; ``warnings``: where one goes."""
        self._wrote, before = False, self.now()
        yield
        if self._wrote:
            warnings += self.after(before)

    def now(self) -> Before | None:
        """The same whatever the statement is."""
        mode = self._mode()
        if mode not in MODES or self._services.sync_rep.config() is None:
            return None
        return Before(self._services.sequencer.position().lsn, mode)

    def after(self, before: Before | None) -> Iterator[Notice]:
        """Wait for what the log has got since then."""
        if before is None:
            return
        services, cancellation = self._services, self._cancellation
        end = services.sequencer.position().lsn
        if end <= before.lsn or services.sync_rep.wait(end, before.mode, cancellation.requested):
            return
        if cancellation.ended:
            message = (
                "canceling the wait for synchronous replication and terminating connection due "
                "to administrator command"
            )
            yield Notice("WARNING", message, _DETAIL, sqlstate=_SHUTDOWN)
            return
        cancellation.forget()
        message = "canceling wait for synchronous replication due to user request"
        yield Notice("WARNING", message, _DETAIL, sqlstate=_WARNING)
