"""Random inputs by time: mutations of valid texts, and a run that collects what goes wrong.

PENSTOCK_FUZZ_SECONDS: how long all runs of a test session take together (make faults: 300);
PENSTOCK_FAULT_SEED: other inputs. An input depends on seed, target and number alone, so that a
failure can be run again without those before it.
"""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Final

from penstock.errors import PenstockError

SECONDS: Final = float(os.environ.get("PENSTOCK_FUZZ_SECONDS", "10"))
SEED: Final = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))
SLOWEST_S: Final = 5.0
"""CPU seconds that one input may take: PostgreSQL's own scanner takes one for 30 kB of ``/*``, and
reads them twice here."""
_HANGS_S: Final = 30
_MOST_FAILURES: Final = 20
_LONGEST: Final = 30_000
_SHOWN: Final = 600

NASTY: Final = [
    "9" * 5000, "0x" + "f" * 5000, "1" * 400 + "." + "2" * 400, "1e999999999", "1e-999999999",
    "-2147483648", "2147483648", "9223372036854775808", "18446744073709551616", "NaN", "1_0", "1__",
    "'", "''", '"', '""', "$$", "$a$", "$a", "$1", "$99999999999", "E'", "E'\\'", "E'\\u00e",
    "E'\\uD83D'", "E'\\U00110000'", "E'\\xff'", "E'\\0'", "U&'\\d83d'", "U&'\\+110000'",
    "U&'\\0000'", 'U&"\\d800"', 'U&"', "U&'!0041' UESCAPE '!'", "B'2'", "X'g'", "N'x'", "b'", "\0",
    "\x01", "\x7f", "\x85", "\u2028", "\ufeff", "İ", "ß", "🐘", "é", "/*", "*/", "/*/**/", "--",
    "--\n", ";", ";;", "::", ":=", "..", "...", "=>", "->", "->>", "@>", "!", "|/", "%", "^", "\\",
    "[", "]", "[]", "[1:2]", "{}", "(", ")", "()", ",", ".", "*", "+", "-", "<>", "!=", "~~*",
    "NULL", "NOT", "AND", "OR", "IS", "IN (", "ANY (", "CASE WHEN", "END", "BETWEEN SYMMETRIC",
    "SELECT", "WITH x AS (", "ARRAY[", "ROW(", "CAST(", "COLLATE", "AT TIME ZONE", "OPERATOR(+)",
    "EXTRACT(year FROM", "TRIM(BOTH", "INTERVAL '1 day'", "DATE 'x'", "timestamp(99999)", "a" * 200,
    "x.y.z.w", "public.", "ctid", "char(0)", "numeric(1000,-1000)", "1 ", "\t", "\r\n", "\x0b",
]  # fmt: skip
NUMBERS: Final = [
    "9" * 5000, "1" * 4000, "0x" + "f" * 4000, "0x" + "f" * 3400, "0b1", "0o17", "1e400", "1e-400",
    "." + "3" * 3000, "1.5", "-0", "007", "1_000", "32768", "2147483647", "2147483648", "1e16001",
    "9223372036854775807", "9223372036854775808", "99999999999999999999999", "$1", "$4294967296",
]  # fmt: skip
STRINGS: Final = [
    "''", "' '", "'٣'", "'²'", "'" + "9" * 5000 + "'", "'0x" + "f" * 4000 + "'", "'1e99999'",
    "'1e-16001'", "'-0'", "'NaN'", "'-inf'", "'infinity'", "'epoch'", "'today'", "'0000-01-01'",
    "'2020-02-30'", "'294277-01-01'", "'5874898-01-01'", "'4714-11-24 BC'", "'99999999999-01-01'",
    "'2020-01-01 24:00:01'", "'2020-01-01 00:00+99:99'", "'2020-01-01 00:00:00.9999999'", "'{}'",
    "'{1,2'", "'{{1},{2,3}}'", "'{" + "{" * 500 + "'", "'{NULL,\"\"}'", "'[0:1]={1,2}'", "'\\x0'",
    "'\\x00'", "'\\777'", "'\\'", "'%_\\'", "'a{999999999999999999999999}'", "'(((('", "'[[:<:]]'",
    "'(?i)a'", "'" + "(a*)*" * 20 + "b'", "'[z-a]'", "'a\x00'", "'t'", "'maybe'", "E'\\x41'",
    "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'🐘'",
    "'nowhere'::regclass", "'public.t1'", "'\"'", "'a.b.c.d'", "'pg_catalog.int4[]'",
]  # fmt: skip
_CUT: Final = re.compile(r"\s+|\w+|'(?:[^']|'')*'|\"[^\"]*\"|.", re.DOTALL)


