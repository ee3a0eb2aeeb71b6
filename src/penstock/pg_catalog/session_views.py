"""Rows of the views about sessions (pgstatfuncs.c, walsender.c).

In: sessions and streams, names of roles, who asks. Out: rows of pg_stat_activity and
pg_stat_replication. All see that a session is there and whose it is; what it does is for its own
role and for superusers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.pg_catalog.session_facts import SessionFacts
from penstock.stats.backend_status import IDLE, Activity, BackendType
from penstock.walsender.senders import Sender
from penstock.walsender.syncrep import ASYNC, SyncState

_TYPED_SINCE: Final = 17
_WORKER: Final = "logical replication worker"
"""Whatever a worker of a subscription did, before."""
_WORKERS: Final = (BackendType.APPLY, BackendType.TABLESYNC)
_WAITS: Final = {BackendType.APPLY: ("Activity", "LogicalApplyMain")}
"""What an idle one waits for: a worker for its publisher, all others for their clients."""
_NO_PRIVILEGE: Final = "<insufficient privilege>"

Row = Mapping[str, object]


def stat_activity(
    sessions: Iterable[Activity], roles: Mapping[int, str], facts: SessionFacts, database_oid: int
) -> list[Row]:
    """pg_stat_get_activity. ``roles``: names by oid; a session may outlive its role."""
    return [
        {
            "datid": database_oid if session.database else None,
            "datname": session.database or None,
            "pid": session.pid,
            "usesysid": session.role,
            "usename": roles.get(session.role),
            "application_name": session.application_name,
            **(
                _activity(session, facts.version)
                if _may_see(session.role, facts)
                else {"query": _NO_PRIVILEGE}
            ),
        }
        for session in sessions
    ]


def stat_replication(
    senders: Iterable[Sender],
    roles: Mapping[int, str],
    facts: SessionFacts,
    sync: Mapping[int, SyncState],
) -> list[Row]:
    """All see pid, user and application; the rest superusers, and partly that user. ``sync``: by
    pid, of those that commits may wait for."""
    return [
        {
            "pid": sender.pid,
            "usesysid": sender.role,
            "usename": roles.get(sender.role),
            "application_name": sender.application_name,
            **(_connection(sender) if _may_see(sender.role, facts) else {}),
            **(_progress(sender, sync.get(sender.pid, ASYNC)) if facts.superuser else {}),
        }
        for sender in senders
    ]


def _may_see(role: int, facts: SessionFacts) -> bool:
    """HAS_PGSTAT_PERMISSIONS"""
    return facts.superuser or facts.role_oid == role


def _activity(session: Activity, version: int) -> Row:
    waits = session.state is not None and session.state.startswith(IDLE)
    kind, event = _WAITS.get(session.backend_type, ("Client", "ClientRead"))
    untyped = session.backend_type in _WORKERS and version < _TYPED_SINCE
    return {
        **_connection(session),
        "xact_start": _time(session.transaction_started),
        "query_start": _time(session.query_started),
        "state_change": None if session.state is None else _time(session.state_changed),
        "wait_event_type": kind if waits else None,
        "wait_event": event if waits else None,
        "state": session.state,
        "query": session.query,
        "backend_type": _WORKER if untyped else session.backend_type.value,
    }


def _connection(session: Activity | Sender) -> Row:
    return {
        "client_addr": session.address,
        "client_port": session.port,
        "backend_start": _time(session.started),
    }


def _progress(sender: Sender, sync: SyncState) -> Row:
    """pg_stat_get_wal_senders, for pg_read_all_stats"""
    return {
        "state": "streaming",
        "sent_lsn": sender.state.sent,
        "write_lsn": sender.state.write,
        "flush_lsn": sender.state.flush,
        "replay_lsn": sender.state.apply,
        "sync_priority": sync.priority,
        "sync_state": sync.state,
    }


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
