"""Changes of definitions in a random history (``story``): DDL that no change message tells of.

In: a random number generator, the story's tables. Out: transactions of the publisher, and a
``Doubt``: which targets and columns may differ from now on, until the node has looked, and which
words it may stop with. Whether it did is left to ``test_stateful``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from end_to_end.story_tables import IDENTITIES, Column, Table, insert, partitions, random_column

EXTRA: Final = (
    ("mood", "(enum_range(NULL::mood))[1 + {i} % 2]", True),
    ("mood[]", "ARRAY[(enum_range(NULL::mood))[1 + {i} % 2]]", True),
    ("comp", "jsonb_populate_record(NULL::comp, jsonb_build_object('a', {i}, 'b', 'b'))", True),
)
"""Types of the story's own, as ``random_column`` takes them: no label and no attribute is named."""

TYPES: Final = "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE comp AS (a int, b text)"

_COLUMN: Final = (
    "dded column|missing replicated column|is another one|has changed its type|new values"
    "|another generation expression|another type|copied again|the history of table"
    "|have exchanged their names|is no longer published"
)
_GAP: Final = "was dropped from publication|in none of the publications|altered for a time"
_AGAIN: Final = "was dropped and created again"
_LEAF: Final = (
    # an emptied leaf hides whether columns that were added before have values
    "was (emptied|dropped or detached|detached and attached again|attached with rows)|dded column|"
    + _GAP
)
_LABEL: Final = "Label|label|was altered since"
_SHAPE: Final = "other attributes|was altered since"


@dataclass(frozen=True)
class Doubt:
    """``columns``: of these targets, those that may differ; None: all of the rows may. ``reasons``:
    what the node may say, as an expression."""

    targets: tuple[str, ...]
    columns: frozenset[str] | None
    reasons: str


@dataclass(frozen=True)
class Back:
    """What undoes a change later; ``else_made`` where other changes have come between."""

    statement: str
    changed: frozenset[str] = frozenset()
    else_made: str = ""


@dataclass(frozen=True)
class Definition:
    """One step. ``transactions``: run one by one; ``changed``: tables whose rows may be others, by
    name; ``done``: what the story knows then."""

    kind: str
    transactions: tuple[str, ...]
    changed: frozenset[str]
    doubts: tuple[Doubt, ...] = ()
    back: Back | None = None
    done: Callable[[], object] = lambda: None

    @property
    def of_type(self) -> bool:
        """Whether it is one of a type's, and of no table's."""
        return self.kind in ("label", "labels swapped", "composite")

    @property
    def alone(self) -> bool:
        """Whether it cannot be done while something is away."""
        return self.kind.partition(":")[0].partition(" ")[0] in ("partition", "left", "publication")


def random_definition(
    rng: random.Random, version: int, tables: Sequence[Table], number: int
) -> Definition:
    """A change of a random table, or of a type or publication of several."""
    kinds: dict[str, int] = {
        "renamed": 5, "dropped": 5, "computed": 6, "default": 5, "volatile": 4, "label": 5,
        "labels swapped": 3, "composite": 4, "partition": 12, "rewritten": 3, "left": 6,
        "publication": 1,
    }  # fmt: skip
    if version >= 18:
        kinds["generated"] = 5
    (kind,) = rng.choices([*kinds], [*kinds.values()])
    table = rng.choice(tables)
    match kind:
        case "label" | "labels swapped":
            return _labels(rng, tables, number, swapped=kind != "label")
        case "composite":
            return _composite(rng, tables, number)
        case "partition":
            return _partition(rng, version, next(t for t in tables if t.name == "root"), number)
        case "left":
            return _left(rng, table, number)
        case "publication":
            return _publication(rng, version, tables)
        case "rewritten":
            leaves = partitions(table.name) if table.partitioned else ()
            named = rng.choice([table.name, *leaves])
            # it hides whether columns that were added before have values
            doubts = _doubts(table, set(), "dded column")
            return Definition(kind, (f"VACUUM FULL {named}",), frozenset(), doubts)
        case "generated":
            return _generated(rng, table, number)
    return _column(rng, kind, table, number, constant=version >= 15 or table.name != "root")


