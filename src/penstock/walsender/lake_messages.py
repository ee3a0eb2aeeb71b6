"""Messages of sessions on the way out (pgoutput.c, pgoutput_message).

In: an entry of the log that has some. Out: pieces, each with the oid of the table after whose rows
it comes, in the order of these oids.
"""

from __future__ import annotations

from collections import deque

from penstock.catalog import Catalog, LakeTransaction
from penstock.pgoutput.columnar_encoder import XLogDataHeader
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import LogicalMessage
from penstock.protocol.copy_both import xlog_data
from penstock.walsender.feed import Piece


def message_pieces(
    catalog: Catalog,
    transaction: LakeTransaction,
    header: XLogDataHeader,
    xid: int | None,
    *,
    as_rows: bool,
) -> deque[tuple[int, Piece]]:
    """Whatever is published. Each is at the end of its own record. ``as_rows``: for an output
    plugin."""
    found = _messages(catalog, transaction, xid)
    return deque((after, _piece(message, header, as_rows=as_rows)) for after, message in found)


def _messages(
    catalog: Catalog, transaction: LakeTransaction, xid: int | None
) -> list[tuple[int, LogicalMessage]]:
    one = transaction.message
    with catalog.read() as t:
        if one is not None:
            content, at = t.transactions.content(transaction), transaction.message_end
            return [(0, LogicalMessage(one.transactional, at, one.prefix, content, xid))]
        contents = t.transactions.contents(transaction)
    parts = zip(transaction.messages, transaction.message_ends, contents, strict=True)
    return [
        (head.after, LogicalMessage(True, at, head.prefix, content, xid))
        for head, at, content in parts
    ]


def _piece(message: LogicalMessage, header: XLogDataHeader, *, as_rows: bool) -> Piece:
    data = b"" if as_rows else xlog_data(message.lsn, header.send_time, encode(message))
    return Piece((), data, 1, message=message)
