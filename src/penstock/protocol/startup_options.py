"""The startup parameter ``options``: arguments for the session (postinit.c, postgres.c).

In: the text. Out: settings in the order given. Only ``-c name=value`` and ``--name=value`` are
known, which is what PGOPTIONS and subscribers send.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import SqlSyntaxError

_SPACES: Final = " \t\n\v\f\r"


def parse_options(text: str) -> tuple[tuple[str, str], ...]:
    """Names (with ``_`` for ``-``) and values. Raises SqlSyntaxError for any other argument."""
    arguments = iter(split_options(text))
    settings = []
    for argument in arguments:
        if argument == "--":
            break
        if argument.startswith("--"):
            settings.append(_assignment("--", argument[2:]))
        elif argument == "-c":
            value = next(arguments, None)
            if value is None:
                raise _invalid(argument)
            settings.append(_assignment("-c ", value))
        elif argument.startswith("-c"):
            settings.append(_assignment("-c ", argument[2:]))
        else:
            raise _invalid(argument)
    for argument in arguments:
        raise _invalid(argument)
    return tuple(settings)


def split_options(text: str) -> list[str]:
    """Arguments, cut at spaces; a backslash makes the next character plain (pg_split_opts)."""
    arguments: list[str] = []
    current: str | None = None
    escaped = False
    for char in text:
        if char in _SPACES and not escaped:
            if current is not None:
                arguments.append(current)
            current = None
        elif char == "\\" and not escaped:
            escaped = True
            current = current or ""
        else:
            escaped = False
            current = (current or "") + char
    return arguments if current is None else [*arguments, current]


def _assignment(flag: str, argument: str) -> tuple[str, str]:
    """ParseLongOption."""
    name, equals, value = argument.partition("=")
    if not equals:
        raise SqlSyntaxError(f"{flag}{argument} requires a value")
    return name.replace("-", "_"), value


def _invalid(argument: str) -> SqlSyntaxError:
    return SqlSyntaxError(
        f"invalid command-line argument for server process: {argument}",
        hint='Try "postgres --help" for more information.',
    )
