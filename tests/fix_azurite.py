"""Fixture ``azurite``: Azure's own emulator of Blob storage, from npm, one for the test run.

In: nothing. Out: containers, and the environment by which the node and every other program reach
them. Where node or npm is missing, its tests are skipped. The package is installed once, in our
cache.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyarrow import fs

from penstock import artifacts
from penstock.embedded import wait_until

_VERSION: Final = "3.37.0"
_ACCOUNT: Final = "devstoreaccount1"
# The emulator's well-known key (its README): it protects nothing.
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_START_SECONDS: Final = 60.0
_INSTALL_SECONDS: Final = 600.0
_numbers = itertools.count(1)


class Azurite:
    """A running emulator; ``environment`` is set while a test uses it."""

    def __init__(self, port: int) -> None:
        self.authority = f"127.0.0.1:{port}"
        self.environment = {
            "AZURE_STORAGE_ENDPOINT": f"http://{self.authority}",
            "AZURE_STORAGE_KEY": KEY,
        }

    def container(self) -> str:
        """A new container; the URI of its root."""
        name = f"lake-{next(_numbers)}"
        fs.AzureFileSystem(
            _ACCOUNT,
            account_key=KEY,
            blob_storage_authority=self.authority,
            dfs_storage_authority=self.authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        ).create_dir(name)
        return f"abfs://{name}@{_ACCOUNT}.dfs.core.windows.net"


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Azurite]:
    """The emulator."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is missing")
    program = _installed()
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    server = subprocess.Popen(["node", str(program), *options, *quiet], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, server)
        yield Azurite(port)
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def azurite(azurite_server: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    """The emulator, with its environment set for this test and what it starts."""
    for name, value in azurite_server.environment.items():
        monkeypatch.setenv(name, value)
    return azurite_server


def _installed() -> Path:
    """The program; npm fetches it when it is not there yet."""
    folder = artifacts.cache_home() / f"azurite-{_VERSION}"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with artifacts.locked(folder):
        if not (folder / "whole").exists():
            quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
            command = ["npm", "install", *quiet, "--prefix", str(folder), f"azurite@{_VERSION}"]
            subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
            (folder / "whole").touch()
    return program


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    def guard() -> None:
        assert server.poll() is None, "azurite has ended"

    wait_until(listens, "azurite on its port", _START_SECONDS, guard=guard, pause=0.1)
