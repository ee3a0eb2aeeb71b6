"""What a plugin raises, as an error of the call that it was in.

In: whatever comes out of a plugin's code. Out: a PenstockError that ends the statement or stream,
and never the session, the thread or the node.
"""

from __future__ import annotations

import threading

from penstock.errors import ConnectionFailure, PenstockError


def as_plugins_error(error: BaseException, context: str) -> PenstockError:
    """The error with a context. Raises ``error`` where it is the user's, at the keyboard."""
    if is_interrupt(error):
        raise error
    if isinstance(error, PenstockError):
        context = f"{error.context}\n{context}" if error.context else context
        if not isinstance(error, ConnectionFailure):
            return error.changed(context=context)
        # The connection that has failed is the plugin's own.
        return PenstockError(
            error.message,
            detail=error.detail,
            hint=error.hint,
            sqlstate=error.sqlstate,
            context=context,
        )
    if isinstance(error, MemoryError):
        return PenstockError("out of memory", sqlstate="53200", context=context)
    return PenstockError(text_of(error), context=context)


def is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C, which Python raises in the main thread, where no session runs."""
    main = threading.current_thread() is threading.main_thread()
    return main and isinstance(error, KeyboardInterrupt)


def text_of(error: BaseException) -> str:
    """Its class and what it says, as text that can be sent."""
    name = type(error).__name__
    try:
        said = str(error).replace("\0", "").encode(errors="replace").decode()
    except BaseException:
        return name
    return f"{name}: {said}" if said else name
