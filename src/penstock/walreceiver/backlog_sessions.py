"""The sessions by which a backlog is fetched, or None where a stream is better.

In: a walsender's connection, a slot, an LSN. Out: a ``Backlog`` with one lane or two, whose
sessions lead to the same server. What they read is ``backlog``'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.errors import ConnectionFailure, PenstockError
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver.backlog import SMALLEST_WAL, Backlog
from penstock.walreceiver.backlog_lane import Lane
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.slots import slot_state

_LANES: Final = 2
"""Windows that the publisher decodes at the same time, one for each session."""

_FEWER: Final = "by fewer sessions"

_SPARE_SLOTS: Final = 2
"""Slots that a second session leaves free for others, or it does without."""

_AGAIN_AT_MOST: Final = 16
_AGAIN_BESIDE: Final = 4
"""Times what is to be fetched that is decoded again before it. Each window pays for that, a stream
does once."""

_LITTLE: Final = 64 << 20
"""Bytes of WAL that are decoded again in no time."""

logger = logging.getLogger(__name__)


def open_backlog(
    connection: Connection,
    slot: str,
    start: Lsn,
    options: PgoutputOptions,
    *,
    threshold: int,
    session: Callable[[], Connection] | None = None,
) -> Backlog | None:
    """What waits in ``slot`` after ``start``; None, and the connection closed, unless it is
    more than ``threshold`` bytes of WAL and the publisher lets us copy the slot.

    ``session``: opens an ordinary one as ``connection`` was opened; None: it is fetched by COPY.
    Raises ConnectionFailure: what is lost at the beginning is no reason to stream all of it.
    """
    try:
        ((end,),) = connection.query(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END"
        )
        state = slot_state(connection, slot)
        if state is not None and state.confirmed_flush_lsn is not None:
            target, begin = Lsn.parse(str(end)), max(start, state.confirmed_flush_lsn)
            again = begin - (state.restart_lsn or begin)
            if target - begin > threshold and not _is_dear(connection, slot, target - begin, again):
                ordinary = None if session is None else _beside(connection, session, "by COPY")
                if ordinary is not None:
                    connection.close()
                    connection = ordinary
                lanes = [Lane(connection, slot, options, by_copy=ordinary is None)]
                beside = again <= _AGAIN_BESIDE * (target - begin) and target - begin > SMALLEST_WAL
                if session is not None and ordinary is not None and beside:
                    lanes += _more_lanes(connection, slot, options, session)
                _say(slot, target - begin, lanes)
                return Backlog(lanes, slot, begin, target)
    except ConnectionFailure:
        connection.close()
        raise
    except PenstockError as error:
        # A free slot may be missing, or a right: the stream needs neither.
        logger.warning("%s; streaming it instead", error.message)
    connection.close()
    return None


def _is_dear(connection: Connection, slot: str, behind: int, again: int) -> bool:
    """Whether a stream is better: where each window would have to decode much again, as of a
    transaction that is open for long; and where it waits for standbys, which a copy of the slot
    would not (StandbySlotsHaveCaughtup)."""
    if again > max(_LITTLE, _AGAIN_AT_MOST * behind):
        logger.info(
            'slot "%s" is %d MB behind, with %d MB to be decoded before that: streaming it',
            *(slot, behind >> 20, again >> 20),
        )
        return True
    if connection.server_version < 170000:
        return False
    ((waits,),) = connection.query(
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
        f" WHERE slot_name = {quote_literal(slot)} AND failover"
        " AND pg_catalog.current_setting('synchronized_standby_slots', true) <> ''"
    )
    return waits != "0"


def _say(slot: str, behind: int, lanes: Sequence[Lane]) -> None:
    beside = f", {len(lanes)} at once" if len(lanes) > 1 else ""
    logger.info(
        'slot "%s" is %d MB behind: fetching the backlog by %s%s',
        slot,
        behind >> 20,
        lanes[0].way,
        beside,
    )


def _more_lanes(
    connection: Connection, slot: str, options: PgoutputOptions, session: Callable[[], Connection]
) -> list[Lane]:
    """What the publisher lets us have besides the first one."""
    lanes: list[Lane] = []
    while len(lanes) < _LANES - 1:
        ((free,),) = connection.query(
            "SELECT pg_catalog.current_setting('max_replication_slots')::pg_catalog.int4"
            " - pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
        )
        if int(free or 0) <= _SPARE_SLOTS:
            break
        beside = _beside(connection, session, _FEWER)
        if beside is None:
            break
        try:
            lanes.append(Lane(beside, slot, options, by_copy=False))
        except PenstockError as error:
            logger.info("%s; fetching the backlog %s instead", error.message, _FEWER)
            beside.close()
            break
        except BaseException:
            beside.close()
            raise
    return lanes


def _beside(
    connection: Connection, session: Callable[[], Connection], instead: str
) -> Connection | None:
    """An ordinary session on the same server: a name, or a list of hosts, may lead to another one
    each time, and it would have the slot's name, too. None where there is none to be had."""
    asked = (
        "SELECT datid, backend_start, pg_catalog.current_database()"
        f" FROM pg_catalog.pg_stat_get_activity({connection.backend_pid})"
        " WHERE backend_start IS NOT NULL"
    )
    try:
        ordinary = session()
    except PenstockError as error:
        logger.info("%s; fetching the backlog %s instead", error.message, instead)
        return None
    try:
        expected = connection.query(asked)
        if expected and ordinary.query(asked) == expected:
            return ordinary
        logger.info(
            "another session led to another server; fetching the backlog %s instead", instead
        )
    except PenstockError as error:
        logger.info("%s; fetching the backlog %s instead", error.message, instead)
    except BaseException:
        ordinary.close()
        raise
    ordinary.close()
    return None
