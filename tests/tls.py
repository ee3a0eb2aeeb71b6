"""TLS on a real server, with a certificate of its own; where it cannot be, the test is skipped."""

from __future__ import annotations

import shutil

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres, wait_until

_MAKE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    " -keyout server.key -out server.crt"
)


def switch_on(server: EmbeddedPostgres) -> None:
    """For connections that ask for it, and those that prefer it, as libpq does."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    with psycopg.connect(server.conninfo(), autocommit=True) as owner:
        owner.execute(f"COPY (SELECT 1) TO PROGRAM '{_MAKE}'")
        try:
            owner.execute("ALTER SYSTEM SET ssl = on")
        except psycopg.errors.InvalidParameterValue:
            pytest.skip("the server here is built without TLS")
        owner.execute("SELECT pg_reload_conf()")
        wait_until(lambda: owner.execute("SHOW ssl").fetchone() == ("on",), "TLS", 20)
