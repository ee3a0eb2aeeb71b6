"""Look-up of operators and functions (parse_oper.c, parse_func.c).

From a name and argument types, find the row of pg_operator or pg_proc, or raise PostgreSQL's error
with its hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeVar

from penstock.pgtypes.pg_type import ANY, UNKNOWN
from penstock.sql.builtin import Function, Operator, functions_by_name, operators
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.coercion import (
    can_coerce,
    category,
    is_preferred,
)
from penstock.sqlstate import AmbiguousFunction, UndefinedFunction

_CASTS_HINT: Final = "You might need to add explicit type casts."


@dataclass(frozen=True, slots=True)
class Candidate:
    """An operator or function, with the parameter types that a call is matched against.

    ``places``: for each argument of a call with named arguments, the number of its parameter; () if
    all arguments are in order.
    """

    row: Operator | Function
    arguments: tuple[int, ...]
    places: tuple[int, ...] = ()


_T = TypeVar("_T")


def find_operator(name: str, left: int | None, right: int) -> Operator:
    """Return the operator; ``left`` is None for a prefix operator. Raises 42883 and 42725."""
    wanted = (right,) if left is None else (left, right)
    candidates = _operators().get((name, len(wanted)), {})
    exact = candidates.get(_same_for_unknown(wanted))
    if exact is not None:
        return _operator(exact)
    matching = [c for c in candidates.values() if can_coerce(wanted, c.arguments)]
    chosen = select_candidate(wanted, matching) if len(matching) > 1 else matching
    if len(chosen) == 1:
        return _operator(chosen[0])
    shown = f"{name} {type_name(right)}"
    if left is not None:
        shown = f"{type_name(left)} {shown}"
    if matching:
        raise AmbiguousFunction(
            f"operator is not unique: {shown}",
            hint=f"Could not choose a best candidate operator. {_CASTS_HINT}",
        )
    noun = "type" if left is None else "types"
    raise UndefinedFunction(
        f"operator does not exist: {shown}",
        hint=f"No operator matches the given name and argument {noun}. "
        f"{_CASTS_HINT if left is not None else 'You might need to add an explicit type cast.'}",
    )


@cache
def _operators() -> Mapping[tuple[str, int], Mapping[tuple[int, ...], Candidate]]:
    """Return the operators by name and number of operands, and by the operands' types."""
    found: dict[tuple[str, int], dict[tuple[int, ...], Candidate]] = {}
    for name, rows in operators().items():
        for row in rows:
            types = (row.left, row.right) if row.left else (row.right,)
            found.setdefault((name, len(types)), {})[types] = Candidate(row, types)
    return found


def _operator(candidate: Candidate) -> Operator:
    assert isinstance(candidate.row, Operator)
    return candidate.row


