"""Output plugins of a package that somebody installs: found by name, allowed, and kept apart."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

_CODE = """
import time

from penstock.decoding import OutputPlugin


class Shout(OutputPlugin):
    def begin(self, ctx, txn): ...

    def change(self, ctx, txn, relation, change):
        ctx.prepare_write()
        ctx.out.append(f"{relation.quoted_name} {change.new.text(1)}".upper())
        ctx.write()

    def commit(self, ctx, txn, commit_lsn): ...


class Breaks(Shout):
    def change(self, ctx, txn, relation, change):
        if change.new.text(0) == "3":
            raise ValueError("no threes")
        super().change(ctx, txn, relation, change)


class Slow(Shout):
    def change(self, ctx, txn, relation, change):
        time.sleep(1)


class Later(Shout):
    def change(self, ctx, txn, relation, change):
        yield super().change(ctx, txn, relation, change)


class Stillborn(Shout):
    def __init__(self):
        raise KeyboardInterrupt("not today")


class Ends(Shout):
    def startup(self, ctx, options, is_init):
        self.raises = GeneratorExit if ("raise", "late") in ctx.options else None
        if ("raise", "early") in ctx.options:
            raise KeyboardInterrupt

    def shutdown(self, ctx):
        if self.raises is not None:
            raise self.raises("too late")
"""
_NAMES = ("Shout", "Breaks", "Slow", "Later", "Stillborn", "Ends")
_READ = "SELECT data FROM pg_logical_slot_get_changes('{}', NULL, NULL)"


def _wheel(folder: Path) -> Path:
    """By hand, as the format says (PEP 427): a build would fetch a backend."""
    info = "shouting-1.0.dist-info"
    points = "\n".join(f"{name.lower()} = shouting:{name}" for name in _NAMES)
    files = {
        "shouting.py": _CODE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: us\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[penstock.output_plugins]\n{points}\n",
    }
    record = "".join(
        f"{name},sha256={_digest(text)},{len(text.encode())}\n" for name, text in files.items()
    )
    path = folder / "shouting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


@pytest.fixture
def lake_with_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakeNode]:
    """A node that finds the wheel's plugins, of which one is not allowed to be used."""
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    where = ["--python", sys.executable, "--target", str(packages)]
    subprocess.run([*install, *where, str(_wheel(tmp_path))], check=True)
    monkeypatch.syspath_prepend(str(packages))
    allowed = ["pgoutput", "shout", "breaks", "later", "stillborn", "ends"]
    with LakeNode(tmp_path / "node", None, output_plugin_libraries=allowed) as lake:
        lake.execute("CREATE TABLE t (id integer PRIMARY KEY, v text)")
        yield lake


def _slot(lake: LakeNode, name: str) -> None:
    lake.execute(f"SELECT 1 FROM pg_create_logical_replication_slot('{name}', '{name}')")


def test_plugins_of_a_wheel(lake_with_plugins: LakeNode) -> None:
    lake = lake_with_plugins
    _slot(lake, "shout")
    _slot(lake, "breaks")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='library "slow" may not be'):
        _slot(lake, "slow")
    lake.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    lake.execute("INSERT INTO t VALUES (3, 'three')")

    for _ in range(2):
        with pytest.raises(psycopg.Error, match="ValueError: no threes") as raised:
            lake.rows(_READ.format("breaks"))
        assert raised.value.diag.context is not None
        place = 'slot "breaks", output plugin "breaks", in the change callback, associated LSN '
        assert raised.value.diag.context.startswith(place)
    expected = [("PUBLIC.T ONE",), ("PUBLIC.T TWO",), ("PUBLIC.T THREE",)]
    assert lake.rows(_READ.format("shout")) == expected
    assert lake.rows(_READ.format("shout")) == []
    until = "SELECT pg_replication_slot_advance('breaks', pg_current_wal_lsn())"
    lake.execute(until, "INSERT INTO t VALUES (4, 'four')")
    assert lake.rows(_READ.format("breaks")) == [("PUBLIC.T FOUR",)]


def test_no_plugin_ends_a_session(lake_with_plugins: LakeNode) -> None:
    """A slot that such a one has read is free, and where it was."""
    lake = lake_with_plugins
    pid = lake.rows("SELECT pg_backend_pid()")
    with pytest.raises(psycopg.Error, match=r"change callback .* is a generator function"):
        _slot(lake, "later")
    with pytest.raises(psycopg.Error, match="KeyboardInterrupt: not today") as raised:
        _slot(lake, "stillborn")
    assert raised.value.diag.context == 'output plugin "stillborn", in its constructor'
    _slot(lake, "ends")
    lake.execute("INSERT INTO t VALUES (1, 'one')")
    read = _READ.format("ends")
    for place, message in (("early", "KeyboardInterrupt"), ("late", "GeneratorExit: too late")):
        with pytest.raises(psycopg.Error, match=message) as raised:
            lake.rows(read.replace("NULL)", f"NULL, 'raise', '{place}')"))
        callback = "startup" if place == "early" else "shutdown"
        assert raised.value.diag.context == (
            f'slot "ends", output plugin "ends", in the {callback} callback'
        )
    assert lake.rows("SELECT slot_name, active FROM pg_replication_slots") == [("ends", False)]
    assert lake.rows(read) == [("PUBLIC.T ONE",)]
    assert lake.rows("SELECT pg_backend_pid()") == pid


def test_a_slow_one_can_be_cancelled(lake_with_plugins: LakeNode) -> None:
    lake = lake_with_plugins
    folder = lake.node.folder
    settings = (folder / "penstock.toml").read_text("utf-8")
    (folder / "penstock.toml").write_text(settings.replace('"breaks"', '"slow"'), encoding="utf-8")
    lake.node.reload()
    _slot(lake, "slow")
    rows = ", ".join(f"({number}, 'x')" for number in range(1000))
    lake.execute(f"INSERT INTO t VALUES {rows}")
    read = _READ.format("slow")
    failed: list[psycopg.Error] = []

    with lake.connect() as reading:

        def run() -> None:
            try:
                reading.execute(read)
            except psycopg.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        busy = (
            f"SELECT pid FROM pg_stat_activity WHERE query = '{read.replace(chr(39), chr(39) * 2)}'"
        )
        wait_until(lambda: lake.rows(busy), "the query")
        lake.execute(f"SELECT pg_cancel_backend(({busy}))")
        thread.join(30)
    assert [error.sqlstate for error in failed] == ["57014"]
    lake.execute("SELECT pg_drop_replication_slot('slow')")
