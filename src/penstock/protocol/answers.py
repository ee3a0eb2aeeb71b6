"""Answers of statements, in the forms that a session can send.

The runner of a statement makes them, and ``backend`` sends them. Rows and copies are iterables that
are read only as fast as the client reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import report
from penstock.protocol.backend_messages import FieldDescription, TransactionStatus
from penstock.protocol.frontend_messages import FrontendMessage

Cells = Sequence[bytes | None]
"""One row in text format, None for NULL."""
_PORTION_BYTES: Final = 1 << 18
"""The bytes of columns that are encoded at once."""
_PORTION_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class ColumnRows:
    """Rows that are made as columns, so that many are encoded at once.

    ``batches``: the columns of some rows, as Arrow binary arrays, null for NULL; at least one
    column. They can be read once. Iterating yields the rows one by one, in text format. ``raw``:
    values may have zero bytes; in text format they end there, as with a server's output functions.
    """

    batches: Iterable[Sequence[pa.Array]]
    raw: bool = False

    def texts(self) -> Iterator[Sequence[pa.Array]]:
        """Yield the columns in text format."""
        for columns in self.batches:
            yield [as_cstrings(column) for column in columns] if self.raw else columns

    def __iter__(self) -> Iterator[Cells]:
        for columns in self.texts():
            yield from zip(*(column.to_pylist() for column in columns), strict=True)

    def portions(self) -> Iterator[Sequence[pa.Array]]:
        """Yield the columns of a few rows at a time, in text format."""
        for columns in self.texts():
            count, size = len(columns[0]), sum(column.nbytes for column in columns)
            rows = max(1, min(_PORTION_ROWS, _PORTION_BYTES * count // max(size, 1)))
            for offset in range(0, count, rows):
                yield [column.slice(offset, rows) for column in columns]


def as_cstrings(data: pa.Array) -> pa.Array:
    """Cut bytes at their first NUL."""
    if not pc.any(pc.match_substring(data, "\0")).as_py():
        return data
    cells = (raw and raw.partition(b"\0")[0] for raw in data.to_pylist())
    return pa.array(cells, pa.binary())


@dataclass(frozen=True, slots=True)
class Rows:
    """A result set. ``tag``: for CommandComplete; if ``counted``, the number of rows follows it.

    ``notices``: see ``Notices``; None if the query raises none.
    """

    fields: tuple[FieldDescription, ...]
    rows: Iterable[Cells]
    tag: str = "SELECT"
    counted: bool = True
    notices: Notices | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """A command without rows: ``SET``, ``CREATE PUBLICATION``, ``INSERT 0 5``."""

    tag: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A message that is no error, sent before an answer. ``severity``: NOTICE, WARNING ..."""

    severity: str
    message: str
    detail: str | None = None
    hint: str | None = None
    sqlstate: str = "00000"
    context: str | None = None

    def report(self) -> str:
        """Return the notice as psql prints it."""
        return report(self.severity, self.message, self.detail, self.hint)


Notices = Callable[[Callable[[Notice], None]], AbstractContextManager[None]]
"""A function that hands the notices of a query to its argument: at once those that were raised
before, and in the ``with`` block each when it is raised, perhaps in another thread."""


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command. ``notices`` are sent first."""

    tag: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A new value of a setting that is reported to clients."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Empty:
    """An empty query string."""


@dataclass(frozen=True, slots=True)
class CopyOut:
    """COPY TO STDOUT. ``chunks``: pairs of a number of rows and CopyData messages ready to be sent.

    A chunk with rows begins a message; a chunk without rows may continue one. ``notices``: as of
    ``Rows``.
    """

    columns: int
    binary: bool
    chunks: Iterable[tuple[int, bytes]]
    notices: Notices | None = None


class Duplex(Protocol):
    """Both sides of a COPY BOTH, for a walsender."""

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Send data. ``waiting`` is called while the client takes nothing, to read its messages."""

    def notice(self, notice: Notice) -> bytes:
        """Return the message of a notice, to be sent."""

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        """Return the client's next message, None after the timeout."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """START_REPLICATION: ``run`` returns when the client has sent CopyDone."""

    run: Callable[[Duplex], None]


Answer = Rows | Done | Notice | ParameterChange | Empty | CopyOut | Streaming


@dataclass(frozen=True, slots=True)
class Description:
    """Types of a statement's parameters, and its columns; None: it returns no rows."""

    parameters: tuple[int, ...]
    fields: tuple[FieldDescription, ...] | None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Prepared:
    """A prepared statement. ``statement``: as its runner has parsed it, None for an empty text."""

    text: str = field(repr=False)
    description: Description
    statement: Any = field(default=None, repr=False)


class StatementRunner(Protocol):
    """Runs the statements of one session; made by ``node`` for every session."""

    @property
    def prepared(self) -> dict[str, Prepared]:
        """The prepared statements by name; "" is the unnamed one."""

    @property
    def changes_nothing(self) -> bool:
        """Tell whether the running statement may end if its client has left."""

    @property
    def may_last(self) -> bool:
        """Tell whether what the running statement does may last, or lasts, although it has not
        been answered. Any thread may ask."""

    def turn(self) -> AbstractContextManager[None]:
        """Have the session's turn in the ``with`` block; wait for it before."""

    def leave_turn(self) -> None:
        """Let others have it while the session waits for its client."""

    @property
    def waits_for_turn(self) -> bool:
        """Tell whether the session waits for its turn. Any thread may ask."""

    def begin_statement(self) -> None:
        """Begin to count the time of a statement, at its first message."""

    def end_statement(self) -> None:
        """End it: the rows of the statement have been sent, or it has failed."""

    def simple(self, text: str) -> Generator[Answer, None, None]:
        """Run a query string, which may hold several statements."""

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        """Analyze a statement: return its parameters and columns, without running it.

        ``types``: oids of ``$1``, ``$2`` ... as far as the client has given them; 0 for those left
        out.
        """

    def execute(self, prepared: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        """Run one statement with parameters in text format: notices, then one answer."""

    @property
    def transaction_status(self) -> TransactionStatus:
        """Return the status that ReadyForQuery reports."""

    def failed(self) -> Iterable[ParameterChange]:
        """Clean up after a failed statement, which may have failed while its rows were read.

        Return the settings that have changed by the failure.
        """

    def cancel(self) -> None:
        """End the running statement soon. Any thread may call it."""

    def terminate(self) -> None:
        """Act as ``cancel``, for every statement from now on."""

    def close(self) -> None:
        """End the session: drop temporary slots and the like."""
