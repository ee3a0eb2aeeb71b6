"""A Spark that cannot be started again ends ``penstock start`` with a status of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Node
from penstock.cli import main
from penstock.errors import ConfigurationError, PenstockError, SparkLost


@pytest.mark.parametrize(
    ("error", "status"), [(SparkLost("Spark is lost"), 7), (ConfigurationError("a mistake"), 1)]
)
def test_what_a_supervisor_reads(
    error: PenstockError,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    monkeypatch.setattr(main, "left_behind", [])  # another test of this process may leave some
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == status
    assert error.message in capsys.readouterr().err


def test_a_running_node_tells_that_spark_is_lost(tmp_path: Path) -> None:
    node: Any = Node.init(tmp_path / "node")
    node._running = SimpleNamespace(check=lambda: None)
    node._cluster._lost = SparkLost("Spark is lost")
    with pytest.raises(SparkLost):
        node.wait_until(threading.Event())
    node._running = None
    node.close()
