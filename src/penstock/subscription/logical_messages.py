"""Logical messages: rows for the messages that the publisher emits (pg_logical_emit_message).

A message outside a transaction becomes a transaction of its own in the XLogData frames, so that it
is batched and acknowledged like any other. Messages in decoded chunks become rows of the messages
table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import EPOCH_MICROSECONDS
from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP, POSITION, XID
from penstock.lakehouse.schema import TIMESTAMP
from penstock.lakehouse.side_table import MESSAGES
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Begin, Commit
from penstock.pipeline.history import Stamps

KIND: Final = ord("M")
_FLAGS_AND_LSN: Final = struct.Struct("!BQ")
_SEND_TIME: Final = struct.Struct("!q")
_SEND_TIME_AT: Final = XLOGDATA_HEADER - _SEND_TIME.size


def as_transactions(frames: Sequence[bytes], kinds: bytes) -> list[bytes]:
    """Return the frames with a Begin and a Commit around each non-transactional message.

    The frames must not come from streamed blocks. The new transaction ends at the message's LSN,
    which is the end of its WAL record: a stream that begins there does not send the message again,
    and sends all later records. The commit time is the send time of the message, which is unknown
    in a backlog.
    """
    found: list[bytes] = []
    for frame, kind in zip(frames, kinds, strict=True):
        whole = len(frame) >= XLOGDATA_HEADER + 1 + _FLAGS_AND_LSN.size
        if kind != KIND or not whole:
            found.append(frame)
            continue
        transactional, at = _FLAGS_AND_LSN.unpack_from(frame, XLOGDATA_HEADER + 1)
        if transactional:
            found.append(frame)
            continue
        (sent,) = _SEND_TIME.unpack_from(frame, _SEND_TIME_AT)
        header, lsn, time = frame[:XLOGDATA_HEADER], Lsn(at), sent + EPOCH_MICROSECONDS
        begin, commit = Begin(lsn, time, 0), Commit(lsn, lsn, time)
        found += [header + encode(begin), frame, header + encode(commit)]
    return found


def message_rows(subscription: str, stamps: Stamps) -> pa.Table | None:
    """Return the rows of a chunk's messages, or None if it has none."""
    messages = stamps.chunk.messages
    if not messages:
        return None
    of = stamps.columns(np.array([sequence for sequence, _ in messages]))
    unknown = pc.equal(of[COMMIT_TIMESTAMP], EPOCH_MICROSECONDS)
    return pa.table(
        {
            "subscription": pa.repeat(subscription, len(messages)),
            "lsn": pa.array([int(message.lsn) for _, message in messages]),
            "commit_lsn": of[COMMIT_LSN],
            "commit_time": pc.if_else(unknown, None, of[COMMIT_TIMESTAMP]).cast(TIMESTAMP),
            "xid": of[XID],
            "position": of[POSITION],
            "transactional": pa.array([message.transactional for _, message in messages]),
            "prefix": pa.array([message.prefix for _, message in messages]),
            "content": pa.array([message.content for _, message in messages]),
        },
        schema=MESSAGES,
    )
