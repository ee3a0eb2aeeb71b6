"""pg_logical_emit_message (logicalfuncs.c): a record in the node's log, for those who subscribe.

In: what puts it there, the session that asks. Out: functions for ``pg_catalog``, one for each type
of the content. In a transaction block one that belongs to a transaction goes with the block, and
the position that is told is the end of the log by now: its own is known when the block is
committed. Any other is durable when its position is told, whatever ``flush`` says, and lasts,
whatever becomes of the query; one that belongs to a transaction is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.catalog import EmittedMessage
from penstock.lsn import Lsn
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import OF_BYTEA, CatalogFunction

_EMIT: Final = "pg_logical_emit_message"
_FIRST: Final = ("bool", "text")

MESSAGE_FUNCTIONS: Final = frozenset({_EMIT})

Emit = Callable[[EmittedMessage, bytes], Lsn]
"""Puts a message into the log; where its record ends."""


class MessageFunctions:
    """For one session."""

    def __init__(self, emit: Emit, end: Callable[[], Lsn], facts: SessionFacts) -> None:
        """``end``: of the log."""
        self._emit = emit
        self._end = end
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """By name."""
        signatures = (
            CatalogFunction(_EMIT, (*_FIRST, "text", "bool"), "pg_lsn"),
            CatalogFunction(f"{_EMIT}{OF_BYTEA}", (*_FIRST, "bytea", "bool"), "pg_lsn"),
        )
        return {s.name: PythonFunction(s, self._message, strict=False) for s in signatures}

    def _message(
        self,
        transactional: bool | None,
        prefix: str | None,
        content: str | bytes | None,
        flush: bool | None,
    ) -> int | None:
        if transactional is None or prefix is None or content is None or flush is None:
            return None
        data = content.encode() if isinstance(content, str) else bytes(content)
        if transactional and self._facts.emit is not None:
            self._facts.emit(prefix, data)
            return int(self._end())
        if transactional:
            self._facts.wrote()
        return int(self._emit(EmittedMessage(transactional, prefix), data))
