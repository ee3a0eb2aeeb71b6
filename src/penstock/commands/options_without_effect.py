"""Options of subscriptions that are accepted and change nothing, and what is said of them.

In: parsed options. Out: notices. PostgreSQL leaves ``streaming`` and ``two_phase`` without effect
where the other end has them not; whoever brings a subscription's definition from a server gets it
made here too, and is told what happens instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.commands.result import Notice, notice, warning
from penstock.commands.subscription_options import SubscriptionOptions


def _streaming(value: Any) -> Notice | None:
    if value == "off":
        return None
    return notice(
        f"streaming = {value} has no effect on this node",
        detail="Transactions are sent when they have committed. Large ones wait on the publisher, "
        "and are staged here in pieces.",
    )


def _two_phase(value: Any) -> Notice | None:
    if not value:
        return None
    return warning(
        "two_phase has no effect on this node",
        detail="A prepared transaction is applied when it is committed, and cannot be seen before.",
    )


_OTHER: Final[dict[str, Callable[[Any], Notice | None]]] = {
    "streaming": _streaming,
    "two_phase": _two_phase,
}


def without_effect(options: SubscriptionOptions) -> tuple[Notice, ...]:
    """One for each option that was written and has none."""
    found: list[Notice | None] = []
    if "synchronous_commit" in options.specified:
        found.append(
            notice(
                "synchronous_commit has no effect on this node",
                detail="What a cut holds is on disk before it is acknowledged (parameter fsync).",
            )
        )
    found += [_OTHER[name](value) for name, value in options.other.items() if name in _OTHER]
    return tuple(told for told in found if told is not None)
