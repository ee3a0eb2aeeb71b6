"""Print the measures of the house: files, lines, records, commits, docstrings, comments.

In: a checkout. Out: one line a measure, so that two checkouts can be compared with diff. ``--list``
prints what a measure counted, by file and line, instead of the counts.

Each function below defines one measure. A file is a Python file under src/penstock.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FRAGMENTS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        Above Absent After Against Also Although Always Among And Are As At Because Before Behind
        Below Beside Between But By Either Else Even For From How If In Inside Instead Into Is Its
        Just Left Like More Most Neither Never Nor Nothing Of On Once Or Other Others Out Over Per
        Same So Some Still Such Than That Their Them Then Those Though Through Till To Too Under
        Unless Until Up Upon What Whatever When Where Which While Who Whoever Whom Whose Why
        Whether With Within Without
        """,
    )
)
"""A docstring that begins with one of these has its verb late, or none."""
_COLUMN_NAMES: Final = frozenset({"name", "attname"})
_COLUMN_TYPES: Final = frozenset({"type", "type_oid", "atttypid"})
_COLUMN_REST: Final = frozenset({"typmod", "atttypmod", "delta", "not_null", "generated", "key"})


@dataclass(frozen=True)
class Source:
    """One file of the package, read and parsed."""

    path: Path
    module: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


@dataclass(frozen=True)
class Found:
    """What a measure counted, and where: a module and a line, 0 for all of the file."""

    module: str
    line: int
    what: str


def read(root: Path) -> list[Source]:
    """Read the package of a checkout."""
    base = root / "src"
    sources = []
    for path in sorted((base / "penstock").rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        sources.append(Source(path, module, text, ast.parse(text)))
    return sources


def importers(sources: list[Source]) -> dict[str, set[str]]:
    """Return the modules that import each module, those of type checking included."""
    known = {source.module for source in sources}
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        for node in ast.walk(source.tree):
            for name in _imported(node, known):
                found[name].add(source.module)
    return found


def _imported(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in known:
                yield whole
            elif node.module in known:
                yield node.module


def single_importer(sources: list[Source]) -> Iterator[Found]:
    """Files that one other file imports; a room's ``__init__`` is none."""
    by = importers(sources)
    for source in sources:
        if source.path.name != "__init__.py" and len(by[source.module]) == 1:
            yield Found(source.module, 0, f"by {next(iter(by[source.module]))}")


def column_records(sources: list[Source]) -> Iterator[Found]:
    """Classes that hold a column's name and type and at least one other thing of a column.

    Rows of catalogs and messages are of another form, and named by their field: attname.
    """
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            fields = {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            }
            if fields & _COLUMN_NAMES and fields & _COLUMN_TYPES and fields & _COLUMN_REST:
                yield Found(source.module, node.lineno, node.name)


def log_puts(sources: list[Source]) -> Iterator[Found]:
    """Calls of a log store's ``put``: with a table, a version and lines. A log store's own call of
    its library is none."""
    for source in sources:
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "put"
                and len(node.args) == 3
                and "store" in ast.unparse(node.func.value).lower()
                and ast.unparse(node.func.value) != "obstore"
            ):
                yield Found(source.module, node.lineno, ast.unparse(node.func))


def commit_infos(sources: list[Source]) -> Iterator[Found]:
    """Functions that build a ``commitInfo`` action."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Dict) and any(
                isinstance(key, ast.Constant) and key.value == "commitInfo" for key in node.keys
            ):
                yield Found(source.module, node.lineno, "{'commitInfo': ...}")
            elif (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).split(".")[-1] == "commit_info"
            ):
                yield Found(source.module, node.lineno, "commit_info(...)")


def docstrings(sources: list[Source]) -> Iterator[Found]:
    """Texts of modules, classes and functions, and those below constants and fields."""
    for source in sources:
        for node in ast.walk(source.tree):
            body = getattr(node, "body", None)
            if not isinstance(body, list):
                continue
            for before, part in zip([None, *body], body, strict=False):
                if _is_text(part) and (
                    before is None or isinstance(before, ast.AnnAssign | ast.Assign)
                ):
                    assert isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
                    yield Found(source.module, part.lineno, str(part.value.value).strip())


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def fragments(sources: list[Source]) -> Iterator[Found]:
    """Docstrings that begin with a word of FRAGMENTS."""
    for found in docstrings(sources):
        word = re.match(r"\w+", found.what)
        if word and word.group() in FRAGMENTS:
            yield Found(found.module, found.line, found.what.splitlines()[0])


def comments(sources: list[Source]) -> Iterator[Found]:
    """Lines that hold a comment alone."""
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), 1):
            if line.lstrip().startswith("#"):
                yield Found(source.module, number, line.strip())


def head_lines(source: Source) -> int:
    """Count the lines from a file's begin to the end of its last import."""
    last = 0
    for number, node in enumerate(source.tree.body):
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if (
            isinstance(node, ast.Import | ast.ImportFrom)
            or guard
            or (number == 0 and _is_text(node))
        ):
            last = node.end_lineno or 0
    return last


def constructors(sources: list[Source]) -> Iterator[tuple[int, Found]]:
    """Return how many parameters each ``__init__`` takes; a dataclass's fields are not counted."""
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    args = part.args
                    count = len([*args.posonlyargs, *args.args, *args.kwonlyargs]) - 1
                    yield count, Found(source.module, node.lineno, node.name)


def code_lines(sources: list[Source]) -> int:
    """Count the lines that are neither empty nor a comment."""
    return sum(
        1
        for source in sources
        for line in source.text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    )


LISTED: Final[dict[str, Callable[[list[Source]], Iterator[Found]]]] = {
    "files with one importer": single_importer,
    "records of a column": column_records,
    "places that put a log entry": log_puts,
    "places that build commitInfo": commit_infos,
    "docstrings that begin with a fragment": fragments,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--list", choices=sorted(LISTED), help="print what one measure counted")
    options = parser.parse_args()
    sources = read(options.checkout)
    if options.list:
        for found in LISTED[options.list](sources):
            print(f"{found.module}:{found.line}: {found.what}")
        return
    lines = sum(source.lines for source in sources)
    texts = sum(1 for _ in docstrings(sources))
    count, largest = max(constructors(sources), key=lambda pair: pair[0])
    tests = sum(
        path.read_text("utf-8").count("\n") for path in (options.checkout / "tests").rglob("*.py")
    )
    print(f"files: {len(sources)}")
    print(f"lines: {lines}")
    for name, measure in LISTED.items():
        number = sum(1 for _ in measure(sources))
        share = f" of {texts} ({number / texts:.1%})" if measure is fragments else ""
        print(f"{name}: {number}{share}")
    own = sum(1 for _ in comments(sources))
    per_thousand = 1000 * own / code_lines(sources)
    print(f"lines that are a comment, per 1,000 lines of code: {per_thousand:.0f}")
    print(f"share of heads (docstring and imports): {sum(map(head_lines, sources)) / lines:.1%}")
    print(f"largest constructor: {count} ({largest.module}.{largest.what})")
    print(f"lines of tests: {tests}")


if __name__ == "__main__":
    main()
