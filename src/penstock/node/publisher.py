"""The publisher as the commands room wants to see it: walreceiver and commands joined.

In: a connection string. Out: a ``walreceiver.Publisher``, which answers what
``commands.PublisherFactory`` declares.
"""

from __future__ import annotations

from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher


def connect_publisher(conninfo: str, application_name: str) -> Publisher:
    """Open a session on the publisher. Raises AuthenticationFailure, ConnectionFailure."""
    return Publisher.connect(ConnInfo.parse(conninfo), application_name)
