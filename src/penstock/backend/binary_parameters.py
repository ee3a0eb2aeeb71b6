"""Parameters in binary format to text (the receive functions of utils/adt).

In: the bytes of one value of Bind, and its type. Out: the same value in text format. Types that
tables have are read by ``pgtypes``, a few more here. Parameters in text format are read where
the statement is run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from penstock.backend.binary_results import CHARACTER_TYPES, no_function
from penstock.cells import Cells as Column
from penstock.civil import print_interval, print_time
from penstock.errors import FeatureNotSupported, ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgtypes import find, pg_type
from penstock.pgtypes.text_output import text_output
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.array_literals import join_array
from penstock.sqlstate import DatatypeMismatch

_HEADER: Final = struct.Struct("!iiI")
_DIMENSION: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")
_TIME: Final = struct.Struct("!q")
_INTERVAL: Final = struct.Struct("!qii")
_OIDS: Final = (*pg_type.REG_TYPES, pg_type.OID, pg_type.XID, pg_type.CID)
"""Unsigned numbers of four bytes: oids, those that are printed as names among them, xid, cid."""

_SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys((pg_type.INT4, pg_type.FLOAT4, pg_type.DATE, *_OIDS), 4),
    **dict.fromkeys(
        (
            pg_type.INT8,
            pg_type.FLOAT8,
            pg_type.TIME,
            pg_type.TIMESTAMP,
            pg_type.TIMESTAMPTZ,
            pg_type.PG_LSN,
        ),
        8,
    ),
    pg_type.BOOL: 1,
    pg_type.INT2: 2,
    pg_type.INTERVAL: 16,
    pg_type.UUID: 16,
}
"""Bytes of types of one size."""

_Receive = Callable[[bytes], bytes]


def parameter_text(value: bytes, type_oid: int, number: int) -> bytes:
    """``number``: of the parameter. Raises ProtocolViolation (22P03), PenstockError (42883)."""
    if len(value) < _SIZES.get(type_oid, 0):
        raise ProtocolViolation("insufficient data left in message")
    try:
        return _text(value, type_oid)
    except (struct.error, ProtocolViolation):
        raise ProtocolViolation(
            f"incorrect binary data format in bind parameter {number}", sqlstate="22P03"
        ) from None


def _text(value: bytes, type_oid: int) -> bytes:
    receive = _RECEIVE.get(type_oid)
    if receive is not None:
        return receive(value)
    family = find(type_oid)
    if type_oid in family.oids and family.binary:
        cells = Column(
            np.frombuffer(value, np.uint8), np.zeros(1, np.intp), np.full(1, len(value), np.intp)
        )
        text = text_output(family.binary_column(cells, -1), type_oid)[0].as_py()
        assert isinstance(text, bytes)
        return text
    if is_enum(type_oid):
        return value
    known = types().get(type_oid)
    if known is not None and known.element and not known.is_vector:
        return _array(value, known.element)
    raise no_function("input", type_oid)


def _array(value: bytes, element: int) -> bytes:
    """array_recv of at most one dimension."""
    dimensions, _, sent = _HEADER.unpack_from(value)
    if sent != element:
        raise DatatypeMismatch(
            f"binary data has array element type {sent} instead of expected {element}",
        )
    if dimensions == 0:
        return b"{}"
    if dimensions != 1:
        raise FeatureNotSupported("arrays of several dimensions are not supported")
    count, _ = _DIMENSION.unpack_from(value, _HEADER.size)
    items: list[str | None] = []
    at = _HEADER.size + _DIMENSION.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size
        if length < 0:
            items.append(None)
            continue
        items.append(_text(value[at : at + length], element).decode())
        at += length
    return join_array(items).encode()


def _time(value: bytes) -> bytes:
    return print_time(*_TIME.unpack(value)).encode()


def _interval(value: bytes) -> bytes:
    microseconds, days, months = _INTERVAL.unpack(value)
    return print_interval(months, days, microseconds).encode()


_RECEIVE: Final[Mapping[int, _Receive]] = {
    pg_type.PG_LSN: lambda value: str(Lsn(struct.unpack("!Q", value)[0])).encode(),
    pg_type.TIME: _time,
    pg_type.INTERVAL: _interval,
    **dict.fromkeys(_OIDS, lambda value: str(struct.unpack("!I", value)[0]).encode()),
    **dict.fromkeys(CHARACTER_TYPES, lambda value: value),
}
