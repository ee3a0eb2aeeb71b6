"""Log sequence numbers: positions in the publisher's WAL (xlogdefs.h, pg_lsn.c).

In: PostgreSQL's text ``X/X`` or a 64-bit number. Out: ``Lsn``, an int that prints as PostgreSQL
prints it.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import InvalidParameterValue

_TEXT: Final = re.compile(r"^([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})$")


class Lsn(int):
    """A WAL position in bytes. ``str()`` gives ``%X/%X``; arithmetic gives plain ints."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read ``X/X``. Raises InvalidParameterValue (22P02) as pg_lsn_in does."""
        match = _TEXT.match(text)
        if match is None:
            raise InvalidParameterValue(
                f'invalid input syntax for type pg_lsn: "{text}"', sqlstate="22P02"
            )
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


INVALID: Final = Lsn(0)
"""InvalidXLogRecPtr: no position."""
