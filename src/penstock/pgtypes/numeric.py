"""numeric(p, s) up to 38 digits to decimal128; every other numeric stays text (numeric.c).

A decimal has neither NaN nor infinity: they raise ValueNotRepresentable. Unconstrained numeric and
more than 38 digits become strings, where nothing is lost. What lies in the binary format is left to
``numeric_binary``.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cells import Cells
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import primitive
from penstock.pgtypes.numeric_binary import digits_of, printed, printed_one, unscaled
from penstock.pgtypes.type_names import numeric_modifiers
from penstock.pgtypes.varlena import utf8_column, utf8_value

_MAX_PRECISION = 38
_MAX_INT64_DIGITS = 18
_TEXT = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SPECIAL = ("NaN", "Infinity", "-Infinity")
_CONTEXT = Context(prec=2 * _MAX_PRECISION)


class NumericFamily(Family):
    """PostgreSQL's numeric."""

    name = "numeric"
    oids = (pg_type.NUMERIC,)

    def arrow(self, typmod: int) -> pa.DataType:
        shape = precision_and_scale(typmod)
        return pa.string() if shape is None else pa.decimal128(*shape)

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        text = utf8_column(cells)
        if precision_and_scale(typmod) is None:
            return text
        try:
            return pc.cast(text, self.arrow(typmod))
        except pa.ArrowInvalid:
            self.refuse_text(cells, typmod)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        digits = digits_of(cells)
        if digits is None:
            raise self.malformed_binary()
        shape = precision_and_scale(typmod)
        if shape is None:
            return printed(digits, cells.null)
        if shape[0] <= _MAX_INT64_DIGITS:
            numbers = unscaled(digits, *shape)
            if numbers is None:
                self._refuse_binary(cells, typmod)
            words = np.stack((numbers, numbers >> 63), axis=1)
            return primitive(words, cells.null, pa.decimal128(*shape))
        try:
            return pc.cast(printed(digits, cells.null), pa.decimal128(*shape))
        except pa.ArrowInvalid:
            self._refuse_binary(cells, typmod)

    def text_value(self, raw: bytes, typmod: int) -> Decimal | str:
        text = utf8_value(raw)
        shape = precision_and_scale(typmod)
        return text if shape is None else self._decimal(text, *shape)

    def binary_value(self, raw: bytes, typmod: int) -> Decimal | str:
        text = printed_one(raw)
        if text is None:
            raise self.malformed_binary()
        return self.text_value(text.encode("ascii"), typmod)

    def copied_as_text(self, typmod: int) -> bool:
        # A few bytes in binary may be 131,072 digits of text.
        return precision_and_scale(typmod) is None

    def _decimal(self, text: str, precision: int, scale: int) -> Decimal:
        if text in _SPECIAL or text in ("nan", "inf", "-inf"):
            raise self.unfit(text)
        if not _TEXT.fullmatch(text):
            raise self.malformed_text(text.encode())
        exact = Decimal(text)
        if exact and exact.adjusted() >= precision - scale:
            raise self.unfit(text)
        fitted = exact.quantize(Decimal(1).scaleb(-scale), context=_CONTEXT)
        if fitted != exact:
            raise self.unfit(text)
        return fitted

    def _refuse_binary(self, cells: Cells, typmod: int) -> NoReturn:
        for index in range(len(cells)):
            raw = cells.raw(index)
            if raw is not None:
                self.binary_value(raw, typmod)
        raise self.malformed_binary()


def precision_and_scale(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of the decimal that holds numeric(p, s); None where no decimal can.

    numeric(5, -2) holds up to 7 digits before the point; numeric(2, 5) holds 5 behind it.
    """
    modifiers = numeric_modifiers(typmod)
    if modifiers is None:
        return None
    precision, scale = modifiers
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    return (precision, scale) if precision <= _MAX_PRECISION else None
