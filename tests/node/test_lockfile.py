"""One running node per folder, however the last one died."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ObjectInUse
from penstock.node.claims import LockFile, running_pid

HOLD = """
import sys
from pathlib import Path
from penstock.node.claims import LockFile
lock = LockFile(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_start_is_refused_and_told_the_process(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert running_pid(tmp_path) == holder.pid
        with pytest.raises(ObjectInUse, match=f"already running \\(PID {holder.pid}\\)"):
            LockFile(tmp_path)
        holder.kill()
        holder.wait()
    assert running_pid(tmp_path) is None
    LockFile(tmp_path).release()


def test_a_released_lock_is_free(tmp_path: Path) -> None:
    LockFile(tmp_path).release()
    assert running_pid(tmp_path) is None
    LockFile(tmp_path).release()
