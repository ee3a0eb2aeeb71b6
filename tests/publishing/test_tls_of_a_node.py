"""TLS of a node: what pg_stat_ssl shows beside a server, and a certificate that is renewed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate"),
]

_MAKE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
_FOR = ["subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
_MINE = "SELECT * FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
_FACTS = f"SELECT ssl, version, cipher, bits, client_dn, client_serial, issuer_dn FROM ({_MINE}) m"


def make(folder: Path) -> Path:
    """Make a certificate in a node's folder; return a copy of it for clients."""
    subprocess.run([*_MAKE.split(), *_FOR], check=True, capture_output=True, cwd=folder)
    copy = folder.parent / f"root{len(list(folder.parent.glob('root*')))}.pem"
    shutil.copy(folder / "cert.pem", copy)
    return copy


def verified(lake: LakeNode, root: Path) -> psycopg.Connection[Any]:
    return lake.connect(sslmode="verify-full", sslrootcert=str(root))


def test_a_renewed_certificate(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    lake = LakeNode(folder, spark, ssl_cert_file="cert.pem", ssl_key_file="key.pem")
    first = make(folder)
    with lake, verified(lake, first) as before:
        second = make(folder)
        verified(lake, first).close()  # it has not been read again
        assert before.execute("SELECT pg_reload_conf()").fetchone() == (True,)
        with verified(lake, second) as renewed:
            assert renewed.execute("SELECT ssl FROM pg_stat_ssl").fetchall()
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            verified(lake, first)
        assert before.execute("SELECT 1").fetchone() == (1,)


def test_pg_stat_ssl(spark: Any, tmp_path: Path, database: Database) -> None:
    folder = tmp_path / "node"
    lake = LakeNode(folder, spark, ssl_cert_file="cert.pem", ssl_key_file="key.pem")
    make(folder)
    with lake, psycopg.connect(database.conninfo, sslmode="disable") as theirs:
        expected = theirs.execute(_FACTS)
        with lake.connect(sslmode="disable") as plain:
            found = plain.execute(_FACTS)
            assert [each.name for each in found.description or ()] == [
                each.name for each in expected.description or ()
            ]
            assert found.fetchall() == expected.fetchall()
        with lake.connect(sslmode="require") as encrypted:
            ((ssl, version, cipher, bits, *rest),) = encrypted.execute(_FACTS).fetchall()
    assert (ssl, version, bits, rest) == (True, "TLSv1.3", 256, [None, None, None])
    assert cipher.startswith("TLS_")
