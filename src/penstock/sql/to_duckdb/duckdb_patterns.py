"""Compile LIKE, ILIKE and regular expressions with constant patterns to DuckDB's SQL.

The SQL of a string and a pattern become an SQL condition. As in collation C, upper and lower case
exist for A to Z only. Of PostgreSQL's advanced regular expressions, only the part with the same
meaning in DuckDB's engine (RE2) is supported; the rest is refused.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache
from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.sql.to_duckdb.duckdb_values import refused
from penstock.sqlstate import InvalidEscapeSequence

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
LOWER: Final = f"'{string.ascii_lowercase}'"
UPPER: Final = f"'{string.ascii_uppercase}'"
_MAX_REPEAT: Final = 255
_CLASS: Final = (
    r"\[\^?(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_ ,;@#%&<>/~\x80-\U0010ffff])+\]"
)
_PLAIN: Final = r"""[A-Za-z0-9_ ,;:@#%&=<>/~!"'`\x80-\U0010ffff\n\t-]"""
_ATOM: Final = rf"{_PLAIN}|\\[.*+?()\[\]{{}}|^$]|\\[dw]|\.|{_CLASS}"
_REPEAT: Final = r"[*+?]|\{[0-9]{1,3}(?:,(?:[0-9]{1,3})?)?\}"
_TOKEN: Final = re.compile(
    rf"(?P<atom>{_ATOM})(?P<repeat>{_REPEAT})?|(?P<anchor>[\^$])|(?P<other>[(|)])"
)
_REPLACEMENT: Final = re.compile(r"(?:[^\\]|\\[&1-9\\])*", re.DOTALL)
_GROUP_REPEAT: Final = re.compile(r"[*+?]")


def like(sql: str, pattern: str, insensitive: bool) -> str:
    """Compile ``sql LIKE pattern`` for a pattern that is not unfinished."""
    if insensitive:
        sql, pattern = f"translate({sql}, {UPPER}, {LOWER})", pattern.translate(_LOWER)
    return f"({sql} LIKE {simple_quote_literal(pattern)} ESCAPE '\\')"


def is_unfinished(pattern: str) -> bool:
    """Tell whether a pattern of LIKE ends with an escape character that escapes nothing."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def like_matches(text: str, pattern: str) -> bool:
    """Match a pattern that is not a constant (like_match.c). Raises 22025 only for a text that
    matches up to an escape character at the pattern's end."""
    parts, width, unfinished = _like_parts(pattern)
    *before, last = parts
    at = 0
    for number, part in enumerate(before):
        found = part.search(text, at) if number else part.match(text)
        if found is None:
            return False
        at = found.end()
    if unfinished:
        if (last.search(text, at) if before else last.match(text)) is not None:
            raise InvalidEscapeSequence("LIKE pattern must not end with escape character")
        return False
    start = len(text) - width
    return start >= at and (bool(before) or not start) and last.match(text, start) is not None


@lru_cache(maxsize=1024)
def _like_parts(pattern: str) -> tuple[tuple[re.Pattern[str], ...], int, bool]:
    """Return the parts between %, the last one's length, and whether an escape is its end."""
    parts: list[list[str]] = [[]]
    unfinished = False
    for token in re.findall(r"\\.|%|.", pattern, re.DOTALL):
        if token == "%":
            parts.append([])
        elif token == "\\":
            unfinished = True
        else:
            parts[-1].append("." if token == "_" else re.escape(token[-1]))
    made = ["".join(part) for part in parts]
    blank = len(parts) > 1 and parts[-1] and set(parts[-1]) == {"."}
    if unfinished and not blank:
        made[-1] += "(?=.)"
    return tuple(re.compile(part, re.DOTALL) for part in made), len(parts[-1]), unfinished


def like_escape(pattern: str, escape: str) -> str:
    """Rewrite a pattern with another escape character to use backslashes (like_escape)."""
    if len(escape) > 1:
        raise InvalidEscapeSequence(
            "invalid escape string",
            hint="Escape string must be empty or one character.",
        )
    if not escape:
        return pattern.replace("\\", "\\\\")
    if escape == "\\":
        return pattern
    result, after = [], False
    for character in pattern:
        if character == escape and not after:
            result.append("\\")
            after = True
        elif character == "\\":
            result.append("\\" if after else "\\\\")
            after = False
        else:
            result.append(character)
            after = False
    return "".join(result)


def regular_expression(sql: str, pattern: str, insensitive: bool) -> str:
    """Compile ``sql ~ pattern`` for the patterns that both engines read alike."""
    common_pattern(pattern)
    if insensitive:
        sql, pattern = f"translate({sql}, {UPPER}, {LOWER})", lower_pattern(pattern)
    return f"regexp_matches({sql}, {simple_quote_literal(pattern)}, 's')"


def regular_replacement(sql: str, pattern: str, by: str, flags: str) -> str:
    """Compile regexp_replace for patterns that both engines read alike and match in one way.

    If several branches match, PostgreSQL takes the longest match, RE2 the first.
    """
    common_pattern(pattern)
    if "|" in pattern or set(flags) - {"g"} or not _REPLACEMENT.fullmatch(by):
        raise _refused(pattern)
    made = by.replace("\\&", "\\0")
    options = "gs" if "g" in flags else "s"
    arguments = f"{simple_quote_literal(pattern)}, {simple_quote_literal(made)}"
    return f"regexp_replace({sql}, {arguments}, '{options}')"


@lru_cache(maxsize=1024)
def python_pattern(pattern: str) -> re.Pattern[str]:
    """Return a pattern of Python that finds the same matches. Raises FeatureNotSupported.

    If several branches match, PostgreSQL takes the longest match, Python the first.
    """
    if "|" in common_pattern(pattern):
        raise _refused(pattern)
    return re.compile(re.sub(r"(\\.)|\$", lambda m: m[1] or r"\Z", pattern), re.DOTALL | re.ASCII)


def lower_pattern(pattern: str) -> str:
    """Return a regular expression with A to Z, but no escapes, in lower case."""
    return re.sub(r"\\.|[A-Z]", lambda match: match[0].translate(_LOWER), pattern)


def common_pattern(pattern: str) -> str:
    """Return the pattern unchanged. Raises FeatureNotSupported if the engines may differ."""
    at, depth, empty = 0, 0, True
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None or pattern.startswith(("(?", "(*"), at):
            raise _refused(pattern)
        repeat = match["repeat"] or ""
        numbers = [int(number) for number in re.findall(r"\d+", repeat)]
        if any(number > _MAX_REPEAT for number in numbers) or numbers != sorted(numbers):
            raise _refused(pattern)
        if match["other"] in ("|", ")") and empty:
            raise _refused(pattern)
        at = match.end()
        if match["other"] == ")":
            depth -= 1
            group = _GROUP_REPEAT.match(pattern, at)
            at = group.end() if group else at
        depth += match["other"] == "("
        empty = match["other"] in ("(", "|")
        follows = pattern[at : at + 1]
        if depth < 0 or (follows and follows in "*+?{"):
            raise _refused(pattern)
    if depth or empty:
        raise _refused(pattern)
    return pattern


def _refused(pattern: str) -> Exception:
    return refused(f"the regular expression {simple_quote_literal(pattern)}")
