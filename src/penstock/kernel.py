"""Loops over bytes, compiled by Numba; the only importer of it.

A kernel is a plain Python function: loops, integers and NumPy arrays, no objects. It is compiled
when it is called first, without the interpreter's lock, and kept in a cache, so only the first
process on a machine waits. Where Numba is missing or ``NUMBA_DISABLE_JIT=1`` is set, Python runs
the same function: slow, and equal. Tests run both.

A kernel reads only what its caller has checked to lie in its arrays, or checks it itself: nothing
else does (``NUMBA_BOUNDSCHECK=1`` does, in tests).
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Generic, ParamSpec, TypeVar

import numpy as np

from penstock.artifacts import cache_home

log = logging.getLogger(__name__)

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")

BYTES: Final = "Array(uint8, 1, 'C', readonly=True)"
"""The type of bytes that a kernel only reads."""
NUMBERS: Final = "Array(int64, 1, 'C', readonly=True)"
"""The type of numbers that a kernel only reads."""
PLACES: Final = "Array(int32, 1, 'C', readonly=True)"
"""The type of places or lengths in a buffer that a kernel only reads."""
FLAGS: Final = "Array(boolean, 1, 'C', readonly=True)"
"""The type of a mask that a kernel only reads."""

_compiling = threading.RLock()
_kernels: Final[list[Kernel[..., Any]]] = []


class Kernel(Generic[_Given, _Answer]):
    """A function that is compiled when it is called first. ``function``: as it is written."""

    def __init__(self, function: Callable[_Given, _Answer], signature: str) -> None:
        self.function = function
        self._signature = signature
        self._run: Callable[_Given, _Answer] | None = None
        _kernels.append(self)

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        run = self._run
        return run(*args, **kwargs) if run else self.compiled()(*args, **kwargs)

    def compiled(self) -> Callable[_Given, _Answer]:
        """Compile the function, or take it from the cache; return what runs from now on."""
        with _compiling:
            if self._run is None:
                self._run = _compiled(self.function, self._signature)
            return self._run


def kernel(
    signature: str,
) -> Callable[[Callable[_Given, _Answer]], Kernel[_Given, _Answer]]:
    """Make a kernel of the types in Numba's notation: ``f"int64({BYTES}, int64[::1])"``."""
    return lambda function: Kernel(function, signature)


def prepare() -> int:
    """Compile all kernels of the imported modules, or take them from the cache; return their
    number."""
    for each in _kernels:
        each.compiled()
    return len(_kernels)


def part(function: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Let kernels call a function, which becomes part of each of them."""
    _parts.append(function)
    return function


_parts: Final[list[Callable[..., Any]]] = []


@cache
def _numba() -> Any:
    """Return Numba, which takes long to import: not before a kernel is called. None if there is no
    wheel of it for this platform."""
    try:
        return importlib.import_module("numba")
    except ImportError:
        log.warning("Numba is not installed: Python reads bytes, many times slower")
        return None


def _compiled(function: Callable[_Given, _Answer], signature: str) -> Callable[_Given, _Answer]:
    numba = _numba()
    if numba is None or numba.config.DISABLE_JIT:
        return function
    while _parts:
        numba.extending.register_jitable(_parts.pop())
    # The cache's folder is a setting of the process, which is read when a function is made.
    folder = _cache(function, f"{numba.__version__} {numba.config.BOUNDSCHECK}")
    former, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made: Callable[_Given, _Answer] = numba.njit(signature, nogil=True, cache=True)(function)
    except Exception as error:  # a service without a home, or whatever a torn file makes of it
        log.warning("compiled code in %s cannot be used (%s): compiling it again", folder, error)
        made = numba.njit(signature, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = former
    return made


def _cache(function: Callable[..., Any], settings: str) -> Path:
    """Return the folder of a function's compiled code, named by all that the code depends on. Numba
    itself looks only at the file in which the function stands."""
    digest = hashlib.sha256(settings.encode())
    _add(digest, function, set())
    return cache_home() / "kernels" / digest.hexdigest()[:16]


def _add(digest: Any, function: Callable[..., Any], seen: set[str]) -> None:
    code = function.__code__
    digest.update(code.co_code + repr(code.co_consts).encode())
    for name in code.co_names:
        value = function.__globals__.get(name)
        if name in seen or value is None:
            continue
        seen.add(name)
        if isinstance(value, FunctionType):
            _add(digest, value, seen)
        elif isinstance(value, np.ndarray):
            digest.update(name.encode() + value.tobytes())
        elif isinstance(value, int | float | tuple):
            digest.update(f"{name}={value!r}".encode())
