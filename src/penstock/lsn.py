"""Log sequence numbers: positions in a publisher's WAL or the node's log (xlogdefs.h, pg_lsn.c).

``Lsn`` is made from PostgreSQL's text ``X/X`` or a 64-bit number. It is an int that prints as
PostgreSQL prints it.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sqlstate import InvalidTextRepresentation

_TEXT: Final = re.compile(r"^([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})$")


class Lsn(int):
    """A WAL position in bytes. ``str()`` gives ``%X/%X``; arithmetic gives plain ints."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read ``X/X``. Raises InvalidParameterValue (22P02) as pg_lsn_in does."""
        match = _TEXT.match(text)
        if match is None:
            raise InvalidTextRepresentation(f'invalid input syntax for type pg_lsn: "{text}"')
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def signed(self) -> int:
        """Return the signed 64-bit number that Delta's logs and state stores hold.

        Raises FeatureNotSupported from 80000000/0 on: any other mapping would compare wrong.
        """
        if self >> 63:
            raise FeatureNotSupported(
                f"WAL position {self} is beyond what can be kept",
                detail="Positions from 80000000/0 on are no signed 64-bit numbers, which is what "
                "the logs of Delta tables hold.",
                hint="The WAL of a cluster that is made again begins at 0/1000000: move the "
                "databases there with pg_dump, and subscribe to it.",
            )
        return int(self)

    def storable(self) -> Lsn:
        """Return the LSN itself. Raises as ``signed``."""
        return Lsn(self.signed())

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"


INVALID: Final = Lsn(0)
"""InvalidXLogRecPtr: no position."""
