"""Fixture ``s3``: an S3 of our own (SeaweedFS, a real server in a wheel), one for the test run.

In: nothing. Out: buckets, and the environment by which the node, its commands and every other
program reach it, as AWS's own tools do. Its puts with ``If-None-Match: *`` are atomic.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyarrow import fs

from penstock.embedded import free_port, wait_until

SECRET: Final = "kept-out-of-every-log"
_ACCESS_KEY: Final = "AKIAPENSTOCKTESTS"
_REGION: Final = "eu-central-7"
_START_SECONDS: Final = 60.0
_numbers = itertools.count(1)


class ObjectStore:
    """A running S3; ``environment`` is set while a test uses it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": _REGION,
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            # delta-rs, which reads beside us, wants to be told; the node asks for neither
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def filesystem(self) -> fs.S3FileSystem:
        """For looking into buckets."""
        return fs.S3FileSystem(
            access_key=_ACCESS_KEY,
            secret_key=SECRET,
            region=_REGION,
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        )

    def bucket(self) -> str:
        """A new bucket."""
        name = f"lake-{next(_numbers)}"
        self.filesystem().create_dir(name)
        return name


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """The server."""
    folder = tmp_path_factory.mktemp("s3")
    with object_store(folder) as store:
        yield store


@pytest.fixture
def s3(s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The server, with its environment set for this test and what it starts."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A server with its data in ``folder``, until the block ends."""
    ports = _free_ports(8)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": _ACCESS_KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    names = (
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "s3.port",
        "s3.port.grpc",
    )
    listening = [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
    command = [
        str(Path(sysconfig.get_path("scripts"), "weed")),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=200",
        "-filer",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-s3",
        f"-s3.config={config}",
        f"-s3.localSocket={folder / 's3.sock'}",
        # one port each that all servers of a machine would share
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *listening,
    ]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _wait_for(ports[6], server, folder / "server.log")
        yield ObjectStore(f"http://127.0.0.1:{ports[6]}")
    finally:
        server.kill()  # when asked, it takes ten seconds
        server.wait()


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until an object can be put there: a bucket can be made before there is a place for any."""
    probe = ObjectStore(f"http://127.0.0.1:{port}")

    def there() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            probe.filesystem().create_dir("probe")
            with probe.filesystem().open_output_stream("probe/object") as file:
                file.write(b"there")
            return True
        return False

    def tail() -> str:
        return log.read_text("utf-8", "replace")[-2000:]

    def guard() -> None:
        assert server.poll() is None, f"the object store has ended: {tail()}"

    wait_until(there, "object store", _START_SECONDS, state=tail, guard=guard, pause=0.1)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)
