"""Options of the output plugin pgoutput (pgoutput.c, parse_output_parameters).

In: the wishes of a subscription. Out: the option list of START_REPLICATION, in the order in which
PostgreSQL's subscriber writes it (libpqwalreceiver.c, libpqrcv_startstreaming), or the arguments of
the slot functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.identifiers import quoted

_STREAMING_SINCE = {"on": 2, "parallel": 4}
_TWO_PHASE_SINCE = 3

_PROTO_VERSIONS: Final = {160000: 4, 150000: 3, 140000: 2}
"""The publisher's version -> the newest protocol that it knows."""
_ORIGIN_SINCE: Final = 160000


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """Options of pgoutput. ``streaming``: None, ``on`` or ``parallel``.

    ``origin``: None (not sent), ``any``, ``none``. Raises InvalidParameterValue if the protocol
    version does not know an option.
    """

    proto_version: int
    publication_names: tuple[str, ...]
    binary: bool = False
    streaming: str | None = None
    two_phase: bool = False
    origin: str | None = None
    messages: bool = False

    def __post_init__(self) -> None:
        if not self.publication_names:
            raise InvalidParameterValue('option "publication_names" missing')
        if self.streaming is not None and self.streaming not in _STREAMING_SINCE:
            raise InvalidParameterValue('streaming requires a Boolean value or "parallel"')
        since = _STREAMING_SINCE.get(self.streaming or "", 1)
        if self.proto_version < since:
            mode = "parallel streaming" if self.streaming == "parallel" else "streaming"
            raise self._too_old(mode, since)
        if self.two_phase and self.proto_version < _TWO_PHASE_SINCE:
            raise self._too_old("two-phase commit", _TWO_PHASE_SINCE)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return names and values, as they arrive at the plugin."""
        options = [("proto_version", str(self.proto_version))]
        if self.streaming is not None:
            options.append(("streaming", self.streaming))
        if self.two_phase:
            options.append(("two_phase", "on"))
        if self.origin is not None:
            options.append(("origin", self.origin))
        options.append(("publication_names", ",".join(map(quoted, self.publication_names))))
        if self.binary:
            options.append(("binary", "true"))
        if self.messages:
            options.append(("messages", "true"))
        return tuple(options)

    def text(self) -> str:
        """Return START_REPLICATION's options without parentheses (repl_scanner.l quoting)."""
        return ", ".join(
            f"{name} '{value.replace(chr(39), 2 * chr(39))}'" for name, value in self.pairs()
        )

    def arguments(self) -> tuple[str, ...]:
        """Return the VARIADIC options of pg_logical_slot_get_binary_changes and its kin."""
        return tuple(part for pair in self.pairs() for part in pair)

    def _too_old(self, what: str, since: int) -> InvalidParameterValue:
        return InvalidParameterValue(
            f"requested proto_version={self.proto_version} does not support {what}, "
            f"need {since} or higher"
        )


def subscriber_options(
    publisher_version: int,
    publications: Sequence[str],
    *,
    binary: bool,
    streaming: str,
    two_phase: bool,
    origin: str,
    messages: bool = False,
) -> PgoutputOptions:
    """Return the options that PostgreSQL's subscriber asks for (worker.c, set_stream_options).

    A publisher of an old version is not asked for options that it does not know. ``streaming``:
    off, on, parallel. ``messages``: an option that PostgreSQL's subscribers never ask for.
    """
    proto_version = next(
        (v for since, v in _PROTO_VERSIONS.items() if publisher_version >= since), 1
    )
    options = PgoutputOptions(
        proto_version=proto_version,
        publication_names=tuple(publications),
        binary=binary,
        two_phase=two_phase and proto_version >= _TWO_PHASE_SINCE,
        # Older publishers send everything.
        origin=origin if publisher_version >= _ORIGIN_SINCE else None,
        messages=messages,
    )
    if streaming == "off" or proto_version < _STREAMING_SINCE["on"]:
        return options
    parallel = streaming == "parallel" and proto_version >= _STREAMING_SINCE["parallel"]
    return replace(options, streaming="parallel" if parallel else "on")


def committed_only(options: PgoutputOptions) -> PgoutputOptions:
    """Return the options for committed transactions only, which need no streaming."""
    return replace(options, proto_version=1, streaming=None, two_phase=False)
