"""A slot read by a Python program, as Arrow record batches: ``Node.changes``.

In: a slot of the plugin ``arrow``. Out: its record batches in order, from where the slot is. The
slot is held meanwhile, and moves only to where the program has confirmed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from penstock.errors import NotInPrerequisiteState
from penstock.lsn import Lsn
from penstock.sqlstate import QueryCanceled
from penstock.walsender.logical_reading import LogicalReading, SlotRequest

PLUGIN: Final = "arrow"
_END: Final = b"end_lsn"
"""Of a commit's metadata."""
_PID: Final = 0
_WAIT_S: Final = 1.0
"""Seconds after which a program that follows looks again whether it is to end."""


class SlotChanges:
    """An iterator and a context manager. ``stop`` ends the iteration, from any thread."""

    def __init__(
        self, reading: LogicalReading, slot: str, options: Mapping[str, str], *, follow: bool
    ) -> None:
        """Raises UndefinedObject, ObjectInUse, NotInPrerequisiteState (another plugin's slot)."""
        self._reading = reading
        self._follow = follow
        self._stopping = threading.Event()
        with reading.catalog.read() as t:
            found = t.slots.get(slot)
        if found.plugin != PLUGIN:
            raise NotInPrerequisiteState(
                f'replication slot "{slot}" was not created for the output plugin "{PLUGIN}"',
                detail=f'It is of the plugin "{found.plugin}".',
                hint=f"Make one: pg_create_logical_replication_slot(name, '{PLUGIN}').",
            )
        self._slot = slot
        self._given = found.confirmed_flush_lsn
        request = SlotRequest("Node.changes", True, False, slot, None, None, tuple(options.items()))
        self._stream = reading.open(request, _PID, self._check)
        self._batches = self._drawn()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches as the plugin writes them; with ``follow`` without an end. Every iterator goes on
        where the last one stopped."""
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def _drawn(self) -> Iterator[pa.RecordBatch]:
        while not self._stopping.is_set():
            for some in self._stream.batches():
                for data in some.column(2):
                    batch = _batch(data.as_buffer())
                    end = (batch.schema.metadata or {}).get(_END)
                    if end is not None:
                        self._given = Lsn.parse(end.decode())
                    yield batch
            if not self._follow:
                return
            self._reading.sequencer.wait(self._stream.position, _WAIT_S, self._stopping)
            self._stream.go_on()

    def confirm(self, lsn: Lsn | int | str) -> Lsn:
        """Everything up to ``lsn`` is safe: the slot begins there the next time, also after a
        crash. Where it is now; never behind what has been given. ``end_lsn`` of a commit's
        metadata is such a place."""
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else Lsn(lsn)
        return self._reading.slots.confirm(self._slot, min(wanted, self._given))

    def stop(self) -> None:
        """Have the iteration end soon; from any thread."""
        self._stopping.set()
        self._reading.sequencer.wake()

    def close(self) -> None:
        """Give the slot back."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise QueryCanceled.by_user()


def _batch(data: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            return batch.replace_schema_metadata(reader.schema.metadata)
        return pa.RecordBatch.from_pylist([], schema=reader.schema)
