"""Options of the output plugin pgoutput (pgoutput.c, parse_output_parameters).

In: what a subscription asks for. Out: the option list of START_REPLICATION, in the order in which
PostgreSQL's subscriber writes it (libpqwalreceiver.c, libpqrcv_startstreaming), or the arguments of
the slot functions. Which versions a publisher knows is left to the apply worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import InvalidParameterValue
from penstock.identifiers import quoted

_STREAMING_SINCE = {"on": 2, "parallel": 4}
_TWO_PHASE_SINCE = 3


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """``streaming``: None, ``on`` or ``parallel``. ``origin``: None (not sent), ``any``, ``none``.

    Raises InvalidParameterValue where the protocol version does not know what is asked for.
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
        """Names and values, as they arrive at the plugin."""
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
        """START_REPLICATION's option list without its parentheses (repl_scanner.l quoting)."""
        return ", ".join(
            f"{name} '{value.replace(chr(39), 2 * chr(39))}'" for name, value in self.pairs()
        )

    def arguments(self) -> tuple[str, ...]:
        """VARIADIC options of pg_logical_slot_get_binary_changes and its kin."""
        return tuple(part for pair in self.pairs() for part in pair)

    def _too_old(self, what: str, since: int) -> InvalidParameterValue:
        return InvalidParameterValue(
            f"requested proto_version={self.proto_version} does not support {what}, "
            f"need {since} or higher"
        )
