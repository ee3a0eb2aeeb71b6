"""Who has left a connection of psycopg open.

One in a reference cycle is collected long after its test, and fails another one: the warning says
where it was opened, and in which test.
"""

from __future__ import annotations

import os
import traceback
import warnings
from typing import Any

import psycopg
import pytest
from psycopg import BaseConnection

_FRAMES = 30


def pytest_configure(config: pytest.Config) -> None:
    begin, end = BaseConnection.__init__, BaseConnection.__del__
    kind: Any = BaseConnection

    def init(self: psycopg.BaseConnection[Any], *given: Any) -> None:
        begin(self, *given)
        stack = traceback.StackSummary.extract(traceback.walk_stack(None), limit=_FRAMES)
        where = "\n".join(f"  {frame.filename}:{frame.lineno} {frame.name}" for frame in stack)
        opened = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        self.__dict__["opened"] = f"opened in {opened}\n{where}"

    def collected(self: psycopg.BaseConnection[Any]) -> None:
        def warn(text: str, category: type[Warning]) -> None:
            warnings.warn(f"{text}\n{self.__dict__.get('opened')}", category, stacklevel=2)

        end(self, warn)

    kind.__init__ = init
    kind.__del__ = collected
