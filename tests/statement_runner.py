"""What runners of statements in tests have in common: no turns, and no limits of time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class PlainRunner:
    """The part of a ``StatementRunner`` about turns and time, for runners that have neither."""

    changes_nothing = False

    may_last = False

    waits_for_turn = False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def leave_turn(self) -> None:
        pass

    def begin_statement(self) -> None:
        pass

    def end_statement(self) -> None:
        pass
