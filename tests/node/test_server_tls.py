"""Certificates and keys that do not serve: an error, and never a prompt."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.node.guc import Parameters
from penstock.node.serving import server_tls

_OPENSSL = "openssl req -x509 -newkey rsa:2048 -days 2 -subj /CN=localhost -keyout key.pem"
_FILES = Parameters(ssl_cert_file="cert.pem", ssl_key_file="key.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
@pytest.mark.parametrize(("option", "secret"), [("-nodes", False), ("-passout pass:secret", True)])
def test_a_key_with_a_passphrase_is_refused(tmp_path: Path, option: str, secret: bool) -> None:
    command = f"{_OPENSSL} -out cert.pem {option}"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    if not secret:
        assert server_tls(tmp_path, _FILES) is not None
        return
    with pytest.raises(ConfigurationError, match="protected by a passphrase"):
        server_tls(tmp_path, _FILES)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert server_tls(tmp_path, Parameters()) is None
    with pytest.raises(ConfigurationError, match='could not load server certificate file "cert'):
        server_tls(tmp_path, _FILES)
