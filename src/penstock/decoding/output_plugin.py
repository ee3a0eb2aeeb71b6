"""The interface of output plugins: PostgreSQL's callbacks under its names (output_plugin.h).

A plugin is a class derived from ``OutputPlugin``. The callbacks that the class defines are
registered. A plugin object lives for one call of a slot function or one stream. Callbacks may raise
``PenstockError`` with a SQLSTATE, or any other exception. The exception ends only the call, with an
error that names the callback.

``begin``, ``change`` and ``commit`` are required. Beside ``change`` and ``stream_change`` a plugin
may have ``change_batch`` and ``stream_change_batch``, which get the changes of many rows at once
and must write the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import Change, ReorderBufferTXN, RowBatch, TruncateChange
from penstock.errors import PenstockError
from penstock.lsn import Lsn

if TYPE_CHECKING:
    from penstock.decoding.logical import LogicalDecodingContext as Context


class OutputType(Enum):
    """OutputPluginOutputType; the functions for text refuse binary output."""

    TEXTUAL = "text"
    BINARY = "binary"


@dataclass
class OutputPluginOptions:
    """The options that ``startup`` may set. ``receive_rewrites`` asks for changes of tables that
    are being rewritten, too; the lake has none."""

    output_type: OutputType = OutputType.TEXTUAL
    receive_rewrites: bool = False


class OutputPlugin:
    """The base class of plugins; its callbacks do nothing. ``registered`` returns the callbacks
    that a class defines."""

    COLUMNAR: ClassVar = frozenset({"change_batch", "stream_change_batch"})
    """Callbacks that PostgreSQL lacks."""

    def startup(self, ctx: Context, options: OutputPluginOptions, is_init: bool) -> None:
        """Read ``ctx.options``. ``is_init``: the slot is being created, and there are no
        options."""

    def shutdown(self, ctx: Context) -> None:
        """End the call, even after an error. Nothing may be written."""

    def begin(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        """Begin a transaction that has committed. Required."""

    def change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        """Write the change of one row. Required."""

    def change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        """Write changes of many rows, instead of ``change`` for each (not PostgreSQL's)."""

    def truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        """Write TRUNCATE of some tables."""

    def message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message of pg_logical_emit_message; ``txn`` is None outside of transactions."""

    def commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        """End a transaction that has committed. Required."""

    def filter_by_origin(self, ctx: Context, origin: str | None) -> bool:
        """Tell whether to leave out changes of an origin; None stands for local changes."""
        return False

    def filter_prepare(self, ctx: Context, xid: int, gid: str) -> bool:
        """Tell whether to skip a PREPARE and send a usual transaction at COMMIT PREPARED."""
        return False

    def begin_prepare(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        """Begin a transaction that has been prepared."""

    def prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        """Write PREPARE TRANSACTION."""

    def commit_prepared(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        """Write COMMIT PREPARED."""

    def rollback_prepared(
        self, ctx: Context, txn: ReorderBufferTXN, prepare_end_lsn: Lsn, prepare_time: int
    ) -> None:
        """Write ROLLBACK PREPARED."""

    def stream_start(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        """Begin a block of a transaction that has not ended."""

    def stream_stop(self, ctx: Context, txn: ReorderBufferTXN) -> None:
        """End a block."""

    def stream_abort(self, ctx: Context, txn: ReorderBufferTXN, abort_lsn: Lsn) -> None:
        """Roll back a transaction whose blocks were sent; for a subtransaction ``txn.toptxn`` is
        set."""

    def stream_prepare(self, ctx: Context, txn: ReorderBufferTXN, prepare_lsn: Lsn) -> None:
        """Prepare a transaction whose blocks were sent."""

    def stream_commit(self, ctx: Context, txn: ReorderBufferTXN, commit_lsn: Lsn) -> None:
        """Commit a transaction whose blocks were sent."""

    def stream_change(
        self, ctx: Context, txn: ReorderBufferTXN, relation: RelationData, change: Change
    ) -> None:
        """Write the change of one row in a block."""

    def stream_change_batch(self, ctx: Context, txn: ReorderBufferTXN, batch: RowBatch) -> None:
        """Write changes of many rows in a block, not one by one (not PostgreSQL's)."""

    def stream_message(
        self,
        ctx: Context,
        txn: ReorderBufferTXN | None,
        lsn: Lsn,
        transactional: bool,
        prefix: str,
        content: bytes,
    ) -> None:
        """Write a message in a block."""

    def stream_truncate(
        self,
        ctx: Context,
        txn: ReorderBufferTXN,
        relations: tuple[RelationData, ...],
        change: TruncateChange,
    ) -> None:
        """Write TRUNCATE in a block."""


_PLAIN: Final = "A callback is a plain function: it does its work when it is called, and returns."
_LATER: Final = (Generator, Coroutine, AsyncGenerator)


def check_callbacks(plugin: OutputPlugin) -> None:
    """Raise PenstockError if a registered callback cannot be called with its arguments. Generators
    and async functions are refused, too: calling them does not do their work."""
    for name in CALLBACKS:
        if registered(plugin, name):
            _check_callback(name, getattr(plugin, name))


def _check_callback(name: str, callback: Any) -> None:
    if not callable(callback):
        raise PenstockError(f"the {name} callback of the output plugin is not callable")
    for function in (callback, callback.__call__):
        if inspect.isgeneratorfunction(function):
            raise _not_plain(f"the {name} callback of the output plugin is a generator function")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise _not_plain(f"the {name} callback of the output plugin is an async function")
    wanted = list(inspect.signature(getattr(OutputPlugin, name)).parameters)[1:]
    try:
        inspect.signature(callback).bind(*wanted)
    except ValueError:  # a function that is not written in Python
        return
    except TypeError as error:
        raise PenstockError(
            f"the {name} callback of the output plugin does not take its arguments: {error}",
            hint=f"It is called with: {', '.join(wanted)}.",
        ) from None


def check_result(name: str, result: object) -> None:
    """Raise PenstockError if the result of a callback shows that it has not done its work."""
    if isinstance(result, _LATER):
        raise _not_plain(
            f"the {name} callback of the output plugin has returned a {type(result).__name__}"
        )


def _not_plain(message: str) -> PenstockError:
    return PenstockError(message, hint=_PLAIN)


CALLBACKS = tuple(name for name in vars(OutputPlugin) if name[0] != "_" and name.islower())
"""The names of all callbacks: PostgreSQL's 21 and the two columnar ones."""


def registered(plugin: OutputPlugin, callback: str) -> bool:
    """Tell whether the plugin's class defines a callback."""
    return getattr(type(plugin), callback) is not getattr(OutputPlugin, callback)