def mutated(random: Random, corpus: Sequence[str]) -> str:
    """One of the texts with mistakes; few of them mostly, so that they come far."""
    pieces = _CUT.findall(random.choice(corpus))
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        _mutate(random, pieces, corpus)
    text = "".join(pieces)
    if random.random() < 0.2:
        text = _bytes_changed(random, text)
    return text[:_LONGEST]


def _mutate(random: Random, pieces: list[str], corpus: Sequence[str]) -> None:
    at = random.randrange(len(pieces) + 1)
    end = min(len(pieces), at + random.choice((1, 1, 1, 2, 5)))
    match random.randrange(12):
        case 0:
            del pieces[at:end]
        case 1:
            pieces.insert(at, random.choice(NASTY))
        case 2:
            pieces[at:end] = [random.choice(NASTY)]
        case 3:
            other = _CUT.findall(random.choice(corpus))
            start = random.randrange(len(other) + 1)
            pieces[at:end] = other[start : start + random.choice((1, 2, 5, 50))]
        case 4:
            pieces[at:at] = pieces[at:end] * random.choice((1, 1, 2, 3, 10, 300))
        case 5 if pieces:
            other_at = random.randrange(len(pieces))
            first = min(at, len(pieces) - 1)
            pieces[first], pieces[other_at] = pieces[other_at], pieces[first]
        case 6:
            depth = random.choice((1, 1, 2, 2, 3, 5, 10, 20, 60, 300, 2000))
            opening, closing = random.choice(
                (("(", ")"), ("[", "]"), ("NOT ", ""), ("- ", ""), ("coalesce(", ")"),
                 ("CASE WHEN ", " THEN 1 END"), ("ARRAY[", "]"), ("(SELECT ", ")"), ("/*", "*/"))
            )  # fmt: skip
            pieces[at:end] = [opening * depth, *pieces[at:end], closing * depth]
        case 7:
            joint = random.choice([" AND ", " OR ", " + ", ", ", "::text", "; ", ".", " || "])
            longest = _LONGEST // max(1, sum(map(len, pieces[at:end])))
            repeated = pieces[at:end] * min(longest, random.choice((2, 2, 3, 10, 30, 1000)))
            pieces[at:end] = [joint.join(repeated)]
        case 8:
            del pieces[at:]
        case 9:
            _replace_alike(random, pieces, "'", STRINGS)
        case 10:
            _replace_alike(random, pieces, "0123456789", NUMBERS)
        case _:
            pieces[at:end] = [piece.swapcase() for piece in pieces[at:end]]


def _replace_alike(random: Random, pieces: list[str], first: str, others: list[str]) -> None:
    """One constant by another, so that the text still is one."""
    places = [at for at, piece in enumerate(pieces) if piece[:1] in first and piece]
    if places:
        pieces[random.choice(places)] = random.choice(others)


def _bytes_changed(random: Random, text: str) -> str:
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(random.choice((1, 1, 3))):
        at = random.randrange(len(raw) + 1)
        raw[at : at + random.choice((0, 1, 1, 4))] = random.randbytes(random.choice((0, 1, 2)))
    return raw.decode("utf-8", "replace")


@dataclass
class Campaign:
    """One target's run."""

    target: str
    inputs: int = 0
    taken: int = 0
    slowest: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    def run(
        self, seconds: float, make: Callable[[Random], str], check: Callable[[str], object]
    ) -> None:
        """Make and check inputs for so long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self.failures) < _MOST_FAILURES:
            self.inputs += 1
            text = make(Random(f"{SEED}/{self.target}/{self.inputs}"))
            self.try_one(text, check)

    def try_one(self, text: str, check: Callable[[str], object]) -> None:
        """Either an answer or an error of ours, and soon."""
        began = time.thread_time()
        try:
            with _no_hang():
                check(text)
            self.taken += 1
        except PenstockError as error:
            if re.fullmatch("[0-9A-Z]{5}", error.sqlstate) is None or not error.message:
                self._failed(text, f"{error!r} {error.sqlstate}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._failed(text, f"{type(error).__name__} {error!s:.80} {where.name}:{where.lineno}")
        took = time.thread_time() - began
        self.slowest = max(self.slowest, took)
        if took > SLOWEST_S:
            self._failed(text, f"took {took:.1f} s, input {self.inputs}")

    def _failed(self, text: str, why: str) -> None:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)})"
        self.failures.setdefault(why, f"input {self.inputs}: {shown!r}")

    def report(self) -> str:
        return (
            f"{self.target:<28} {self.inputs:>9} inputs {self.taken:>9} taken "
            f"{self.slowest:7.3f} s the slowest"
        )

    def verify(self) -> None:
        """Nothing has failed."""
        found = [f"{why}\n  {text}" for why, text in self.failures.items()]
        assert not found, "\n".join(found)


@contextmanager
def _no_hang() -> Iterator[None]:
    def stop(_: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
