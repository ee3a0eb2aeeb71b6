"""Compile LIKE, ILIKE and regular expressions with constant patterns to DuckDB's SQL.

The SQL of a string and a pattern become an SQL condition. As in collation C, upper and lower case
exist for A to Z only. Of PostgreSQL's advanced regular expressions, only the part with the same
meaning in DuckDB's engine (RE2) is supported; the rest is refused.
"""

from __future__ import annotations

import re
import string
from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.sql.to_duckdb.duckdb_values import refused
from penstock.sql.to_duckdb.fmgr import MAX_MADE, cached, raises
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
_MAX_SIZE: Final = 10_000
"""The most characters of a pattern with its repeats written out: RE2 has a limit, too."""
_ITEM: Final = 16
"""DuckDB's bytes for an element of a list of texts."""


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


@cached
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


# Functions that return a match
#
# PostgreSQL takes the longest match, RE2 prefers the first branch and the most repeats of what
# stands first. Both are the same match in a pattern without branches and repeated groups: if a
# repeat took one character more, everything after it could still match up to the same end.


def regular_replacement(sql: str, pattern: str, by: str, flags: str) -> str:
    """Compile regexp_replace. Raises FeatureNotSupported."""
    groups = _one_match(pattern, every="g" in flags)
    numbers = map(int, re.findall(r"\\([1-9])", by.replace("\\\\", "")))
    if set(flags) - {"g"} or not _REPLACEMENT.fullmatch(by) or max(numbers, default=0) > groups:
        raise _refused(pattern)
    made = by.replace("\\&", "\\0")
    options = "gs" if "g" in flags else "s"
    arguments = f"{simple_quote_literal(pattern)}, {simple_quote_literal(made)}"
    found = f"regexp_replace({sql}, {arguments}, '{options}')"
    return _if_short(sql, found, 2 * len(by) + 1) if "g" in flags else found


def regular_match(name: str, sql: str, pattern: str) -> str:
    """Compile regexp_substr, substring, regexp_match, regexp_count, regexp_split_to_array.

    Raises FeatureNotSupported.
    """
    every = name in ("regexp_count", "regexp_split_to_array")
    groups = _one_match(pattern, every=every)
    quoted = simple_quote_literal(pattern)
    if name == "regexp_count":
        found = f"CAST(len(regexp_extract_all({sql}, {quoted}, 0, 's')) AS INTEGER)"
    elif every:
        found = f"string_split_regex({sql}, {quoted}, 's')"
    else:
        wanted = range(1, groups + 1) if groups and name != "regexp_substr" else range(1)
        parts = [f"regexp_extract({sql}, {quoted}, {number}, 's')" for number in wanted]
        made = f"[{', '.join(parts)}]" if name == "regexp_match" else parts[0]
        return f"CASE WHEN regexp_matches({sql}, {quoted}, 's') THEN {made} END"
    return _if_short(sql, found, _ITEM)


def _if_short(sql: str, found: str, factor: int) -> str:
    """Raise 53200 for a text of which so many times the bytes would be made (``fmgr.MAX_MADE``)."""
    refusal = raises("53200", "out of memory", "VARCHAR")
    sql = f"CASE WHEN strlen({sql}) > {MAX_MADE // factor} THEN {refusal} END"
    return f"CASE WHEN ({sql}) IS NULL THEN {found} END"


def _one_match(pattern: str, *, every: bool) -> int:
    """Return the number of groups of a pattern that both engines match in one way.

    ``every``: for all matches of a text. The engines differ in matches of nothing, and DuckDB takes
    the end of a match for the beginning of the text.
    """
    plain = re.sub(r"\\.", "_", common_pattern(pattern))
    repeated = re.search(r"\)[*+?{]|\|", plain)
    if repeated or (every and (re.search(pattern, "") or re.search(r"(?<!\[)\^", plain))):
        raise _refused(pattern)
    return plain.count("(")


def lower_pattern(pattern: str) -> str:
    """Return a regular expression with A to Z, but no escapes, in lower case."""
    return re.sub(r"\\.|[A-Z]", lambda match: match[0].translate(_LOWER), pattern)


def common_pattern(pattern: str) -> str:
    """Return the pattern unchanged. Raises FeatureNotSupported if the engines may differ."""
    at, depth, empty, size = 0, 0, True, 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None or pattern.startswith(("(?", "(*"), at):
            raise _refused(pattern)
        repeat = match["repeat"] or ""
        numbers = [int(number) for number in re.findall(r"\d+", repeat)]
        size += max(numbers, default=1)
        if max(numbers, default=0) > _MAX_REPEAT or numbers != sorted(numbers) or size > _MAX_SIZE:
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
