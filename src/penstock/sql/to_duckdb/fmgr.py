"""Call Python functions from DuckDB's SQL (fmgr.c).

DuckDB has one function for each type of result: ``pg_text('lpad', text, length)`` calls the Python
function ``lpad`` for every row. Values arrive as ``pg_proc.argument`` writes them. The functions
raise PostgreSQL's errors. The bytes of text that they make are counted, because DuckDB's memory
limit does not cover text between its operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.identifiers import simple_quote_literal
from penstock.interrupts import check_for_interrupts
from penstock.sqlstate import OutOfMemory

MAX_MADE: Final = 128 << 20
"""The most bytes of text that a statement of the catalogs makes, or one call for many rows."""
ITEM: Final = 64
"""Python's overhead for a text."""
_AT_ONCE: Final = 1 << 22
"""Bytes of arguments that are Python's values at once."""
_SHORT: Final = 200
_LARGE: Final = 4096
"""The least bytes of a text that equal calls share, if their arguments are ``_SHORT``."""
_SHARED: Final = 4
"""What a text costs of its bytes if equal calls share it. Not nothing: DuckDB may copy each."""
_DETAIL: Final = f"Functions make {MAX_MADE >> 20} MB of text at most."
_T = TypeVar("_T")
_TOLD: Final = "<penstock {} {} penstock>"
_RETOLD: Final = re.compile(r"<penstock (\w{5}) (.*?) penstock>", re.DOTALL)
_RESULTS: Final = {
    "pg_bool": ("BOOLEAN", pa.bool_()),
    "pg_int": ("BIGINT", pa.int64()),
    "pg_float": ("DOUBLE", pa.float64()),
    "pg_text": ("VARCHAR", pa.string_view()),
    "pg_bytes": ("BLOB", pa.binary_view()),
    "pg_texts": ("VARCHAR[]", pa.list_(pa.string())),
}


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A function. ``size``: an upper limit of the result's bytes, computed from the arguments
    before the call; None: the result is small, or hardly longer than the arguments. ``strict``:
    NULL for a NULL argument, without a call."""

    call: Callable[..., Any]
    size: Callable[..., int] | None = None
    strict: bool = True


class Budget:
    """Counts the bytes of text that a connection's functions make, up to ``MAX_MADE``.

    ``per_call``: each call of DuckDB, which is for up to 2048 rows, has the whole budget.
    """

    def __init__(self, *, per_call: bool = True) -> None:
        self._made = 0
        self._per_call = per_call

    def reset(self) -> None:
        """Start counting for another statement."""
        self._made = 0

    def begin(self) -> None:
        """Start a call for some rows."""
        if self._per_call:
            self._made = 0

    def take(self, size: int, *, shared: bool = False) -> None:
        """Count bytes before they are allocated. Raises OutOfMemory (53200).

        ``shared``: a value that was made and counted before is used once more.
        """
        self._made += size // _SHARED if shared else size
        if self._made > MAX_MADE:
            raise OutOfMemory("out of memory", detail=_DETAIL)


def told(error: PenstockError) -> str:
    """Return a text that keeps an error's SQLSTATE and message where only texts survive."""
    return _TOLD.format(error.sqlstate, error.message)


def raises(sqlstate: str, message: str, held: str) -> str:
    """Return SQL that raises an error in the place of a value of DuckDB's type ``held``."""
    text = simple_quote_literal(_TOLD.format(sqlstate, message))
    return f"CAST(error({text}) AS {held})"


def retold(text: str) -> PenstockError | None:
    """Return the error of which a text tells, None if it tells of none."""
    found = _RETOLD.search(text)
    return None if found is None else PenstockError(found[2], sqlstate=found[1])


def register(
    connection: duckdb.DuckDBPyConnection,
    functions: Mapping[str, PythonFunction],
    budget: Budget | None = None,
) -> None:
    """Let a connection's SQL call the functions."""
    counted = Budget() if budget is None else budget
    create: Any = connection.create_function  # DuckDB's stubs do not know variadic functions
    for name, (held, type_) in _RESULTS.items():
        call = _vector(functions, type_, counted)
        create(name, call, None, held, type="arrow", null_handling="special")


