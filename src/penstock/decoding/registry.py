"""Output plugins by name (logical.c, LoadOutputPlugin; dfmgr.c).

A plugin may be loaded if its name is allowed (``output_plugin_libraries``). Classes are found by
entry points of the group ``penstock.output_plugins``; the bundled plugins need no entry point.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from penstock.decoding.output_plugin import OutputPlugin
from penstock.decoding.plugin_error import as_plugins_error, is_interrupt, text_of
from penstock.errors import InsufficientPrivilege, PenstockError

GROUP: Final = "penstock.output_plugins"
BUNDLED: Final[dict[str, str]] = {
    "arrow": "penstock.decoding.plugins.arrow:Arrow",
    "pgoutput": "penstock.decoding.plugins.pgoutput:Pgoutput",
    "test_decoding": "penstock.decoding.plugins.test_decoding:TestDecoding",
    "wal2json": "penstock.decoding.plugins.wal2json:Wal2Json",
}
"""The bundled plugins, which are found even without the package's entry points."""
DEFAULT_LIBRARIES: Final = ", ".join(BUNDLED)
"""The default of the setting output_plugin_libraries."""
_UNDEFINED_FILE: Final = "58P01"
_HINT: Final = (
    "If it is safe for all REPLICATION users to use this library as an output plugin, add it to"
    ' "output_plugin_libraries" and reload the server configuration.'
)


def find_plugin(name: str, allowed: Collection[str] = tuple(BUNDLED)) -> OutputPlugin:
    """Return a new object of a plugin. Raises PenstockError (58P01) if the plugin does not exist,
    InsufficientPrivilege if it is not allowed, and PenstockError with the reason if it cannot be
    used."""
    made = plugin_class(name, allowed)
    try:
        return made()
    except BaseException as error:
        context = f'output plugin "{name}", in its constructor'
        raise as_plugins_error(error, context) from error


def plugin_class(name: str, allowed: Collection[str] = tuple(BUNDLED)) -> type[OutputPlugin]:
    """Return the class of a plugin. Raises as ``find_plugin``."""
    point = _entry_point(name)
    if point is None:
        raise PenstockError(
            f'could not access file "{name}": No such file or directory', sqlstate=_UNDEFINED_FILE
        )
    if name not in allowed:
        raise InsufficientPrivilege(
            f'library "{name}" may not be used as an output plugin', hint=_HINT
        )
    try:
        loaded = point.load()
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise PenstockError(
            f'could not load library "{name}": {text_of(error)}',
            detail=f"It is {point.value}.",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, OutputPlugin)):
        raise PenstockError(
            "output plugins have to declare the _PG_output_plugin_init symbol",
            detail=f"{point.value} is no class derived from penstock.decoding.OutputPlugin.",
        )
    return loaded


def _entry_point(name: str) -> EntryPoint | None:
    if name in BUNDLED:
        return EntryPoint(name, BUNDLED[name], GROUP)
    for point in entry_points(group=GROUP, name=name):
        return point
    return None
