"""Errors of plugins, as errors of the call.

Any exception of a plugin's code becomes a PenstockError. It ends the statement or stream, but never
the session, the thread or the node.
"""

from __future__ import annotations

import threading

from penstock.errors import ConnectionFailure, PenstockError


def as_plugins_error(error: BaseException, context: str) -> PenstockError:
    """Return a plugin's error with a context. Raises ``error`` itself if it is Ctrl-C."""
    if is_interrupt(error):
        raise error
    if isinstance(error, PenstockError):
        context = f"{error.context}\n{context}" if error.context else context
        if not isinstance(error, ConnectionFailure):
            return error.changed(context=context)
        # A connection that failed here is the plugin's own, not the client's.
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
    """Tell whether it is Ctrl-C. Python raises it in the main thread, which runs no session."""
    main = threading.current_thread() is threading.main_thread()
    return main and isinstance(error, KeyboardInterrupt)


def text_of(error: BaseException) -> str:
    """Return an error's class and message, as text that can be sent."""
    name = type(error).__name__
    try:
        said = str(error).replace("\0", "").encode(errors="replace").decode()
    except BaseException:
        return name
    return f"{name}: {said}" if said else name
