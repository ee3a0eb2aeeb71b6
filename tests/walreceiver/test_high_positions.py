"""A publisher whose WAL has come beyond signed 64 bits is refused, and nothing is left there."""

from __future__ import annotations

import subprocess

import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.embedded.installation import as_account, find_installation, server_account
from penstock.errors import FeatureNotSupported
from penstock.walreceiver.publisher import Publisher

pytestmark = pytest.mark.postgres

_SEGMENT = "00000001" + "80000000" + "00000001"


def test_no_subscription_begins_at_positions_that_no_log_can_hold() -> None:
    with EmbeddedPostgres(18) as server:
        server.stop()
        subprocess.run(
            [find_installation(18).program("pg_resetwal"), "-l", _SEGMENT, "-D", server.data_dir],
            cwd="/",
            check=True,
            capture_output=True,
            **as_account(server_account()),
        )
        server.start()
        with Publisher.connect(server.conninfo()) as publisher:
            for ask in (
                publisher.identify_system,
                publisher.current_wal_lsn,
                lambda: publisher.create_slot("s"),
                lambda: publisher.create_slot("t", temporary=True, snapshot="export"),
            ):
                with pytest.raises(
                    FeatureNotSupported, match=r"WAL position 8.*/.* is beyond what"
                ):
                    ask()
            assert publisher.connection.query("SELECT slot_name FROM pg_replication_slots") == []
