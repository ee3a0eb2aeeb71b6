"""The publisher as the commands room wants to see it: walreceiver and commands joined.

In: a connection string. Out: a ``walreceiver.Publisher``, which answers what
``commands.PublisherFactory`` declares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher

_ASK_S: Final = 0.1
"""Seconds between two questions whether the publisher is still wanted."""


def connect_publisher(
    conninfo: str, application_name: str, check: Callable[[], None] | None = None
) -> Publisher:
    """Open a session on the publisher. Raises AuthenticationFailure, ConnectionFailure.

    ``check`` is asked while the publisher is waited for, now and later; what it raises ends that.
    """
    parsed = ConnInfo.parse(conninfo)
    if check is None:
        return Publisher.connect(parsed, application_name)
    publisher = _while_wanted(lambda: Publisher.connect(parsed, application_name), check)
    publisher.connection.interrupt = check
    return publisher


def _while_wanted(connect: Callable[[], Publisher], check: Callable[[], None]) -> Publisher:
    """libpq connects for as long as it takes: on a thread of its own, which may be left alone."""
    attempt: Future[Publisher] = Future()

    def run() -> None:
        try:
            attempt.set_result(connect())
        except BaseException as error:
            attempt.set_exception(error)

    threading.Thread(target=run, name="connect", daemon=True).start()
    while not attempt.done():
        try:
            check()
        except BaseException:
            attempt.add_done_callback(_close)
            raise
        with suppress(TimeoutError):
            attempt.exception(_ASK_S)
    return attempt.result()


def _close(attempt: Future[Publisher]) -> None:
    if attempt.exception() is None:
        attempt.result().connection.close()
