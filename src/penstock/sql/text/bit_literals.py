"""Bit strings in literals (varbit.c): ``101``, ``b101``, ``x1F``.

In: a literal's text, the modifier of its type. Out: what bit_out prints.
"""

from __future__ import annotations

from penstock.sqlstate import (
    InvalidTextRepresentation,
    StringDataLengthMismatch,
    StringDataRightTruncation,
)

_HEX = "0123456789abcdefABCDEF"


def read_bit(text: str, typmod: int, *, varying: bool) -> str:
    """bit_in and varbit_in, which look at the length first. ``typmod``: the length, -1 for any.
    Raises 22P02, 22026, 22001."""
    hexadecimal = text[:1] in ("x", "X")
    digits = text[1:] if text[:1] in ("x", "X", "b", "B") else text
    bits = len(digits.encode()) * (4 if hexadecimal else 1)
    if typmod > 0 and varying and bits > typmod:
        raise StringDataRightTruncation(f"bit string too long for type bit varying({typmod})")
    if typmod > 0 and not varying and bits != typmod:
        raise StringDataLengthMismatch(
            f"bit string length {bits} does not match type bit({typmod})"
        )
    allowed, name = (_HEX, "hexadecimal") if hexadecimal else ("01", "binary")
    wrong = next((digit for digit in digits if digit not in allowed), None)
    if wrong is not None:
        raise InvalidTextRepresentation(f'"{wrong}" is not a valid {name} digit')
    return "".join(f"{int(digit, 16):04b}" for digit in digits) if hexadecimal else digits