def _column(
    rng: random.Random, kind: str, table: Table, number: int, *, constant: bool
) -> Definition:
    """``constant``: whether a column may be added with a constant default. PostgreSQL 14 sends NULL
    of it in old rows of partitions that are published as their root."""
    name, changed = table.name, frozenset((table.name,))
    new = random_column(rng, f"a{number}")
    doubt = _doubts(table, {new.name}, _COLUMN)
    if kind in ("default", "volatile") or not table.columns:
        value = "5" if kind == "default" and constant else "random()"
        added = f"ALTER TABLE {name} ADD COLUMN {new.name} float8 DEFAULT {value}"
        dropped = f"ALTER TABLE {name} ALTER COLUMN {new.name} DROP DEFAULT"
        # writers leave it alone, so that rows of later keep the default, if it has one
        parts = _divided(rng, [added, *([dropped] if rng.random() < 0.5 else [])])
        return Definition(kind, parts, changed, doubt)
    column = rng.choice(table.columns)
    if kind == "computed":
        text = "" if "SELECT" in column.value else column.value.format(i=f"(id + {number})")
        target, using = (column.name, text) if text else ("big", "left(big, 9)")
        kept = column.type if text else "text"
        computed = f"ALTER TABLE {name} ALTER COLUMN {target} TYPE {kept} USING {using}"
        return Definition(kind, (computed,), changed, _doubts(table, {target}, _COLUMN))
    again = f"ALTER TABLE {name} ADD COLUMN {column.name} {column.type}"
    if kind == "renamed":
        old = f"{column.name}_{number}"
        away = f"ALTER TABLE {name} RENAME COLUMN {column.name} TO {old}"
        kept_column = Column(old, column.type, column.value, column.as_text)
        return Definition(
            kind,
            _divided(rng, [away, again]),
            changed,
            _doubts(table, {column.name, old}, _COLUMN),
            done=lambda: table.columns.append(kept_column),
        )
    # another type now and then
    other = rng.random() < 0.3
    if other:
        again = f"ALTER TABLE {name} ADD COLUMN {column.name} {new.type}"
    elif column.type == "bigint" and constant:
        again += " DEFAULT 7"
    known = Column(column.name, *((new.type, new.value, new.as_text) if other else
                                  (column.type, column.value, column.as_text)))  # fmt: skip
    return Definition(
        kind,
        _divided(rng, [f"ALTER TABLE {name} DROP COLUMN {column.name}", again]),
        changed,
        _doubts(table, {column.name}, _COLUMN),
        done=lambda: table.columns.__setitem__(table.columns.index(column), known),
    )


def _generated(rng: random.Random, table: Table, number: int) -> Definition:
    changed, name, at = frozenset((table.name,)), table.name, table.generated
    if at is None:
        made = f"ALTER TABLE {name} ADD COLUMN g integer GENERATED ALWAYS AS (n * 2) STORED"
        done = _set_generated(table, "g")
        return Definition("generated", (made,), changed, _doubts(table, {"g"}, _COLUMN), done=done)
    if rng.random() < 0.6:
        what = f"SET EXPRESSION AS (n * {number})"
        doubt = _doubts(table, {at}, _COLUMN)
        return Definition(
            "expression", (f"ALTER TABLE {name} ALTER COLUMN {at} {what}",), changed, doubt
        )
    plain = f"g{number}"
    parts = (
        f"ALTER TABLE {name} ALTER COLUMN {at} DROP EXPRESSION",
        f"ALTER TABLE {name} RENAME COLUMN {at} TO {plain}",
    )
    doubt = _doubts(table, {at, plain}, _COLUMN)
    done = _set_generated(table, None)
    return Definition("plain now", _divided(rng, parts), changed, doubt, done=done)


def _set_generated(table: Table, name: str | None) -> Callable[[], None]:
    def set_it() -> None:
        table.generated = name

    return set_it


def _labels(
    rng: random.Random, tables: Sequence[Table], number: int, *, swapped: bool
) -> Definition:
    """By their places, as nobody here knows their names."""
    first = rng.choice((1, 2))
    renames = [(f"a[{first}]", f"'label{number}'")]
    if swapped:
        between = f"'between{number}'"
        renames = [("a[1]", between), ("a[2]", "a[1]"), (between, "a[2]")]
    run = "; ".join(
        f"EXECUTE format('ALTER TYPE mood RENAME VALUE %L TO %L', {old}, {new})"
        for old, new in renames
    )
    block = f"DO $$ DECLARE a text[] := enum_range(NULL::mood)::text[]; BEGIN {run}; END $$"
    doubts, changed = _by_type(tables, "mood", _LABEL)
    return Definition("labels swapped" if swapped else "label", (block,), changed, doubts)


def _composite(rng: random.Random, tables: Sequence[Table], number: int) -> Definition:
    added = f"ALTER TYPE comp ADD ATTRIBUTE z{number} int"
    what = rng.choice([added, added, "ALTER TYPE comp DROP ATTRIBUTE IF EXISTS b"])
    doubts, changed = _by_type(tables, "comp", _SHAPE)
    return Definition("composite", (what,), changed, doubts)


def _by_type(
    tables: Sequence[Table], name: str, reasons: str
) -> tuple[tuple[Doubt, ...], frozenset[str]]:
    doubts: list[Doubt] = []
    for table in tables:
        columns = {c.name for c in table.columns if c.type in (name, f"{name}[]")}
        doubts += _doubts(table, columns, reasons) if columns else ()
    return tuple(doubts), frozenset(t.name for t in tables)