def _vector(
    functions: Mapping[str, PythonFunction], type_: pa.DataType, budget: Budget
) -> Callable[..., pa.Array]:
    """Return a function over Arrow columns, the first of which has the Python function's name."""

    def call(*columns: pa.ChunkedArray) -> pa.Array:
        name, *arguments = columns
        function = functions[name[0].as_py()]
        budget.begin()
        made = _Made(function, budget)
        try:
            places = []
            for row in _rows(arguments):
                check_for_interrupts()
                null = function.strict and None in row
                places.append(made.null() if null else made.place(row))
            return _shared_array(made.values, places, type_)
        except PenstockError as error:
            raise RuntimeError(told(error)) from None
        except MemoryError:
            raise RuntimeError(told(OutOfMemory("out of memory"))) from None
        except Exception as error:
            raise RuntimeError(told(PenstockError(repr(error)))) from None

    return call


def _rows(columns: Sequence[pa.ChunkedArray]) -> Iterator[tuple[Any, ...]]:
    """Yield rows as Python values, few at once if they are large. Raises OutOfMemory (53200)."""
    count = len(columns[0]) if columns else 0
    size = sum(column.nbytes + ITEM * _elements(column) for column in columns)
    at_once = max(count * _AT_ONCE // max(size, 1), 1)
    for start in range(0, count, at_once):
        parts = [column.slice(start, at_once) for column in columns]
        if ITEM * max(map(_elements, parts)) > MAX_MADE:
            raise OutOfMemory("out of memory", detail=_DETAIL)
        yield from zip(*(part.to_pylist() for part in parts), strict=True)


def _elements(column: pa.ChunkedArray) -> int:
    return len(pc.list_flatten(column)) if pa.types.is_list(column.type) else 0


class _Made:
    """The results of one call of DuckDB. Rows with equal arguments share a result, if it may be
    large."""

    def __init__(self, function: PythonFunction, budget: Budget) -> None:
        self.values: list[Any] = []
        self._function = function
        self._budget = budget
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, row: tuple[Any, ...]) -> int:
        """Return the index of the row's result in ``values``. Raises OutOfMemory (53200)."""
        size = self._function.size
        if size is None:
            value = self._function.call(*row)
            if isinstance(value, list):
                self._budget.take(sum(ITEM + len(item or "") for item in value))
            elif isinstance(value, str | bytes):
                self._budget.take(len(value))
            return self._add(value)
        bytes_ = size(*row)
        if bytes_ < _LARGE or not all(map(_is_short, row)):
            self._budget.take(bytes_)
            return self._add(self._function.call(*row))
        found = self._places.get(row)
        self._budget.take(bytes_, shared=found is not None)
        if found is None:
            value = self._function.call(*row)
            found = self._add(value)
            if isinstance(value, str | bytes):
                self._places[row] = found
        return found

    def null(self) -> int:
        """Return the index of NULL."""
        return self._add(None)

    def _add(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1


def _is_short(argument: Any) -> bool:
    if isinstance(argument, str | bytes):
        return len(argument) <= _SHORT
    return argument is None or isinstance(argument, int)


def _shared_array(values: Sequence[Any], places: Sequence[int], type_: pa.DataType) -> pa.Array:
    """Return the values at ``places``; a text or bytea that is there several times is held once.

    Arrow's columnar format, "Variable-size Binary View Layout": 16 bytes a value, which have its
    bytes or say where they are.
    """
    array = pa.array(values, type_)
    if len(values) == len(places):
        return array
    valid, views, *bytes_ = array.buffers()
    at = np.array(places, np.int64)
    if valid is not None:
        known = np.array([value is not None for value in values])
        valid = pa.py_buffer(np.packbits(known[at], bitorder="little"))
    gathered = np.frombuffer(views, "V16")[at]
    return pa.Array.from_buffers(type_, len(at), [valid, pa.py_buffer(gathered), *bytes_])


def cached(call: Callable[..., _T]) -> Callable[..., _T]:
    """Keep the results of a function of short texts."""
    kept = lru_cache(maxsize=1024)(call)
    return lambda text, *more: (kept if len(text) <= _SHORT else call)(text, *more)