def _same_for_unknown(wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Give an untyped literal the type of the other operand (binary_oper_exact)."""
    known = [oid for oid in wanted if oid != UNKNOWN]
    return tuple(known[0] if oid == UNKNOWN and known else oid for oid in wanted)


def find_function(
    name: str, wanted: Sequence[int], *, variadic: bool = False, names: Sequence[str] = ()
) -> Candidate | None:
    """Return the function and its parameter types; None if no function fits the call.

    Raises 42725 if several fit equally well. The parameter types match the call: a variadic one is
    repeated, omitted ones are left out. ``variadic``: the last argument is written with VARIADIC.
    ``names``: the names of the last arguments, if the call uses named notation.
    """
    candidates = []
    for function in functions_by_name().get(name, ()):
        if names:
            places = _places(function, len(wanted), variadic, names)
            if places:
                types = tuple(function.arguments[place] for place in places)
                candidates.append(Candidate(function, types, places))
            continue
        arguments = _arguments(function, len(wanted), variadic)
        if arguments is not None:
            candidates.append(Candidate(function, arguments))
    exact = [c for c in candidates if c.arguments == tuple(wanted)]
    if exact:
        return exact[0]
    matching = [c for c in candidates if can_coerce(wanted, c.arguments)]
    if len(matching) <= 1:
        return matching[0] if matching else None
    chosen = select_candidate(wanted, matching)
    if len(chosen) != 1:
        raise AmbiguousFunction(
            f"function {signature(name, wanted, names)} is not unique",
            hint=f"Could not choose a best candidate function. {_CASTS_HINT}",
        )
    return chosen[0]


def signature(name: str, wanted: Sequence[int], names: Sequence[str] = ()) -> str:
    """Print a call for an error message (func_signature_string)."""
    shown = [type_name(oid) for oid in wanted]
    first = len(wanted) - len(names)
    shown[first:] = [f"{n} => {type_}" for n, type_ in zip(names, shown[first:], strict=True)]
    return f"{name}({', '.join(shown)})"


def _places(
    function: Function, count: int, variadic: bool, names: Sequence[str]
) -> tuple[int, ...]:
    """Return each argument's parameter number; () if the function does not fit (MatchNamedCall).

    A variadic function fits a call with names only if the call has VARIADIC.
    """
    if (function.variadic and not variadic) or count > len(function.arguments):
        return ()
    places = list(range(count - len(names)))
    for name in names:
        if name not in function.names or function.names.index(name) in places:
            return ()
        places.append(function.names.index(name))
    needed = set(range(len(function.arguments) - function.defaults))
    return tuple(places) if needed <= set(places) else ()


def _arguments(function: Function, count: int, variadic: bool) -> tuple[int, ...] | None:
    declared = function.arguments
    if function.variadic and not variadic and count >= len(declared):
        last = ANY if function.variadic == ANY else function.variadic
        return (*declared[:-1], *([last] * (count - len(declared) + 1)))
    if len(declared) - function.defaults <= count <= len(declared):
        return declared[:count]
    return None


def select_candidate(wanted: Sequence[int], candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the best candidate, or all that fit equally well (func_select_candidate)."""
    best = _best(candidates, lambda c: _exact(wanted, c))
    if len(best) == 1:
        return best
    best = _best(best, lambda c: _exact_or_preferred(wanted, c))
    if len(best) == 1 or UNKNOWN not in wanted:
        return best
    narrowed = _by_category(wanted, best)
    if len(narrowed) == 1:
        return narrowed
    best = narrowed or best
    known = {oid for oid in wanted if oid != UNKNOWN}
    if len(known) == 1:
        assumed = [known.copy().pop()] * len(wanted)
        fitting = [c for c in best if can_coerce(assumed, c.arguments)]
        if len(fitting) == 1:
            return fitting
    return best


def _best(candidates: Sequence[Candidate], score: object) -> Sequence[Candidate]:
    assert callable(score)
    scores = [score(candidate) for candidate in candidates]
    top = max(scores, default=0)
    return [c for c, points in zip(candidates, scores, strict=True) if points == top]


def _exact(wanted: Sequence[int], candidate: Candidate) -> int:
    pairs = zip(wanted, candidate.arguments, strict=True)
    return sum(w == c for w, c in pairs if w != UNKNOWN)


def _exact_or_preferred(wanted: Sequence[int], candidate: Candidate) -> int:
    pairs = zip(wanted, candidate.arguments, strict=True)
    return sum(w == c or is_preferred(category(w), c) for w, c in pairs if w != UNKNOWN)


def _by_category(wanted: Sequence[int], candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Keep candidates of the preferred category wherever the call has an untyped literal."""
    categories: dict[int, tuple[str, bool]] = {}
    for position, oid in enumerate(wanted):
        if oid != UNKNOWN:
            continue
        slot = _slot_category([c.arguments[position] for c in candidates])
        if slot is None:
            return []
        categories[position] = slot
    return [
        c
        for c in candidates
        if all(
            category(c.arguments[position]) == slot
            and (not preferred or is_preferred(slot, c.arguments[position]))
            for position, (slot, preferred) in categories.items()
        )
    ]


def _slot_category(oids: Sequence[int]) -> tuple[str, bool] | None:
    """Return a parameter's category and whether it has a preferred type; None on a conflict."""
    slot, preferred = category(oids[0]), is_preferred(category(oids[0]), oids[0])
    conflict = False
    for oid in oids[1:]:
        if category(oid) == slot:
            preferred = preferred or is_preferred(slot, oid)
        elif category(oid) == "S":
            slot, preferred = "S", is_preferred("S", oid)
        else:
            conflict = True
    if conflict and slot != "S":
        return None
    return slot, preferred
