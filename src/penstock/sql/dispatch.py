"""Methods that depend on the class of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class NodeMethod(Generic[_T]):
    """A ``singledispatchmethod`` of one argument, without a new function for each call."""

    def __init__(self, method: Callable[..., _T]) -> None:
        functions = singledispatch(method)
        self.register = functions.register
        self._dispatch = functions.dispatch

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Callable[..., _T]:
        return lambda node: self._dispatch(type(node))(instance, node)
