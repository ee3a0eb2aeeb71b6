"""The values that ParameterStatus reports at the start of a session (BeginReportingGUCOptions)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.guc.guc_tables import settings
from penstock.protocol.startup import StartupParameters, reported_parameters

ALWAYS_REPORTED: Final[Mapping[str, str]] = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "in_hot_standby": "off",
    "default_transaction_read_only": "off",
    "search_path": '"$user", public',
}
"""Values that are the same on every node, unless the startup packet sets others. Clients rely on
them: psycopg 3.2 crashes if it reads a time from a server that has not reported TimeZone."""
_AS_GIVEN: Final = ("default_transaction_read_only", "search_path")


def reported(
    version: int, values: Mapping[str, str], parameters: StartupParameters
) -> Sequence[tuple[str, str]]:
    """Return the names and values to report. ``values``: those of the node and the session; the
    startup packet's are added. Raises InvalidParameterValue."""
    known = {**values, "application_name": parameters.application_name}
    for name in _AS_GIVEN:
        if (given := parameters.setting(name)) is not None:
            known[name] = settings(version)[name].read(given)
    return [(name, known[name]) for name in reported_parameters(version) if name in known]
