"""A Python that runs blocks one after the other, in one set of names.

In: one JSON object a line on standard input, ``kind`` and ``text``; of kind ``NEW_PAGE``, the names
before it are gone, while a Spark session stays. Out: one JSON object a line, ``printed`` or
``error``. What blocks print is collected; what others print on standard output, such
as the JVM, goes to standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from typing import Any, Final

from penstock.lakehouse.session import build_session

NEW_PAGE: Final = "new page"


def main() -> None:
    """Until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    names: dict[str, Any] = {}
    for line in sys.stdin:
        block = json.loads(line)
        if block["kind"] == NEW_PAGE:
            names = {}
        names.setdefault("__name__", "__main__")
        print(json.dumps(_run(block["kind"], block["text"], names)), file=answers, flush=True)


def _run(kind: str, text: str, names: dict[str, Any]) -> dict[str, str]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            if kind.endswith("spark"):
                names["spark"] = build_session(master="local[2]", driver_memory="1g", conf={})
            if kind == "sql spark":
                names["spark"].sql(text).show(truncate=False)
            else:
                exec(compile(text, "block", "exec"), names)
    except BaseException:
        return {"error": traceback.format_exc()}
    return {"printed": printed.getvalue()}


if __name__ == "__main__":
    main()
