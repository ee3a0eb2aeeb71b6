"""``make tap``: PostgreSQL's own subscription tests with a node at one end.

``python -m tap [ROLE] [FILE ...]``: a role of ``roles.py``, or its name without the version
(without one: those that are measured), and beginnings of the names of files (without one: those of
``expected.toml``). Prints a line for each file, what is not as expected, and how to accept that;
the exit status is 1 then, and 2 when the tests cannot be run here. What each file said stays in
``build/tap``.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.lakehouse.session import build_session
from tap import expected, page
from tap.comparison import Counts, differences, measured_counts, total
from tap.keeper import Keeper
from tap.members import LakeNode
from tap.perl import Limits, find_perl, run_file
from tap.results import FileResult, parse
from tap.roles import Role, roles_named
from tap.suite import find_suite

_BUILD = Path("build/tap").absolute()
_MEASURED = ("subscriber", "publisher")
_LIMITS = Limits(file=900, statement=120, wait=25, short_wait=2)


def main(arguments: Sequence[str]) -> int:
    wanted = [a for a in arguments if not roles_named(a)]
    named = [a for a in arguments if roles_named(a)] or _MEASURED
    roles = [role for name in named for role in roles_named(name)]
    # An end by a signal is an end in order: servers, nodes and Spark are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logging.getLogger("penstock").setLevel(logging.INFO)
    logging.getLogger("penstock").propagate = False
    try:
        perl = find_perl()
        found = [_run_role(perl, role, wanted) for role in roles]
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        return 2
    changed = [line for lines in found for line in lines]
    if changed:
        print("\nNot as expected:\n" + "\n".join(f"  {line}" for line in changed))
        print(
            "\nWhat the files said is in build/tap. Where a change is wanted, put it into"
            " tests/tap/expected.toml, with its reason, and run: make tap-page"
        )
    return 1 if changed else 0


def _run_role(perl: str, role: Role, wanted: Sequence[str]) -> list[str]:
    suite = find_suite(role.version)
    known = expected.load().get(role.name)
    listed = suite.files() if known is None else [f for f in suite.files() if f.stem in known.files]
    chosen = [f for f in suite.files() if f.name.startswith(tuple(wanted))] if wanted else listed
    print(f"\n{role.name}, PostgreSQL {suite.release}\n{page.plain_heading()}", flush=True)
    counted: list[Counts] = []
    changed: list[str] = []
    for test in chosen:
        begun = time.monotonic()
        result, note = _run_one(perl, role, test)
        file = known.files.get(test.stem) if known else None
        counts = measured_counts(result, file)
        counted.append(counts)
        changed += [f"{role.name} {test.stem}: {line}" for line in differences(result, file)]
        note = f"{note} {time.monotonic() - begun:.0f} s"
        print(page.plain(test.stem, counts, note.strip()), flush=True)
    print(page.plain("all", total(counted)), flush=True)
    left_out = [f.stem for f in suite.files() if f not in listed]
    if left_out and not wanted:
        print(f"not in expected.toml, so not run: {', '.join(left_out)}")
    return changed


def _run_one(perl: str, role: Role, test: Path) -> tuple[FileResult, str]:
    output = _BUILD / role.name / f"{test.stem}.tap"
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="penstock-tap-"))

    def make_node(name: str) -> LakeNode:
        return LakeNode(name, work / name, output.with_suffix(f".{name}.log"), _spark)

    keeper = Keeper(work / "keeper", role, test.stem, make_node)
    try:
        in_time = run_file(perl, test, keeper.path, _LIMITS, output)
    finally:
        troubles = keeper.close()
        shutil.rmtree(work, ignore_errors=True)
    result = parse(output.read_text("utf-8", "replace"))
    notes = [] if in_time else [f"stopped after {_LIMITS.file:.0f} s"]
    if in_time and not result.ended:
        notes.append("ended early")
    if result.failed_steps:
        notes.append(f"{len(result.failed_steps)} steps failed")
    return result, ", ".join([*notes, *troubles])


@cache
def _spark() -> Any:
    """One session for all nodes: each would take half a minute to get warm."""
    warehouse = tempfile.mkdtemp(prefix="penstock-tap-spark-")
    atexit.register(shutil.rmtree, warehouse, ignore_errors=True)
    return build_session(
        master="local[2]",
        driver_memory="1g",
        conf={"spark.sql.warehouse.dir": warehouse},
        app_name="penstock tap",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
