"""``penstock verify`` on a terminal and as text: what people see."""

from __future__ import annotations

import logging
import re
import sys
import time

from cli.terminal import Terminal
from penstock.cli.main import log_to_standard_error
from penstock.cli.verify import _Shown, lines
from penstock.lsn import Lsn
from penstock.node.verify import Verification, VerifiedTable, VerifyProgress
from penstock.pipeline.compare_tables import CompareProgress, RowDifference, TableDifference

_BAR = re.compile(r"^s +\S+ comparing +\d:\d\d:\d\d$")


def test_a_bar_that_goes_and_log_lines_that_stay() -> None:
    path = {"PYTHONPATH": ":".join(sys.path)}
    with Terminal([sys.executable, __file__], columns=100, environment=path) as terminal:
        terminal.wait_for("a bar", lambda visible: any(map(_BAR.match, visible)))
        assert terminal.end() == 0
        *logged, told = terminal.lines()
        assert [line.split()[-2:] for line in logged] == [["logged", str(n)] for n in range(10)]
        assert told == "told"


def test_what_differs_as_text() -> None:
    examples = (
        RowDifference("different", (("a", "1"), ("b", None)), ("c", "d")),
        RowDifference("extra", (("a", "it's"), ("b", "")), count=1200),
    )
    found = Verification(
        "s",
        Lsn(0x1A0),
        (
            VerifiedTable("public.t", None, TableDifference(10, 1209, {}, True)),
            VerifiedTable(
                "public.u",
                None,
                TableDifference(10, 1209, {"different": 1, "extra": 1200}, False, examples),
                ("n",),
            ),
            VerifiedTable("public.v", "it is parked"),
        ),
    )
    assert list(lines(found)) == [
        "subscription s at 0/1A0",
        "  public.t: equal, 10 rows",
        "  public.u: DIFFERENT, 10 rows at the publisher, 1,209 at the node, without columns n",
        "    at least 1 different:",
        "      a = '1', b = NULL in c, d",
        "    at least 1,200 extra at the node, the first 1:",
        "      a = 'it''s', b = '' (1,200 times)",
        "  public.v: not compared: it is parked",
        "1 of 3 tables equal, 1 different, 1 not compared",
    ]


def _story() -> None:
    log_to_standard_error()
    with _Shown() as shown:
        shown(VerifyProgress("s", "waiting for a slot on the publisher"))
        for step in range(10):
            shown(VerifyProgress("s", "comparing", CompareProgress(step * 10, 100, False)))
            logging.getLogger("penstock").info("logged %d", step)
            time.sleep(0.1)
    print("told")


if __name__ == "__main__":
    _story()