def _partition(rng: random.Random, version: int, root: Table, number: int) -> Definition:
    """Of a tree that is published as its root. PostgreSQL 14 sends nothing of a partition with
    changes from while it was detached, as long as its walsender lives."""
    leaves = partitions(root.name)
    leaf = rng.choice([*leaves])
    bounds = leaves[leaf]
    doubts = (Doubt(root.targets, None, _LEAF),)
    changed = frozenset((root.name,))
    attach = f"ALTER TABLE {root.name} ATTACH PARTITION {leaf} FOR VALUES {bounds}"
    detach = f"ALTER TABLE {root.name} DETACH PARTITION {leaf}"
    fill = insert(root, number % 3, -30, 400, "1").replace(root.name, leaf, 1)
    in_bounds = {"low": "id < 40", "mid": "id BETWEEN 40 AND 299", "far": "id >= 300"}
    fill += f"; DELETE FROM {leaf} WHERE NOT ({in_bounds[leaf.rpartition('_')[2]]})"
    made = f"CREATE TABLE {leaf} PARTITION OF {root.name} FOR VALUES {bounds};" + IDENTITIES[
        root.identity
    ][1].format(leaf)
    filled = ["detach and attach", "filled in a block"] if version >= 15 else []
    kind = rng.choice(["TRUNCATE", "detach", "made again", "made and dropped", *filled])
    name = f"partition: {kind}"
    match kind:
        case "TRUNCATE":
            return Definition(name, (f"TRUNCATE {leaf}",), changed, doubts)
        case "detach":
            back = Back(attach, changed, f"DROP TABLE {leaf}; {made}")
            return Definition(name, (detach,), changed, doubts, back)
        case "detach and attach":
            return Definition(name, (detach, fill, attach), changed, doubts)
        case "made again":
            return Definition(name, (f"DROP TABLE {leaf}; {made}",), changed, doubts)
        case "filled in a block":
            whole = f"BEGIN; {detach}; SAVEPOINT a; {fill}; RELEASE SAVEPOINT a; {attach}; COMMIT"
            return Definition(name, (whole,), changed, doubts)
    parts = (f"DROP TABLE {leaf}; {made}", fill.replace(leaf, root.name, 1),
             f"DROP TABLE {leaf}; {made}")  # fmt: skip
    return Definition(name, parts, changed, doubts)


def _left(rng: random.Random, table: Table, number: int) -> Definition:
    """Out of its publication, and in it again, with changes between."""
    publication = "q" if table.name == "root" else "p"
    out, back = (
        f"ALTER PUBLICATION {publication} {what} TABLE {table.name}" for what in ("DROP", "ADD")
    )
    between = f"UPDATE {table.name} SET n = n + 100 WHERE id % 3 = {number % 3}"
    doubts, changed = (Doubt(table.targets, None, _GAP),), frozenset((table.name,))
    if rng.random() < 0.5:
        return Definition("left", (out, between), changed, doubts, Back(back))
    return Definition("left and joined", (out, between, back), changed, doubts)


def _publication(rng: random.Random, version: int, tables: Sequence[Table]) -> Definition:
    """Under another name for a time. Before 18 a change that is decoded then is an error for ever,
    so there is none."""
    members = [t for t in tables if t.name == "root"]
    doubts = tuple(Doubt(t.targets, None, f"{_GAP}|{_AGAIN}") for t in members)
    between = ("UPDATE root SET n = n + 100 WHERE id % 2 = 0",) if version >= 18 else ()
    if rng.random() < 0.5:
        parts = ("ALTER PUBLICATION q RENAME TO x", *between, "ALTER PUBLICATION x RENAME TO q")
        return Definition("publication renamed", parts, frozenset(("root",)), doubts)
    options = ", publish_generated_columns = stored" if version >= 18 else ""
    made = f"CREATE PUBLICATION q FOR TABLE root WITH (publish_via_partition_root = true{options})"
    parts = ("DROP PUBLICATION q", *between, made) if between else (f"DROP PUBLICATION q; {made}",)
    return Definition("publication dropped", parts, frozenset(("root",)), doubts)


def _doubts(table: Table, columns: set[str], reasons: str) -> tuple[Doubt, ...]:
    return (Doubt(table.targets, frozenset(columns), reasons),)


def of_late(table: Table) -> Doubt:
    """Of a type that a table has, too, which is not followed yet, or not by the writers."""
    return Doubt(table.targets, None, f"{_LABEL}|{_SHAPE}")


def truncated(table: Table) -> Doubt:
    """Of a TRUNCATE, which is always one of a subtransaction: a column that is added beside it may
    have got values in a rewrite. A partition may have lost all rows of its transaction since."""
    reasons = "dded column|was emptied" if table.partitioned else "dded column"
    return Doubt(table.targets, frozenset(), reasons)


def _divided(rng: random.Random, statements: Sequence[str]) -> tuple[str, ...]:
    """In one transaction, or in one each."""
    return ("; ".join(statements),) if rng.random() < 0.5 else tuple(statements)


def touches(table: Table, number: int) -> Iterator[str]:
    """Changes of a table, by which the node gets its definition; of each of its partitions."""
    for low in (-300, 60, 303) if table.partitioned else (60,):
        yield insert(table, 0, low + 3 * number, low + 3 * number, "1")
    yield f"UPDATE {table.name} SET n = n + 1"
