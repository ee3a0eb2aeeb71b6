"""pgoutput's stream as rows of the slot functions: the same messages, without a client.

In: transactions of the log, decoded for a subscriber. Out: each message with its LSN and xid. Which
messages there are, and in which order, is the stream's alone (``stream``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa

from penstock.catalog import LakeTransaction
from penstock.decoding import Output
from penstock.lsn import Lsn
from penstock.pgoutput.columnar_encoder import HEADER
from penstock.protocol.frontend_messages import FrontendMessage
from penstock.walsender.feed import Begun, ChangeSource, Ended
from penstock.walsender.stream import SenderState, Stream

_OUTPUT_BYTES: Final = 1 << 20


class _Messages(Stream):
    """A stream whose messages are kept until they are taken."""

    def __init__(self, two_phase_at: Lsn | None) -> None:
        self._kept = bytearray()
        super().__init__(
            _Kept(self._kept),
            None,  # type: ignore[arg-type]  # nothing is waited for
            SenderState("", Lsn(0)),
            confirm=lambda flush: flush,
            timeout_s=lambda: 0.0,
            two_phase_at=two_phase_at,
        )

    def take(self, xid: int) -> Output:
        """What has been sent since the last call."""
        lsns: list[int] = []
        data: list[bytes] = []
        at, kept = 0, bytes(self._kept)
        self._kept.clear()
        while at < len(kept):
            _, length, _, lsn, _, _ = HEADER.unpack_from(kept, at)
            end = at + 1 + length
            lsns.append(lsn)
            data.append(kept[at + HEADER.size : end])
            at = end
        return Output(
            pa.array(lsns, pa.uint64()),
            pa.array([xid] * len(lsns), pa.uint32()),
            pa.array(data, pa.binary()),
        )

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return len(self._kept)


class _Kept:
    """``Duplex`` of nobody."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        self._kept += data

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        return None


class PgoutputReading:
    """Of one call. ``source``: as a stream of a subscriber has it."""

    def __init__(self, source: ChangeSource, two_phase_at: Lsn | None) -> None:
        """``two_phase_at``: as the source has it."""
        self._source = source
        self._messages = _Messages(two_phase_at)

    def process(
        self, transactions: Sequence[LakeTransaction]
    ) -> Generator[Output | Lsn, None, None]:
        """Messages, and the end of each transaction that is out. Raises PenstockError."""
        xid = 0
        with closing(self._source.changes(transactions)) as found:
            for item in found:
                if isinstance(item, Begun):
                    xid = item.transaction.xid
                self._messages.handle(item)
                ended = isinstance(item, Ended)
                if self._messages.size >= _OUTPUT_BYTES or (ended and self._messages.size):
                    yield self._messages.take(xid)
                if isinstance(item, Ended):
                    yield item.transaction.end
