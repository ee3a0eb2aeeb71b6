"""Rows per second of the columnar decoder, and its ratio to the readable one.

Run: ``python bench/decode.py [rows]``. The rows are updates of pgbench_accounts and inserts of
twelve columns of mixed types, in text and in binary. Both decoders run over the same bytes; the
readable one over the first rows only, since it takes that much longer. Seconds are CPU seconds of
one thread, so that other work on the machine does not count; joining the frames is included.
"""

from __future__ import annotations

import datetime
import struct
import sys
import time
import uuid
from collections.abc import Callable

from penstock.attribute import Attribute
from penstock.pgoutput.columnar import ColumnarDecoder, MessageChunk
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import Binary, Insert, RelationMessage, Text, TupleData, Update
from penstock.pgtypes import find
from penstock.relation import Relation, ReplicaIdentity

ROUNDS = 3
SHARE = 20
"""The readable decoder gets one row of so many."""

ACCOUNTS = Relation(
    16390,
    "public",
    "pgbench_accounts",
    ReplicaIdentity.DEFAULT,
    (
        Attribute("aid", 23, key=True),
        Attribute("bid", 23),
        Attribute("abalance", 23),
        Attribute("filler", 1042, 88),
    ),
)

MIXED = Relation(
    16400,
    "public",
    "mixed",
    ReplicaIdentity.DEFAULT,
    (
        Attribute("id", 23, key=True),
        Attribute("big", 20),
        Attribute("num", 1700, (18 << 16 | 4) + 4),
        Attribute("txt", 25),
        Attribute("ts", 1184),
        Attribute("flag", 16),
        Attribute("uid", 2950),
        Attribute("d", 1082),
        Attribute("js", 3802),
        Attribute("f8", 701),
        Attribute("tags", 1009),
        Attribute("ba", 17),
    ),
)


def accounts(row: int, binary: bool) -> TupleData:
    filler = b" " * 84
    if binary:
        numbers = (row, row // 100_000, row * 7 % 9973)
        return (*(Binary(struct.pack("!i", n)) for n in numbers), Binary(filler))
    return (
        Text(b"%d" % row),
        Text(b"%d" % (row // 100_000)),
        Text(b"%d" % (row * 7 % 9973)),
        Text(filler),
    )


def mixed(row: int, binary: bool) -> TupleData:
    text = b"text of row %d" % row
    identity = uuid.UUID(int=row * 0x1F3A5C7E9B2D4F6081A3C5E7092B4D6F % 2**128)
    blob = struct.pack("!4I", row, row + 1, row + 2, row + 3)
    if binary:
        head = struct.pack("!iiIiii", 1, 0, 25, 2, 1, 3) + b"red" + struct.pack("!i", 4) + b"blue"
        return (
            Binary(struct.pack("!i", row)),
            Binary(struct.pack("!q", row << 20)),
            Binary(struct.pack("!HhHHHHH", 3, 1, 0, 4, 12, row % 10_000, 3456)),
            Binary(text),
            Binary(struct.pack("!q", 800_000_000_000_000 + row * 1_000_001)),
            Binary(b"\1"),
            Binary(identity.bytes),
            Binary(struct.pack("!i", 9000 + row % 1000)),
            Binary(b'\1{"a": %d}' % row),
            Binary(struct.pack("!d", row / 3)),
            Binary(head),
            Binary(blob),
        )
    stamp = datetime.datetime(2025, 5, 8) + datetime.timedelta(microseconds=row * 1_000_001)
    return (
        Text(b"%d" % row),
        Text(b"%d" % (row << 20)),
        Text(b"12%04d.3456" % (row % 10_000)),
        Text(text),
        Text(f"{stamp:%Y-%m-%d %H:%M:%S.%f}+00".encode()),
        Text(b"t"),
        Text(str(identity).encode()),
        Text(f"{datetime.date(2024, 8, 22) + datetime.timedelta(row % 1000)}".encode()),
        Text(b'{"a": %d}' % row),
        Text(repr(row / 3).encode()),
        Text(b'{red,"blue one"}'),
        Text(b"\\x" + blob.hex().encode()),
    )


def messages(rows: int, make: Callable[[int, bool], TupleData], binary: bool) -> list[bytes]:
    if make is accounts:
        body = [encode(Update(ACCOUNTS.oid, accounts(i, binary))) for i in range(1, rows + 1)]
        return [encode(RelationMessage(ACCOUNTS)), *body]
    body = [encode(Insert(MIXED.oid, mixed(i, binary))) for i in range(1, rows + 1)]
    return [encode(RelationMessage(MIXED)), *body]


def columnar_seconds(frames: list[bytes]) -> float:
    begin = time.process_time()
    ColumnarDecoder(find).decode(MessageChunk.from_copy_data(frames))
    return time.process_time() - begin


def readable_seconds(payloads: list[bytes]) -> float:
    begin = time.process_time()
    decoder = Decoder()
    attributes: tuple[Attribute, ...] = ()
    for payload in payloads:
        message = decoder.decode(payload)
        if isinstance(message, RelationMessage):
            attributes = message.relation.attributes
        elif isinstance(message, Insert | Update):
            for attribute, cell in zip(attributes, message.new, strict=True):
                family = find(attribute.type_oid)
                if isinstance(cell, Text):
                    family.text_value(cell.raw, attribute.typmod)
                elif isinstance(cell, Binary):
                    family.binary_value(cell.raw, attribute.typmod)
    return time.process_time() - begin


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    print(f"{'rows':<32}{'columnar rows/s':>16}{'readable rows/s':>16}{'ratio':>8}")
    for make in (accounts, mixed):
        for binary in (False, True):
            payloads = messages(rows, make, binary)
            frames = [b"w" + bytes(24) + payload for payload in payloads]
            fast = rows / min(columnar_seconds(frames) for _ in range(ROUNDS))
            some = payloads[: rows // SHARE]
            slow = (len(some) - 1) / min(readable_seconds(some) for _ in range(ROUNDS))
            name = f"{make.__name__}, {'binary' if binary else 'text'}"
            print(f"{name:<32}{fast:>16,.0f}{slow:>16,.0f}{fast / slow:>7.0f}x")


if __name__ == "__main__":
    main()
