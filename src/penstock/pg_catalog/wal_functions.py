"""SQL functions over the node's log: positions and transactions (xlogfuncs.c, xid8funcs.c,
committs.c).

The log has no files: the functions return the names that a server with segments of 16 MB would use.
A change gets its transaction ID when it is put into the log; a query has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.catalog import Catalog, EmittedMessage
from penstock.errors import FeatureNotSupported, InvalidParameterValue, NotInPrerequisiteState
from penstock.lsn import Lsn
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import OF_BYTEA, CatalogFunction, TableFunction

_NAME: Final = "pg_walfile_name"
_OFFSET: Final = "pg_walfile_name_offset"
_SPLIT: Final = "pg_split_walfile_name"
_LAST: Final = "pg_last_committed_xact"
_TIMESTAMP: Final = "pg_xact_commit_timestamp"
_ORIGIN: Final = "pg_xact_commit_timestamp_origin"

_SEGMENT: Final = 16 << 20
"""Our wal_segment_size."""
_PER_ID: Final = (1 << 32) // _SEGMENT
_TIMELINE: Final = 1
_POSITIONS: Final = 1 << 64
_FILE: Final = re.compile(r"([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})", re.IGNORECASE)
_OWN_SEGMENT_SINCE: Final = 17
"""The first version that counts a segment's first position to that segment, not to the one
before."""

# name(arguments) returns
_CURRENT: Final = {"pg_current_xact_id": "xid8", "txid_current": "int8"}
_ASSIGNED: Final = {
    "pg_current_xact_id_if_assigned": "xid8",
    "txid_current_if_assigned": "int8",
}
_STATUS: Final = {"pg_xact_status": "xid8", "txid_status": "int8"}
_COMMIT_TIMES: Final = {
    _LAST: ((), "record"),
    _TIMESTAMP: (("xid",), "timestamptz"),
    _ORIGIN: (("xid",), "record"),
}

_AGE: Final = "xid_age"
_FIRST_NORMAL: Final = 3
_INT_MAX: Final = (1 << 31) - 1
_XIDS: Final = 1 << 32

WAL_FUNCTIONS: Final = frozenset(
    {_NAME, _OFFSET, _SPLIT, *_CURRENT, *_ASSIGNED, *_STATUS, *_COMMIT_TIMES}
)


class WalFunctions:
    """Functions about the log, for one session."""

    def __init__(self, catalog: Catalog, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        positions: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
            (_NAME, "pg_lsn", "text", self._walfile),
            (_OFFSET, "pg_lsn", "record", self._walfile_offset),
            (_SPLIT, "text", "record", self._split),
            (f"{_SPLIT}_row", "text", "text", _split),
            *((name, type_, "text", self._status) for name, type_ in _STATUS.items()),
        )
        found = {
            name: PythonFunction(CatalogFunction(name, (argument,), returns), call)
            for name, argument, returns, call in positions
        }
        for name, returns in _CURRENT.items():
            function = CatalogFunction(name, (), returns)
            found[name] = PythonFunction(function, _refuse(name), strict=False)
        for name, returns in _ASSIGNED.items():
            function = CatalogFunction(name, (), returns)
            found[name] = PythonFunction(function, lambda: None, strict=False)
        for name, (arguments, returns) in _COMMIT_TIMES.items():
            function = CatalogFunction(name, arguments, returns)
            found[name] = PythonFunction(function, self._commit_times, strict=bool(arguments))
        found[_AGE] = PythonFunction(CatalogFunction(_AGE, ("xid",), "int4"), self._age)
        last = CatalogFunction(f"{_LAST}_allowed", (), "bool")
        origin = CatalogFunction(f"{_ORIGIN}_allowed", ("xid",), "bool")
        found[last.name] = PythonFunction(last, self._commit_times, strict=False)
        found[origin.name] = PythonFunction(origin, self._commit_times)
        return found

    def table_functions(self) -> Mapping[str, TableFunction]:
        """Return the functions that return a row of several columns."""
        found = (
            TableFunction(
                _OFFSET,
                ("pg_lsn",),
                (("file_name", "text"), ("file_offset", "int4")),
                f"SELECT pg__{_NAME}({{0}}) AS o1, CAST({{0}} % {_SEGMENT} AS INTEGER) AS o2",
                functions=(_NAME,),
            ),
            TableFunction(
                _SPLIT,
                ("text",),
                (("segment_number", "numeric"), ("timeline_id", "int8")),
                "SELECT CAST(split_part(s.r, ' ', 1) AS DECIMAL(38,0)) AS o1, "
                "CAST(split_part(s.r, ' ', 2) AS BIGINT) AS o2 "
                f"FROM (SELECT pg__{_SPLIT}_row({{0}}) AS r) AS s",
                functions=(f"{_SPLIT}_row",),
            ),
            TableFunction(
                _LAST,
                (),
                (("xid", "xid"), ("timestamp", "timestamptz"), ("roident", "oid")),
                "SELECT CAST(NULL AS BIGINT) AS o1, CAST(NULL AS TIMESTAMP) AS o2, "
                f"CAST(NULL AS BIGINT) AS o3 WHERE pg__{_LAST}_allowed()",
                functions=(f"{_LAST}_allowed",),
            ),
            TableFunction(
                _ORIGIN,
                ("xid",),
                (("timestamp", "timestamptz"), ("roident", "oid")),
                "SELECT CAST(NULL AS TIMESTAMP) AS o1, CAST(NULL AS BIGINT) AS o2 "
                f"FROM (SELECT pg__{_ORIGIN}_allowed({{0}}) AS r) AS s WHERE s.r IS NULL",
                functions=(f"{_ORIGIN}_allowed",),
            ),
        )
        return {function.name: function for function in found}

    def _walfile(self, position: int) -> str:
        at = position
        if self._facts.version < _OWN_SEGMENT_SINCE:
            at = (position - 1) % _POSITIONS
        number = at // _SEGMENT
        return f"{_TIMELINE:08X}{number // _PER_ID:08X}{number % _PER_ID:08X}"

    def _walfile_offset(self, position: int) -> str:
        return f"({self._walfile(position)},{position % _SEGMENT})"

    def _split(self, name: str) -> str:
        return f"({_split(name).replace(' ', ',')})"

    def _status(self, xid: int) -> str | None:
        """Return the status of a transaction ID. A transaction in the log is committed, unless it
        is prepared; later IDs have not been given out."""
        with self._catalog.read() as t:
            coming, prepared = t.transactions.next_xid(), t.prepared_blocks.xids()
        if xid >= coming:
            raise InvalidParameterValue(f"transaction ID {xid} is in the future")
        if xid in prepared:
            return "in progress"
        return "committed" if xid > 0 else None

    def _age(self, xid: int) -> int:
        """Return how many transaction IDs before the next one it is."""
        if xid < _FIRST_NORMAL:
            return _INT_MAX
        with self._catalog.read() as t:
            coming = t.transactions.next_xid()
        age = (coming - xid) % _XIDS
        return age - _XIDS if age > _INT_MAX else age

    def _commit_times(self, *_: object) -> None:
        if self._facts.settings.get("track_commit_timestamp") == "on":
            raise FeatureNotSupported(
                "functions of commit timestamps are not supported",
                detail='The parameter "track_commit_timestamp" concerns conflicts of '
                "subscriptions: which of two changes of a row was the later one.",
            )
        raise NotInPrerequisiteState(
            "could not get commit timestamp data",
            hint='Make sure the configuration parameter "track_commit_timestamp" is set.',
        )


def _split(name: str) -> str:
    """Return the number of the segment, and the timeline, as one text. Raises
    InvalidParameterValue."""
    found = _FILE.fullmatch(name)
    if found is None:
        raise InvalidParameterValue(f'invalid WAL file name "{name}"')
    timeline, high, low = (int(part, 16) for part in found.groups())
    return f"{high * _PER_ID + low} {timeline}"


def _refuse(name: str) -> Callable[[], None]:
    def call() -> None:
        raise FeatureNotSupported(
            f"{name} is not supported",
            detail="A change has its transaction ID from when it is put into the node's log; "
            "a query has none.",
        )

    return call


# pg_logical_emit_message (logicalfuncs.c): a record in the node's log, for subscribers.
#
# In a transaction block, a transactional message belongs to the block. The function then returns
# the end of the log, since the message's own position is known only when the block is committed.
# Any other message is durable when the function returns, whatever ``flush`` is, and stays even if
# the query fails; outside of a block, a transactional message is a transaction of its own.

_EMIT: Final = "pg_logical_emit_message"
_FIRST: Final = ("bool", "text")

MESSAGE_FUNCTIONS: Final = frozenset({_EMIT})

Emit = Callable[[EmittedMessage, bytes], Lsn]
"""A function that puts a message into the log and returns the end of its record."""


class MessageFunctions:
    """Functions that emit messages, for one session."""

    def __init__(self, emit: Emit, end: Callable[[], Lsn], facts: SessionFacts) -> None:
        """``end`` returns the end of the log."""
        self._emit = emit
        self._end = end
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
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
